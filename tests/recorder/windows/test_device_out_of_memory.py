"""A device that runs out of memory, simulated: what is recorded outside a window, and what the report tells of it."""

import runpy
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import efprof
from efprof.artifacts.events import CollectorStopped, DeviceOutOfMemory, OutOfMemory, WindowClosed, WindowOpened
from efprof.artifacts.snapshot import Snapshot, read_snapshot
from efprof.audits.out_of_memory import out_of_memory
from efprof.facts.device import smaller_step
from efprof.facts.overview.run_warnings import warnings_of
from efprof.facts.run.run import open_run
from efprof.model import Alternatives, Finding, MemoryMap, Narrative, NotRecorded, SegmentMap, Table
from efprof.recorder.budget.sampling import EARLY_STEPS
from efprof.recorder.hooks.torch_versions import SHORTER_HISTORY, version_of
from efprof.recorder.windows.cuda_memory import RING_ENTRIES, WINDOW
from efprof.units import MIB
from tests.recorder.recording import Recorded, line_of, only_run
from tests.simulated_cuda.cuda import SimulatedCuda

TRAIN = """
import torch

MIB = 2**20
weight = torch.ones(MIB, device="cuda", requires_grad=True)  # weight
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(6):
    activation = torch.empty(24 * MIB, dtype=torch.uint8, device="cuda")  # activation
    weight.sum().backward()
    optimizer.step()
    if step == 2:
        FAIL
"""
REQUEST = 'torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")  # request'
SURVIVED = """
        for _ in range(5):
            try:
                torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                pass
"""
ONE_STEP = {"memory_steps": "0:1", "trace_steps": "none", "triggers": "none"}
NO_WINDOW = {"windows": "none"}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EFPROF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cuda() -> Iterator[SimulatedCuda]:
    with SimulatedCuda(2, total_bytes=128 * MIB).in_place() as devices:
        yield devices


def recorded(fail: str, at_step: int = 2, overhead: str = "100%", **options: str | bool) -> Recorded:
    """A training in which this happens, in its third step unless another one is named; holders are not asked for."""
    text = TRAIN.replace("FAIL", fail).replace("step == 2", f"step == {at_step}")
    text = text.replace("range(6)", f"range({max(60, at_step + 1)})")
    Path("train.py").write_text(text)
    with suppress(RuntimeError), efprof.record(overhead=overhead, holders=False, **options):  # type: ignore[arg-type]
        runpy.run_path(str(Path("train.py").absolute()))
    return Recorded(folder=only_run(Path("home")))


def finding_of(recording: Recorded) -> Finding:
    assert recording.run.ended == "out_of_memory"
    (finding,) = out_of_memory(open_run(recording.folder)).findings
    return finding


def line(marker: str) -> str:
    return f"train.py:{line_of(Path('train.py'), marker)}"


def snapshot_of(recording: Recorded) -> Snapshot:
    return read_snapshot(recording.rank / f"{WINDOW}.pickle")


def stops_of(recording: Recorded) -> list[str]:
    return [event.reason for event in recording.events(CollectorStopped)]


def dumps_of(recording: Recorded) -> list[str]:
    return [event.why for event in recording.events(WindowOpened) if event.window == WINDOW]


def told(finding: Finding) -> str:
    (narrative,) = [one for one in finding.evidence if isinstance(one, Narrative)]
    return " ".join(narrative.paragraphs)


def test_the_failing_request_its_line_and_what_is_in_use_are_told_though_no_window_is_open(cuda: SimulatedCuda) -> None:
    recording = recorded(REQUEST, **ONE_STEP)
    assert [entry.action for trace in snapshot_of(recording).device_traces for entry in trace] == []
    finding = finding_of(recording)
    assert str(finding.blame) == line("request")
    assert finding.severity == "high"
    assert finding.message.startswith("Device 0 could not give 100 MiB: of ")
    assert finding.why.startswith("Memory was short, not fragmented: ")
    assert f"{line('weight')} held 4.00 MiB" in finding.why, "of the window"
    assert "No history tells whether a setting of the allocator would have served it" in finding.fix.summary
    assert "Keep less." in finding.fix.summary, "who holds most is not known"
    assert "equal sizes in a window are a hint and no proof" in told(finding)
    assert len(dumps_of(recording)) == 1
    assert stops_of(recording) == []


