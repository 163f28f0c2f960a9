"""What the host waits for costs nothing while the device is busy: no finding claims more than that was idle."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from efprof.artifacts.events import CollectorStopped, NonFiniteSeen, WindowOpened
from efprof.commands.report import analyse
from efprof.facts.input.input_waits import InputWaits
from efprof.facts.run.run import open_run
from efprof.facts.steps.step_times import StepTimes
from efprof.model import AuditResult, Finding, Report
from efprof.recorder.windows.windows import GRAPHS_CRASH
from efprof.units import format_ms
from tests.recorder.recording import Recorded, record_here
from tests.simulated_cuda.cuda import SimulatedCuda

NUM_STEPS = 20
FETCH_MS = 30.0
ROUNDING = 1e-9
"""Of a mean: two ways to add up differ in the last bit."""
BUSY_MS = (200.0, 1000.0, 5000.0)
"""More than the host takes for a step: where a crowded machine takes longer, the next is tried."""
SHORT_MS = 10.0

Read = Callable[[torch.Tensor], object]

pytestmark = pytest.mark.usefixtures("one_thread")


class Slow(Dataset[torch.Tensor]):
    """Each sample takes the host some time."""

    def __len__(self) -> int:
        return NUM_STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(FETCH_MS / 1000)
        return torch.zeros(1)


class Model(torch.nn.Linear):
    """Its forward pass keeps the device busy."""

    def __init__(self, launch: Callable[[], None]) -> None:
        super().__init__(3, 1)
        self.launch = launch

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.launch()
        return super().forward(inputs)


def train(launch: Callable[[], None], read: Read = lambda _: None) -> None:
    """Nothing but `read` waits for the device until the end: the inputs are made on it."""
    model = Model(launch).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in DataLoader(Slow()):
        loss = model(torch.ones(4, 3, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        read(loss.detach())
    torch.cuda.synchronize()


def read_now(loss: torch.Tensor) -> object:
    return loss.item()


@pytest.fixture
def cuda() -> Iterator[SimulatedCuda]:
    with SimulatedCuda().in_place() as device:
        yield device


def examined(cuda: SimulatedCuda, folder: Path, device_ms: float, read: Read = lambda _: None) -> Report:
    record_here(folder, lambda: train(lambda: cuda.launch(device_ms), read))
    return analyse(folder)


def on_a_busier_device(check: Callable[[float], None]) -> None:
    """Check with a device that is busy for long enough on this machine."""
    for busy_ms in BUSY_MS:
        try:
            return check(busy_ms)
        except AssertionError:
            if busy_ms == BUSY_MS[-1]:
                raise
    return None


def result_of(report: Report, audit: str) -> AuditResult:
    return next(one for one in report.audits if one.audit_id == audit)


def finding_of(report: Report, audit: str) -> Finding:
    (finding,) = result_of(report, audit).findings
    return finding


def metric(report: Report, name: str) -> list[float]:
    return next(list(one.samples) for one in report.measurements.metrics if one.name == name)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_a_device_that_is_busy_while_the_host_fetches_waits_for_nothing(cuda: SimulatedCuda, tmp_path: Path) -> None:
    def check(busy_ms: float) -> None:
        report = examined(cuda, tmp_path / str(busy_ms), busy_ms)
        assert min(metric(report, "data_ms")) >= FETCH_MS
        assert max(metric(report, "data_device_ms")) < 1.0
        assert min(metric(report, "forward_device_ms")) >= busy_ms
        assert result_of(report, "input_stall").status == "passed"
        assert result_of(report, "input_stall").reason.endswith("waited 0.0 % of their time for data")

    on_a_busier_device(check)


def test_a_device_that_starves_waits_for_the_rest_of_the_fetch_alone(
    cuda: SimulatedCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InputWaits, "others", 0.0)  # beside other programs it may be unclear
    report = examined(cuda, tmp_path, SHORT_MS)
    gain = finding_of(report, "input_stall").gain
    steady = open_run(tmp_path).get(StepTimes).steady
    idle_ms = mean([step.total_ms for step in steady]) - SHORT_MS
    assert gain.step_ms is not None
    assert gain.step_ms_interval is not None
    assert 0.5 * (FETCH_MS - SHORT_MS) < gain.step_ms < idle_ms
    assert gain.step_ms_interval[1] <= mean(metric(report, "device_idle_ms")) * (1 + ROUNDING)


def test_a_read_costs_what_the_device_is_idle_after_it_and_not_what_it_waits_for(
    cuda: SimulatedCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InputWaits, "others", 0.0)

    def check(busy_ms: float) -> None:
        report = examined(cuda, tmp_path / str(busy_ms), busy_ms, read_now)
        idle_ms = metric(report, "device_idle_ms")
        assert min(idle_ms) >= FETCH_MS, "the next batch is fetched when the device has nothing left to do"
        gain = finding_of(report, "blocking_scalar_read").gain
        assert gain.step_ms == pytest.approx(mean(idle_ms))
        assert mean(idle_ms) < busy_ms / 2
        assert f"at most what the device was idle, {format_ms(mean(idle_ms))}" in gain.explanation
        assert 0.5 * FETCH_MS < (finding_of(report, "input_stall").gain.step_ms or 0) <= mean(idle_ms) * (1 + ROUNDING)

    on_a_busier_device(check)


def bad_at(number: int) -> None:
    """A training on a device whose loss is the logarithm of a negative number in one step."""
    weight = torch.ones(3, device="cuda").requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.01)
    for step in range(NUM_STEPS):
        inputs = torch.full((3,), -1.0 if step == number else 1.0, device="cuda")
        (weight * inputs).log().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_value_that_went_bad_on_a_device_is_to_be_hunted(cuda: SimulatedCuda, tmp_path: Path) -> None:
    recorded = record_here(tmp_path, lambda: bad_at(7), windows=())
    assert [(event.step, event.is_late) for event in recorded.events(NonFiniteSeen)] == [(7, True)]
    finding = finding_of(analyse(tmp_path), "nonfinite_loss")
    assert "`efprof hunt " in finding.fix.summary
    said = " ".join(text for one in finding.evidence for text in getattr(one, "paragraphs", ()))
    assert "No operation was looked for" in said


def train_beside_a_graph() -> None:
    inputs, graph = torch.ones(4, 3, device="cuda"), torch.cuda.CUDAGraph()
    graph.capture_begin()
    doubled = inputs * 2
    graph.capture_end()
    model = torch.nn.Linear(3, 1).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(12):
        graph.replay()
        model(doubled).sum().backward()
        optimizer.step()


def record_graph(version: str, folder: Path) -> Recorded:
    with SimulatedCuda(cuda=version).in_place():
        return record_here(folder, train_beside_a_graph, windows=((3, 5), (7, 9)), memory_steps=())


@pytest.mark.filterwarnings("ignore:.*kineto.*:UserWarning")
def test_a_program_with_graphs_of_its_own_has_windows_only_where_they_do_not_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEARDOWN_CUPTI", raising=False)
    assert len(record_graph("12.6", tmp_path / "new").events(WindowOpened)) == 2
    old = record_graph("12.4", tmp_path / "old")
    assert old.events(WindowOpened) == []
    (stopped,) = old.events(CollectorStopped)
    assert (stopped.collector, stopped.step, stopped.reason) == ("windows", 3, GRAPHS_CRASH)
    assert any(GRAPHS_CRASH in warning for warning in analyse(tmp_path / "old").warnings)
    monkeypatch.setenv("TEARDOWN_CUPTI", "0")  # as torch.compile sets it, for graphs that it captures
    assert len(record_graph("12.4", tmp_path / "compiled").events(WindowOpened)) == 2


def test_what_a_compiler_waits_for_to_choose_a_kernel_is_no_line_of_the_program(
    cuda: SimulatedCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.runtime.benchmarking import InductorBenchmarker

    weight = torch.ones(3, device="cuda").requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.01)

    def train_and_tune() -> None:
        for name in (
            "synchronize",
            "Event",
            "current_device",
            "get_device_properties",
        ):  # as where the compiler is imported only now
            monkeypatch.setattr(CudaInterface, name, getattr(torch.cuda, name))
        for _ in range(3):
            loss = weight.sum()
            InductorBenchmarker().benchmark_gpu(
                lambda: weight.detach() * 2,
                estimation_iters=1, memory_warmup_iters=1, benchmark_iters=1, device_type="cuda",
            )  # fmt: skip
            loss.backward()
            torch.cuda.synchronize()  # the program's own
            optimizer.step()

    steps = record_here(tmp_path, train_and_tune).steps
    assert cuda.waits_of("torch/_inductor")
    assert [[(one.call, one.count) for one in step.stalls] for step in steps] == [[("torch.cuda.synchronize", 1)]] * 3
