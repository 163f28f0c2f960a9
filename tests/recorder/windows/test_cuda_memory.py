"""When the CUDA allocator's history is on and what becomes of it, decided alike where there is no CUDA."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from efprof.artifacts.events import CollectorStopped, DeviceOutOfMemory, WindowClosed, WindowOpened
from efprof.artifacts.steps import BoundaryMemory, StepRecord
from efprof.model import BOUNDARIES
from efprof.recorder.session.options import StepRange
from efprof.recorder.session.session import Session
from efprof.recorder.windows.cuda_memory import (
    CudaHistory,
    CudaMemory,
    MemoryFiles,
    subscribe,
)
from tests.recorder.recording import Recorded, open_session, record_here
from tests.recorder.training import train_plainly
from tests.simulated_cuda.cuda import SimulatedCuda

SNAPSHOT = {"segments": [], "device_traces": [[{"action": "oom", "size": 512}]]}


class PretendedHistory(CudaHistory):
    """Notes what is asked of it, where there is no allocator to ask."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._is_ours = True

    @property
    def is_on(self) -> bool:
        return self.calls[-1:] == ["on"]

    def turn_on(self, max_entries: int) -> None:
        self.calls.append("on")

    def turn_off(self) -> None:
        self.calls.append("off")

    def write(self, path: Path) -> bool:
        self.calls.append(path.name)
        return super().write(path)


def subscribed(session: Session, history: CudaHistory) -> CudaMemory:
    files = MemoryFiles(history, loop=session.loop, folder=session.rank_folder, note=session.note)
    memory = CudaMemory(session.options, loop=session.loop, requests=session.window_requests, files=files)
    subscribe(session, memory)
    return memory


@pytest.fixture(autouse=True)
def pretended_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: SNAPSHOT)
    monkeypatch.setattr(torch.cuda.memory, "get_allocator_backend", lambda: "native")
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda enabled="all": None)


def record(
    folder: Path,
    train: Callable[[], object],
    *,
    memory_steps: tuple[StepRange, ...],
    trace_steps: tuple[StepRange, ...] = (),
    cuda_begins_at: int = 0,
) -> tuple[Recorded, list[str]]:
    session = open_session(folder, trace_steps)
    session.options = msgspec.structs.replace(session.options, memory_steps=memory_steps)
    history = PretendedHistory()
    memory = subscribed(session, history)
    session.loop.step_ended.append(lambda step, _: step.number + 1 == cuda_begins_at and memory.cuda_began())
    session.start()
    try:
        if cuda_begins_at == 0:
            memory.cuda_began()
        train()
    finally:
        session.end()
    return Recorded(folder=folder), history.calls


def windows_of(recorded: Recorded) -> list[str | None]:
    return [step.window for step in recorded.steps]


def test_the_first_window_is_on_before_the_first_step_and_closes_after_its_last(tmp_path: Path) -> None:
    recorded, calls = record(tmp_path, lambda: train_plainly(6), memory_steps=((0, 2), (4, 5)))
    assert windows_of(recorded) == ["memory-1", "memory-1", None, None, "memory-2", None]
    assert calls == ["on", "memory-1.pickle", "off", "on", "memory-2.pickle", "off"]
    assert [event.why for event in recorded.events(WindowOpened)] == ["cold start", "schedule"]
    assert [event.step for event in recorded.events(WindowClosed)] == [1, 4]
    assert [event.files for event in recorded.events(WindowClosed)] == [["memory-1.pickle"], ["memory-2.pickle"]]


def test_a_snapshot_is_a_protocol_4_pickle_that_was_written_whole(tmp_path: Path) -> None:
    recorded, _ = record(tmp_path, lambda: train_plainly(3), memory_steps=((0, 1),))
    content = (recorded.rank / "memory-1.pickle").read_bytes()
    assert content[:2] == b"\x80\x04"
    assert pickle.load(io.BytesIO(content)) == SNAPSHOT  # noqa: S301 - this test wrote it
    assert [path.name for path in recorded.rank.iterdir() if path.name.startswith(".")] == []


def test_a_window_that_the_program_ends_in_is_kept(tmp_path: Path) -> None:
    recorded, calls = record(tmp_path, lambda: train_plainly(3), memory_steps=((1, 9),))
    assert windows_of(recorded) == [None, "memory-1", "memory-1"]
    assert calls == ["on", "memory-1.pickle", "off"]


def test_nothing_is_turned_on_where_cuda_begins_after_the_recording(tmp_path: Path) -> None:
    session = open_session(tmp_path)
    history = PretendedHistory()
    memory = subscribed(session, history)
    session.start()
    session.end()
    memory.cuda_began()
    assert history.calls == []


def test_cuda_that_begins_late_still_gives_the_rest_of_the_first_window(tmp_path: Path) -> None:
    recorded, _ = record(tmp_path, lambda: train_plainly(6), memory_steps=((0, 4),), cuda_begins_at=2)
    assert windows_of(recorded) == [None, None, "memory-1", "memory-1", None, None]


@pytest.mark.filterwarnings("ignore:.*kineto.*:UserWarning")
def test_no_step_is_in_a_memory_window_and_a_profilers(tmp_path: Path) -> None:
    recorded, _ = record(
        tmp_path, lambda: train_plainly(8), memory_steps=((0, 4), (5, 6)), trace_steps=((2, 3), (5, 6))
    )
    assert windows_of(recorded) == ["memory-1", "memory-1", "trace-1", None, None, "trace-2", "memory-2", None]