def test_what_is_in_use_is_told_by_size_with_its_place_on_the_device(cuda: SimulatedCuda) -> None:
    finding = finding_of(recorded(REQUEST, **ONE_STEP))
    (table,) = [one for one in finding.evidence if isinstance(one, Table)]
    assert table.rows[0] == (24 * MIB, 1, 24 * MIB, line("activation"))
    assert table.rows[1] == (4 * MIB, 2, 8 * MIB, line("weight"))
    assert any(isinstance(one, SegmentMap) for one in finding.evidence)
    assert any(isinstance(one, MemoryMap) for one in finding.evidence)


def test_without_any_window_the_state_is_told_and_no_line_is_guessed(cuda: SimulatedCuda) -> None:
    finding = finding_of(recorded(REQUEST, **NO_WINDOW))
    assert str(finding.blame) == line("request")
    assert finding.message.startswith("Device 0 could not give 100 MiB: of ")
    assert " held " not in finding.why
    (table,) = [one for one in finding.evidence if isinstance(one, Table)]
    assert table.rows[0] == (24 * MIB, 1, 24 * MIB, "none")
    assert "efprof record --memory-ring" in told(finding)


@pytest.mark.parametrize("options", [NO_WINDOW, ONE_STEP])
def test_with_a_ring_every_block_has_its_line_and_other_settings_are_tried(
    options: dict[str, str], cuda: SimulatedCuda
) -> None:
    recording = recorded(REQUEST, memory_ring=True, **options)
    assert snapshot_of(recording).device_traces[0][-1].action == "oom"
    finding = finding_of(recording)
    assert str(finding.blame) == line("request")
    assert f"{line('activation')} held 24.0 MiB" in finding.why
    assert any(isinstance(one, Alternatives) for one in finding.evidence)
    assert cuda.memory.history is None, "the recording is over"


def test_a_request_that_fails_in_a_light_step_is_told_alike_and_dumped_once(cuda: SimulatedCuda) -> None:
    at_step = EARLY_STEPS + 60  # up to there bursts come often, and any step may be in one
    recording = recorded(REQUEST, at_step=at_step, overhead="0.000001%", **ONE_STEP)
    assert not recording.steps[-1].is_full
    finding = finding_of(recording)
    assert str(finding.blame) == line("request")
    assert finding.message.startswith("Device 0 could not give 100 MiB: of ")
    assert len(dumps_of(recording)) == 1


def test_a_request_that_fails_on_the_engines_thread_is_blamed_on_the_call_of_backward(cuda: SimulatedCuda) -> None:
    backward = """loss = torch.ones(9 * MIB, device="cuda", requires_grad=True).exp().sum()  # forward
        loss.backward()  # request"""
    finding = finding_of(recorded(backward, memory_ring=True, **NO_WINDOW))
    assert str(finding.blame) == line("request")
    assert "could not give 36.0 MiB" in finding.message
    assert f"{line('forward')} held 72.0 MiB" in finding.why


def test_the_ring_is_short_and_a_window_takes_its_place(cuda: SimulatedCuda) -> None:
    seen = []

    def look() -> None:
        seen.append(cuda.memory.max_entries)

    torch.cuda.look = look  # type: ignore[attr-defined]
    try:
        recorded("pass\n    torch.cuda.look()", memory_ring=True, **{**ONE_STEP, "memory_steps": "1:3"})
    finally:
        del torch.cuda.look  # type: ignore[attr-defined]
    assert [entries == RING_ENTRIES for entries in seen[:6]] == [True, False, False, True, True, True]
    assert min(entries for entries in seen) == RING_ENTRIES


