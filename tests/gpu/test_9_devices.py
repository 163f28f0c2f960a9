"""A training on a device that is not the current one, on several, with a fused optimizer, and with other allocators."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from efprof.artifacts.allocations import read_allocations
from efprof.artifacts.events import CollectorStopped
from efprof.artifacts.readings import read_device_use
from efprof.recorder.numbers.late_values import LateValues, on_device
from tests.gpu.cuda_runs import needs_cuda, needs_two, record_text, synchronisation_is_an_error
from tests.recorder.recording import EVERY_STEP_IN_FULL, HARDLY_ANY_IN_FULL, Recorded, open_session, record_here

pytestmark = needs_cuda

NUM_STEPS = 30

ON_THE_SECOND = f"""
import sys, torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1)).to("cuda:1")
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
losses = []
for number in range({NUM_STEPS}):
    inputs = torch.randn(64, 256, device="cuda:1")
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    losses.append(loss.detach())
    optimizer.step()
has_context = torch._C._cuda_hasPrimaryContext(0)
open(sys.argv[0] + ".told", "w").write(f"{{has_context}} {{[float(loss) for loss in losses]}}")
"""
"""Says whether there was a context on the first device at its end, and the losses."""


def told(script: Path) -> tuple[bool, list[float]]:
    first, _, rest = Path(f"{script}.told").read_text().partition(" ")
    return first == "True", [float(value) for value in rest.strip("[]").split(",")]


@pytest.fixture(scope="module")
def on_the_second(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recorded, Path]:
    folder = tmp_path_factory.mktemp("second")
    return record_text(folder, ON_THE_SECOND, "--trace-steps", "12:14", "--triggers", "none"), folder / "train.py"


@needs_two
def test_a_recorded_training_on_the_second_device_starts_no_context_on_the_first(
    on_the_second: tuple[Recorded, Path], tmp_path: Path
) -> None:
    recorded, script = on_the_second
    assert recorded.exit_code == 0, recorded.errors
    alone = tmp_path / "alone.py"
    alone.write_text(ON_THE_SECOND)
    subprocess.run([sys.executable, str(alone)], check=True, timeout=300)
    assert told(alone)[0] is False, "torch itself starts none"
    assert told(script)[0] is False


@needs_two
def test_the_second_device_is_the_one_that_is_read(on_the_second: tuple[Recorded, Path]) -> None:
    recorded, script = on_the_second
    assert [step.loss for step in recorded.steps] == pytest.approx(told(script)[1])
    assert all(here.allocated_bytes > 2**19 for step in recorded.steps if step.is_full for here in step.memory)
    spans = [span for step in recorded.steps[2:] if step.is_full for span in step.spans if span.stage != "data"]
    assert all(span.device_us is not None and span.device_us > 0 for span in spans)
    assert {reading.device for reading in read_device_use(recorded.rank)} == {1}
    assert [device.index for device in recorded.run.devices][:1] == [1]
    assert read_allocations(recorded.rank / "allocations-1.parquet").events
    assert recorded.events(CollectorStopped) == []


@needs_two
def test_asking_the_allocator_for_statistics_starts_no_context() -> None:
    text = (
        "import torch; torch.ones(1, device='cuda:1'); torch._C._cuda_memoryStats(0); torch.cuda.current_stream(0)\n"
        "raise SystemExit(int(torch._C._cuda_hasPrimaryContext(0)))"
    )
    assert subprocess.run([sys.executable, "-c", text], check=False, timeout=300).returncode == 0


@needs_two
@pytest.mark.parametrize("overhead", [EVERY_STEP_IN_FULL, HARDLY_ANY_IN_FULL])
def test_losses_and_gradients_on_two_devices_are_added_up(overhead: float, tmp_path: Path) -> None:
    def train() -> None:
        weights = [torch.ones(1, device=f"cuda:{index}", requires_grad=True) for index in range(2)]
        optimizer = torch.optim.SGD(weights, lr=0.0)
        for number in range(40):
            torch.cuda.set_device(int(number > 20))
            optimizer.zero_grad()
            torch.autograd.backward([(weights[0] * 3.0).sum(), (weights[1] * 4.0).sum() + 1.0])
            optimizer.step()
        torch.cuda.set_device(0)

    recorded = record_here(tmp_path, train, overhead=overhead)
    assert [step.loss for step in recorded.steps] == [8.0] * 40
    full = [step for step in recorded.steps if step.is_full]
    assert {step.gradient_norm for step in full} == {5.0}
    assert all(span.device_us is not None for step in full[1:] for span in step.spans)
    assert recorded.events(CollectorStopped) == []


@needs_two
def test_values_of_two_devices_are_read_once_both_have_computed_them() -> None:
    late = LateValues()
    values = [torch.full((), index + 0.25, device=f"cuda:{index}") for index in range(2)]
    for index in range(2):
        torch.cuda.synchronize(index)
    with torch.cuda.device(1):
        torch.cuda._sleep(4_000_000_000)
    with synchronisation_is_an_error():
        answer = late.send(list(map(on_device, values)))
    assert answer() == []
    torch.cuda.synchronize(1)
    assert answer() == [0.25, 1.25]


def test_an_event_says_its_device_and_values_come_late_and_right_while_rows_are_used_again() -> None:
    for index in range(torch.cuda.device_count()):
        stream, event = torch.cuda.current_stream(index), torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(stream)
        assert event.device == stream.device == torch.device("cuda", index)
        assert stream == torch.cuda.current_stream(index)
        assert len({stream, torch.cuda.current_stream(index)}) == 1
    late = LateValues()
    for number in range(200):
        torch.cuda._sleep(200_000)
        value = torch.full((), float(number), device="cuda")
        with synchronisation_is_an_error():
            answer = late.send([on_device(value), on_device(value + 0.5)])
        del value
        if number % 3 == 0:
            torch.cuda.synchronize()
            assert answer() == [number, number + 0.5]


@pytest.mark.parametrize("overhead", [EVERY_STEP_IN_FULL, HARDLY_ANY_IN_FULL])
def test_a_value_is_copied_on_the_stream_that_makes_it(overhead: float, tmp_path: Path) -> None:
    """Each step runs on a stream of the program's own, and ends where the next batch is fetched, outside of that."""
    losses: list[torch.Tensor] = []

    def train() -> None:
        weight, aside = torch.ones(1, device="cuda", requires_grad=True), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        optimizer = torch.optim.SGD([weight], lr=1e-3)
        torch.cuda.synchronize()
        for number in torch.utils.data.DataLoader(range(1, 61)):  # type: ignore[arg-type]
            with torch.cuda.stream(aside):
                torch.cuda._sleep(20_000_000)
                optimizer.zero_grad()
                loss = (weight * float(number)).sum()
                loss.backward()  # type: ignore[no-untyped-call]
                losses.append(loss.detach().clone())
                optimizer.step()

    recorded = record_here(tmp_path, train, overhead=overhead)
    assert [step.loss for step in recorded.steps] == [loss.item() for loss in losses]
    assert all(step.gradient_norm == step.step + 1 for step in recorded.steps if step.is_full)