def test_a_window_waits_for_the_programs_own_profiler(tmp_path: Path) -> None:
    def train() -> None:
        with torch.profiler.profile():
            train_plainly(3)
        train_plainly(3)

    recorded, _ = record(tmp_path, train, memory_steps=((1, 2),))
    assert windows_of(recorded) == [None, None, None, "memory-1", None, None]


def test_a_program_that_records_the_history_itself_is_left_alone(tmp_path: Path) -> None:
    def train() -> None:
        train_plainly(2)
        torch.cuda.memory._record_memory_history(enabled=None)
        train_plainly(4)

    before = torch.cuda.memory._record_memory_history
    recorded, calls = record(tmp_path, train, memory_steps=((0, 4), (5, 6)))
    assert calls == ["on", "memory-1.pickle", "off"]
    assert torch.cuda.memory._record_memory_history is before, "the watch for it is over"
    (stopped,) = recorded.events(CollectorStopped)
    assert "records the allocator's history itself" in stopped.reason


def test_a_backend_without_history_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.memory, "get_allocator_backend", lambda: "cudaMallocAsync")
    recorded, calls = record(tmp_path, lambda: train_plainly(2), memory_steps=((0, 1),))
    assert calls == []
    (stopped,) = recorded.events(CollectorStopped)
    assert "cudaMallocAsync" in stopped.reason


def test_a_history_that_cannot_be_written_is_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("no snapshot")

    monkeypatch.setattr(torch.cuda.memory, "_snapshot", fail)
    monkeypatch.delattr(torch._C, "_cuda_record_memory_history", raising=False)  # or a build for CUDA has a second one
    recorded, calls = record(tmp_path, lambda: train_plainly(4), memory_steps=((0, 2),))
    assert calls == ["on", "memory-1.pickle", "off"]
    assert len(recorded.steps) == 4
    assert [event.collector for event in recorded.events(CollectorStopped)] == ["cuda_memory"]


def test_a_peak_opens_one_window_of_the_next_steps(tmp_path: Path) -> None:
    session = open_session(tmp_path)
    session.options = msgspec.structs.replace(session.options, memory_steps=(), triggers=("memory-peak",))
    history = PretendedHistory()
    session.loop.step_ended.append(_pretend_growth_at(21, 24))
    subscribed(session, history).cuda_began()
    session.start()
    train_plainly(28)
    session.end()
    recorded = Recorded(folder=tmp_path)
    assert [step.step for step in recorded.steps if step.window] == [22, 23]
    assert [event.why for event in recorded.events(WindowOpened)] == [
        "step 21 had 400% more memory allocated than any before it"
    ]


def _pretend_growth_at(*numbers: int) -> Callable[[object, StepRecord], None]:
    def grow(_: object, record: StepRecord) -> None:
        peak = 2**30 * 5 ** sum(record.step >= number for number in numbers)
        record.memory = [BoundaryMemory("post_optimizer_step", 0.0, peak, peak)]

    return grow


def test_the_observer_is_quiet_after_the_recording(tmp_path: Path) -> None:
    with SimulatedCuda().in_place() as cuda:
        torch.cuda.init()
        recorded = record_here(tmp_path, lambda: train_plainly(2), memory_steps=())
        (observe,) = cuda.memory.observers
        observe(0, 1, 1, 0)
    assert recorded.events(WindowOpened) == []
    assert recorded.events(DeviceOutOfMemory) == []


def statistic(current: int) -> dict[str, dict[str, int]]:
    """As torch nests a counter of bytes; all others but the current one of all pools are larger."""
    pool = {"current": current, "peak": current + 100, "allocated": current + 200, "freed": current + 300}
    others = {name: number + 1000 for name, number in pool.items()}
    return {"all": pool, "small_pool": others, "large_pool": others}


STATISTICS = {
    "active_bytes": statistic(1),
    "allocated_bytes": statistic(2),
    "inactive_split_bytes": statistic(3),
    "requested_bytes": statistic(4),
    "reserved_bytes": statistic(5),
    "num_alloc_retries": 6,
    "num_ooms": 7,
}


def test_each_counter_of_the_cuda_allocator_goes_into_the_field_of_its_name(
    tmp_path: Path,
) -> None:
    with SimulatedCuda().in_place(), pytest.MonkeyPatch.context() as patched:
        torch.cuda.init()
        patched.setattr(torch._C, "_cuda_memoryStats", lambda device: STATISTICS)
        recorded = record_here(tmp_path, lambda: train_plainly(2), memory_steps=())
    assert recorded.run.memory_source == "CUDA allocator"
    readings = [memory for step in recorded.steps for memory in step.memory]
    assert len(readings) == 2 * len(BOUNDARIES)
    assert {(memory.allocated_bytes, memory.reserved_bytes, memory.active_bytes) for memory in readings} == {(2, 5, 1)}
    assert {(memory.inactive_split_bytes, memory.num_retries) for memory in readings} == {(3, 6)}


HISTORY = {"enabled": "all", "context": "all", "stacks": "python", "max_entries": 1000}


@pytest.mark.parametrize(("release", "more"), [("2.10.0", {}), ("2.11.0", {"skip_actions": ["free_requested"]})])
def test_the_history_has_pythons_stacks_of_allocations_and_frees_and_is_bounded(
    release: str, more: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, object]] = []
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **settings: seen.append(settings))
    monkeypatch.setattr(torch, "__version__", release)
    CudaHistory().turn_on(1000)
    assert seen == [HISTORY | more]
