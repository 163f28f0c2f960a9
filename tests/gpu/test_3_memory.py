"""Snapshots of the CUDA allocator: from before the model on, late, by the program itself, and when memory runs out."""

from itertools import pairwise
from pathlib import Path

import pytest

from efprof.artifacts.events import CollectorStopped, OutOfMemory, WindowClosed, WindowOpened
from efprof.artifacts.snapshot import read_snapshot
from tests.gpu.cuda_runs import TRAIN_PLAINLY, events_of, needs_cuda, record_text
from tests.recorder.recording import Recorded, line_of

pytestmark = [*needs_cuda, pytest.mark.xdist_group("memory")]

PARAMETER_BYTES = 256 * 512 * 4


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    options = ("--memory-steps", "0:3,6:8", "--trace-steps", "4:6,8:9", "--triggers", "none")
    return record_text(tmp_path_factory.mktemp("memory"), TRAIN_PLAINLY.replace("STEPS", "12"), *options)


def test_windows_of_both_kinds_take_turns_and_leave_none_open(recorded: Recorded) -> None:
    assert recorded.exit_code == 0, recorded.errors
    windows = [step.window for step in recorded.steps]
    late = ["memory-2", "memory-2", "trace-2", None, None, None]
    assert windows == ["memory-1"] * 3 + [None, "trace-1", "trace-1", *late]
    assert recorded.events(CollectorStopped) == []
    opened = [event.window for event in recorded.events(WindowOpened)]
    assert opened == [event.window for event in recorded.events(WindowClosed)]


def test_the_first_window_starts_cold_with_the_model_s_weights_and_replays_from_an_empty_device(
    recorded: Recorded,
) -> None:
    events = events_of(recorded.rank / "memory-1.pickle")
    assert events[0].action == "segment_alloc", "nothing was allocated before"
    weight = next(event for event in events if event.action == "alloc" and event.size == PARAMETER_BYTES)
    assert any(frame["filename"].endswith("train.py") for frame in weight.frames or ())
    live: dict[int, int] = {}
    for event in events:
        if event.action == "alloc":
            live[event.addr] = event.size
        elif event.action == "free_completed":
            assert live.pop(event.addr) == event.size


def test_a_later_window_holds_its_own_steps_alone(recorded: Recorded) -> None:
    events = events_of(recorded.rank / "memory-2.pickle")
    times = [event.time_us or 0 for event in events if event.action == "alloc"]
    first, after = recorded.steps[6], recorded.steps[8]
    assert first.started_ns / 1000 - 1000 <= times[0]
    assert times[-1] <= after.started_ns / 1000 + 1000
    assert all(earlier <= later for earlier, later in pairwise(times))


def test_a_program_that_records_the_history_itself_keeps_its_own(tmp_path: Path) -> None:
    own = tmp_path / "own.pickle"
    before = 'torch.cuda.memory._record_memory_history(stacks="python")\n'
    after = f"torch.cuda.memory._dump_snapshot({str(own)!r})\n"
    text = TRAIN_PLAINLY.replace("STEPS", "8").replace("import torch\n", f"import torch\n{before}") + after
    recorded = record_text(tmp_path, text)
    assert recorded.exit_code == 0, recorded.errors
    assert len(events_of(own)) > 100
    (stopped,) = recorded.events(CollectorStopped)
    assert "records the allocator's history itself" in stopped.reason


GREEDY = """
import torch

weight = torch.ones(1, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(100):
    weight.sum().backward()
    optimizer.step()
    kept = torch.empty(2**45 if step == LAST else 2**20, dtype=torch.uint8, device="cuda")  # request
"""


@pytest.mark.parametrize("last", [2, 6], ids=["in a window", "without history"])
def test_out_of_memory_leaves_a_snapshot_of_that_moment(tmp_path: Path, last: int) -> None:
    recorded = record_text(tmp_path, GREEDY.replace("LAST", str(last)), "--trace-steps", "none")
    assert recorded.run.ended == "out_of_memory"
    (event,) = recorded.events(OutOfMemory)
    assert event.requested_bytes == 2**45
    assert f"train.py:{line_of(tmp_path / 'train.py', 'request')}:" in event.site
    snapshot = read_snapshot(recorded.rank / "memory-out-of-memory.pickle")
    assert snapshot.segments
    failed = [entry for trace in snapshot.device_traces for entry in trace if entry.action == "oom"]
    assert [entry.size for entry in failed] == ([2**45] if last == 2 else [])


def test_a_program_that_survives_running_out_of_memory_ends_well(tmp_path: Path) -> None:
    text = GREEDY.replace("LAST", "-1") + (
        "for _ in range(50):\n"
        "    try:\n"
        "        torch.empty(2**45, dtype=torch.uint8, device='cuda')\n"
        "    except torch.cuda.OutOfMemoryError:\n"
        "        pass\n"
    )
    recorded = record_text(tmp_path, text, "--windows", "none")
    assert recorded.run.ended == "finished", recorded.errors
    assert (recorded.rank / "memory-out-of-memory.pickle").exists()