@pytest.mark.parametrize("fused", [False, True])
def test_the_norm_is_that_before_scaling(fused: bool, tmp_path: Path) -> None:
    def train() -> None:
        weight = torch.ones(1, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.125, fused=fused)
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(4):
            optimizer.zero_grad()
            scaler.scale((weight * 2.0).sum()).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()

    steps = record_here(tmp_path, train).steps
    assert [step.gradient_norm for step in steps] == [2.0] * 4
    assert [step.scaler_scale for step in steps] == [2.0**16] * 4


def test_a_gradient_s_norm_takes_nothing_that_the_optimizer_lacks(tmp_path: Path) -> None:
    """What the norm takes for the moment comes before the optimizer's first state."""

    def reserved(is_recorded: bool) -> int:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, device="cuda") for _ in range(16)))
        optimizer = torch.optim.AdamW(model.parameters())
        session = open_session(tmp_path / str(is_recorded), memory_steps=())
        if is_recorded:
            session.start()
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(256, 2048, device="cuda")).square().mean().backward()
            optimizer.step()
        session.end()
        return torch.cuda.max_memory_reserved()

    bare = reserved(is_recorded=False)
    assert reserved(is_recorded=True) <= bare + 2 * 2**20, "a segment of small blocks"


PLAIN = ON_THE_SECOND.replace("cuda:1", "cuda")

ALLOCATOR = """
#include <stddef.h>
#include <sys/types.h>
extern int cudaMalloc(void **place, size_t size);
extern int cudaFree(void *place);
void *give(ssize_t size, int device, void *stream) { void *place = 0; cudaMalloc(&place, size); return place; }
void take_back(void *place, ssize_t size, int device, void *stream) { cudaFree(place); }
"""
"""As torch's documentation has one, without CUDA's headers."""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_an_allocator_without_statistics_costs_the_memory_alone(tmp_path: Path) -> None:
    source, library = tmp_path / "allocator.c", tmp_path / "allocator.so"
    source.write_text(ALLOCATOR)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=120)
    change = (
        "allocator = torch.cuda.memory.CUDAPluggableAllocator("
        f"{str(library)!r}, 'give', 'take_back')\ntorch.cuda.memory.change_current_allocator(allocator)\n"
    )
    text = PLAIN.replace("torch.manual_seed(0)\n", change + "torch.manual_seed(0)\n")
    recorded = record_text(tmp_path, text, "--windows", "none")
    assert recorded.exit_code == 0, recorded.errors
    assert [step.loss for step in recorded.steps] == pytest.approx(told(tmp_path / "train.py")[1])
    assert [step.memory for step in recorded.steps] == [[]] * NUM_STEPS
    assert [event.collector for event in recorded.events(CollectorStopped)].count("device_memory") == 1


@pytest.mark.parametrize("variable", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_cudas_own_allocator_is_recorded_to_the_end(variable: str, tmp_path: Path) -> None:
    recorded = record_text(tmp_path, PLAIN, "--windows", "none", environment={variable: "backend:cudaMallocAsync"})
    assert recorded.exit_code == 0, recorded.errors
    assert [step.loss for step in recorded.steps] == pytest.approx(told(tmp_path / "train.py")[1])