def test_a_program_that_keeps_the_history_itself_ends_the_ring_and_keeps_its_own(cuda: SimulatedCuda) -> None:
    Path("train.py").write_text(TRAIN.replace("FAIL", "torch.cuda.memory._record_memory_history(max_entries=77)"))
    with efprof.record(memory_ring=True, windows="none", holders=False):
        runpy.run_path(str(Path("train.py").absolute()))
    assert (cuda.memory.history, cuda.memory.max_entries) == ("all", 77)
    (stopped,) = stops_of(Recorded(folder=only_run(Path("home"))))
    assert "records the allocator's history itself" in stopped


@pytest.mark.skipif(version_of(torch) < SHORTER_HISTORY, reason="needs torch 2.11, which gives segments without it")
def test_the_programs_own_history_is_left_out_of_the_snapshot_but_not_the_stacks(cuda: SimulatedCuda) -> None:
    """It may hold millions of entries, and then dumping it takes minutes and all of the host's memory."""
    recording = recorded(
        f"pass\n    torch.cuda.memory._record_memory_history()\n    if step == 3:\n        {REQUEST}", **NO_WINDOW
    )
    assert snapshot_of(recording).device_traces == []
    assert stops_of(recording) == [
        f"{WINDOW}.pickle is without the allocator's history: it is the program's own, of any length"
    ]
    assert f"{line('activation')} held 24.0 MiB" in finding_of(recording).why


def test_out_of_memory_errors_that_the_program_survives_are_counted_and_dumped_once(cuda: SimulatedCuda) -> None:
    recording = recorded(SURVIVED, **NO_WINDOW)
    assert recording.run.ended == "finished"
    assert recording.events(OutOfMemory) == []
    first, last = recording.events(DeviceOutOfMemory)
    assert (first.num_failed, last.num_failed) == (1, 5)
    assert (last.device, last.requested_bytes) == (0, 100 * MIB)
    assert len(dumps_of(recording)) == len(recording.events(WindowClosed)) == 1
    run = open_run(recording.folder)
    assert [one for one in warnings_of(run) if one.startswith("Requests for memory of the device failed, 5 in all")]
    with pytest.raises(NotRecorded):
        out_of_memory(run)


def test_an_out_of_memory_error_in_a_window_that_the_program_survives_is_no_end(cuda: SimulatedCuda) -> None:
    recording = recorded(SURVIVED, **{**ONE_STEP, "memory_steps": "0:5"})
    (finding,) = out_of_memory(open_run(recording.folder)).findings
    assert finding.headline == "Out of memory, and the program went on"
    assert finding.severity == "low"


def test_the_one_that_ends_the_program_has_a_snapshot_of_its_own_after_others_were_survived(
    cuda: SimulatedCuda,
) -> None:
    grown = f'{SURVIVED}        more = torch.empty(44 * MIB, dtype=torch.uint8, device="cuda")\n        {REQUEST}'
    recording = recorded(grown, **NO_WINDOW)
    assert [why.partition(" could")[0] for why in dumps_of(recording)] == [
        "device 0",
        "the program ended for want of memory",
    ]
    finding = finding_of(recording)
    (table,) = [one for one in finding.evidence if isinstance(one, Table)]
    assert table.rows[0][:3] == (44 * MIB, 1, 44 * MIB)
    assert "Requests that failed in this run: 6;" in told(finding)


@pytest.mark.parametrize("kind", ["torch.AcceleratorError", "RuntimeError"])
def test_an_error_of_cuda_itself_counts_though_the_allocator_was_not_asked(kind: str, cuda: SimulatedCuda) -> None:
    if kind == "torch.AcceleratorError" and not hasattr(torch, "AcceleratorError"):
        pytest.skip("needs torch.AcceleratorError")
    recording = recorded(f'raise {kind}("CUDA error: out of memory\\nSearch for it")  # request', **NO_WINDOW)
    finding = finding_of(recording)
    assert str(finding.blame) == line("request")
    assert finding.message.startswith("CUDA could not get memory in ")
    assert dumps_of(recording) == ["the program ended for want of memory"]
    (table,) = [one for one in finding.evidence if isinstance(one, Table)]
    assert table.rows[0][:3] == (24 * MIB, 1, 24 * MIB)


NCCL = """torch.distributed.DistBackendError("NCCL error in: NCCLUtils.cpp:77\\nCuda failure 2 'out of memory'")"""


@pytest.mark.parametrize(
    ("library", "error"),
    [
        ("NCCL", NCCL),
        ("cuBLAS", 'RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")'),
        ("cuDNN", 'RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")'),
        ("cuDNN", 'RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED")'),
        ("cuSOLVER", 'RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate`")'),
        ("Triton", 'RuntimeError("Triton Error [CUDA]: out of memory")'),
    ],
)
def test_a_library_that_gets_no_memory_is_named_with_what_the_cache_held(
    library: str, error: str, cuda: SimulatedCuda
) -> None:
    recording = recorded(f"del activation\n        raise {error}  # request", **NO_WINDOW)
    finding = finding_of(recording)
    assert str(finding.blame) == line("request")
    assert finding.message.startswith(f"{library} could not get memory in ")
    assert "8.02 MiB in use by tensors" in finding.message
    assert finding.why == "PyTorch held 62.0 MiB more in its cache; 0 B were in use outside its allocator."
    assert (
        "`torch.cuda.empty_cache()` once before this line: PyTorch's cache held 14.0 MiB beyond" in finding.fix.summary
    )
    assert dumps_of(recording) == ["the program ended for want of memory"]


def test_where_a_peak_within_a_step_needs_the_cache_fewer_samples_are_advised(
    cuda: SimulatedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smaller_step, "MIN_SPARE", 0.2)  # a segment of 20 MiB is much of so small a device
    peak = 'torch.empty(96 * MIB, dtype=torch.uint8, device="cuda")'
    finding = finding_of(recorded(f"del activation\n        {peak}\n        raise {NCCL}  # request", **NO_WINDOW))
    assert finding.fix.summary.startswith("Take smaller micro-batches")


def test_the_driver_of_a_device_may_say_it_itself(cuda: SimulatedCuda) -> None:
    recording = recorded('raise RuntimeError("CUDA driver error: out of memory")  # request', **NO_WINDOW)
    assert recording.run.ended == "out_of_memory"


@pytest.mark.parametrize("text", ["INTERNAL_ERROR_HOST_ALLOCATION_FAILED", "EXECUTION_FAILED"])
def test_other_errors_of_a_library_are_not_about_the_device_s_memory(text: str, cuda: SimulatedCuda) -> None:
    assert recorded(f'raise RuntimeError("CUDNN_STATUS_{text}")', **NO_WINDOW).run.ended == "raised"


def test_where_most_of_the_device_is_outside_of_pytorch_a_library_that_gets_no_memory_says_so(
    cuda: SimulatedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (MIB, 128 * MIB))
    finding = finding_of(recorded(f"torch.cuda.empty_cache()\n        raise {NCCL}  # request", **NO_WINDOW))
    assert "81.0 MiB were in use outside its allocator" in finding.why
    assert "Find what uses the device outside of PyTorch" in finding.fix.summary


def test_a_request_that_the_allocator_rejects_beforehand_is_counted_and_told(cuda: SimulatedCuda) -> None:
    cuda.memory.rejects_beforehand = True
    recording = recorded(REQUEST, **NO_WINDOW)
    (device_event,) = recording.events(DeviceOutOfMemory)
    assert (device_event.num_failed, device_event.num_rejected) == (0, 1)
    finding = finding_of(recording)
    assert str(finding.blame) == line("request")
    assert "refused by `throw_on_cudamalloc_oom` before the driver was asked: 1." in told(finding)


def test_the_device_that_ran_out_is_the_one_that_is_told_of(cuda: SimulatedCuda) -> None:
    finding = finding_of(recorded(REQUEST.replace('"cuda"', '"cuda:1"').replace("100", "144"), **NO_WINDOW))
    assert finding.message.startswith("Device 1 could not give 144 MiB: of 0 B reserved")


def test_memory_of_the_host_that_runs_out_takes_no_snapshot_of_a_device(cuda: SimulatedCuda) -> None:
    recording = recorded("torch.empty(1 << 50)  # request", **NO_WINDOW)
    assert recording.run.ended == "out_of_memory"
    assert dumps_of(recording) == []
