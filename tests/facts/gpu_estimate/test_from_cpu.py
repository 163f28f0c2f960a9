"""A CPU recording played on a device that nobody has: worked out by hand, and by what must hold of any recording."""

import dataclasses
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from efprof.artifacts.allocations import AllocationEvent, AllocationWindow
from efprof.artifacts.steps import StepRecord
from efprof.facts.allocator.history import History
from efprof.facts.allocator.settings import MIB, AllocatorSettings, parse_configuration
from efprof.facts.allocator.what_if import WhatIf
from efprof.facts.gpu_estimate.from_cpu import (
    AllocationTrace,
    older_memory,
    passage_of,
    peak_allocated_bytes,
    play,
)
from efprof.facts.gpu_estimate.gpu_estimate import GpuEstimate
from efprof.facts.peak.live_memory import LiveMemory, StageStretch, replay
from efprof.facts.run.run import Run, open_run
from tests.facts.allocations import allocation
from tests.support.builders import make_step, make_steps, write_allocations, write_run

RUNS = Path(__file__).parents[2] / "runs"
DEFAULT = AllocatorSettings()
OTHERS = ["", "expandable_segments:True", "max_split_size_mb:64", "large_segment_size_mb:64"]

# Of make_step: 1 ms of data, 4 of forward, 8 of backward, 2 of the optimizer.
LOADER, BATCH, ACTIVATION, GRADIENT = 1, 2, 3, 4
ONE_STEP = (
    (0.2, LOADER, 3 * MIB), (0.4, LOADER, -3 * MIB), (0.5, BATCH, 4 * MIB), (2.0, ACTIVATION, 30 * MIB),
    (6.0, GRADIENT, 12 * MIB), (7.0, ACTIVATION, -30 * MIB),
)  # fmt: skip
"""At milliseconds from its begin. The batch and the gradient stay until the next step."""


def events_at(start_ns: int, moves: tuple[tuple[float, int, int], ...]) -> list[AllocationEvent]:
    return [
        allocation(start_ns + round(ms * 1e6), address, size, f"train.py:{address}:f", operation="aten::relu")
        for ms, address, size in moves
    ]


def steps(
    *, gradient_bytes: int = 12 * MIB, state_bytes: int = 24 * MIB, boundary: int = 300 * MIB
) -> list[StepRecord]:
    """Step 0 makes the optimizer's state; step 5 is the window's, the batch and the gradient of step 4 are there."""
    records = make_steps(6, gradient_bytes=gradient_bytes, num_gradients=1)
    for here, size in zip(records[0].memory, (100, 130, 130, 112, 112 + state_bytes / MIB), strict=True):
        here.allocated_bytes = round(size * MIB)
    records[5].window = "trace-1"
    records[5].memory[0].allocated_bytes = boundary + 4 * MIB  # the window's own batch is there by then
    return records


def one_step_run(folder: Path, **fields: int) -> Run:
    records = steps(**fields)
    run = write_run(folder / "run", steps=records, memory_source="C allocator (malloc)")
    write_allocations(run.rank_folder, 1, events_at(records[5].started_ns, ONE_STEP))
    return run


def passage_at(moves: tuple[tuple[float, int, int], ...]) -> AllocationTrace:
    record = make_step(0)
    return passage_of(replay(AllocationWindow(name="", events=tuple(events_at(record.started_ns, moves))), [record]))


# What a window asks for.


def test_what_the_fetch_returns_stays_on_the_host_and_a_backward_pass_leaves_gradients() -> None:
    passage = passage_at(ONE_STEP)
    assert [num_bytes // MIB for _, num_bytes in passage.moves] == [4, 30, 12, 0]
    assert passage.left_bytes == 16 * MIB
    passage = passage_at(((0.5, 1, MIB), (2.0, 1, -MIB)))
    assert [num_bytes for _, num_bytes in passage.moves] == [MIB, 0]
    passage = passage_at(((2.0, 1, 5), (6.0, 2, 7), (6.5, 3, 9), (7.0, 2, -7), (14.0, 3, -9)))
    assert passage.gradient_bytes == (9,)
    passage = passage_at(((2.0, 1, 5), (3.0, 1, 7), (4.0, 9, -100)))
    assert passage.moves == ((0, 5), (0, 0), (1, 7))


# When a step's tensors are returned.


def kinds(passage: AllocationTrace) -> list[str]:
    """Of the second of two rounds: `+` and MiB asked for, `-` and MiB returned."""
    entries = play([passage], (), (), num_rounds=2)
    sizes = {entry.addr: entry.size for entry in entries if entry.action == "alloc"}
    signs = {"alloc": "+", "free_completed": "-"}
    return [f"{signs[entry.action]}{sizes[entry.addr] // MIB}" for entry in entries[len(passage.moves) :]]


def test_a_batch_is_returned_after_the_next_is_there_and_a_gradient_before_the_backward_pass() -> None:
    assert kinds(passage_at(ONE_STEP)) == ["+4", "-4", "+30", "-12", "+12", "-30"]


@pytest.mark.parametrize(("fall", "most"), [(0, 12 + 24 + 4 + 12 + 30), (12, 12 + 24 + 4 + 30)])
def test_gradients_are_gone_in_the_forward_pass_where_memory_falls_before_it(
    tmp_path: Path, fall: int, most: int
) -> None:
    """No window of one step shows it: what a step makes and the next one clears is in none of them."""
    records = steps()
    for record in records[1:]:
        for here in record.memory:
            here.allocated_bytes = (300 + fall * (here.boundary == "post_optimizer_step")) * MIB
    run = write_run(tmp_path / "run", steps=records, memory_source="C allocator (malloc)")
    moves = (*ONE_STEP[:4], (6.0, ACTIVATION, -30 * MIB), (7.0, GRADIENT, 12 * MIB))
    write_allocations(run.rank_folder, 1, events_at(records[5].started_ns, moves))
    assert run.get(GpuEstimate).peak_allocated_bytes == most * MIB


def test_the_optimizers_state_is_made_in_the_first_round_only_and_after_the_backward_pass() -> None:
    passage = passage_at((*ONE_STEP, (14.0, 5, 1), (14.5, 5, -1)))
    entries = play([passage], (7,), (8,), num_rounds=2)
    sizes = [entry.size for entry in entries if entry.action == "alloc"]
    assert sizes == [7, 4 * MIB, 30 * MIB, 12 * MIB, 8, 1, 4 * MIB, 30 * MIB, 12 * MIB, 1]


# What was there before.


def test_what_is_older_is_told_by_gradients_and_the_first_step(tmp_path: Path) -> None:
    estimate = one_step_run(tmp_path).get(GpuEstimate)
    older = estimate.older
    assert (older.first, older.states) == ([12 * MIB], [12 * MIB, 12 * MIB])
    assert (older.parameter_bytes, older.state_bytes, older.gradient_bytes) == (12 * MIB, 24 * MIB, 0)
    assert (older.boundary_bytes, older.carried_bytes) == (300 * MIB, 16 * MIB)
    assert older.rest_bytes == (300 - 12 - 24 - 16) * MIB
    assert older.sizes == (12 * MIB,)


def test_a_rise_beyond_whole_copies_of_the_parameters_is_one_block_and_gradients_may_be_kept(tmp_path: Path) -> None:
    far = one_step_run(tmp_path / "far", state_bytes=16 * MIB).get(GpuEstimate).older
    assert far.states == [12 * MIB, 4 * MIB]
    kept = one_step_run(tmp_path / "kept", gradient_bytes=100 * MIB, state_bytes=0).get(GpuEstimate).older
    assert (kept.parameter_bytes, kept.gradient_bytes) == (100 * MIB, 100 * MIB), "which no step makes"
    assert kept.sizes == (100 * MIB,)


def test_a_window_of_the_first_step_shows_the_optimizers_state_itself() -> None:
    records = steps()
    record = msgspec.structs.replace(records[0], window="trace-1")
    window = replay(
        AllocationWindow(name="allocations-1.parquet", events=tuple(events_at(record.started_ns, ONE_STEP))), [record]
    )
    assert older_memory([record], [window], [passage_of(window)]).state_bytes == 0


# What holds of every recording.


@st.composite
def passages(draw: st.DrawFn) -> AllocationTrace:
    """Any order of requests and returns, some for good, some in the data stage or the backward pass."""
    sizes = st.sampled_from([1, 600, MIB, MIB + 1, 3 * MIB, 12 * MIB, 33 * MIB])
    blocks = draw(st.lists(st.tuples(sizes, st.booleans()), min_size=1, max_size=25))
    moves = [(block, size) for block, (size, _) in enumerate(blocks)]
    for block, (size, is_returned) in enumerate(blocks):
        if is_returned:
            after = next(place for place, move in enumerate(moves) if move == (block, size))
            moves.insert(draw(st.integers(after + 1, len(moves))), (block, -size))
    events = tuple(allocation(time, block, size, f"a.py:{block % 3}:f") for time, (block, size) in enumerate(moves))
    cuts = sorted(draw(st.lists(st.integers(0, len(events)), min_size=3, max_size=3)))
    stages = ("data", "forward", "backward", "optimizer")
    window = replay(AllocationWindow(name="", events=events), [])
    stretches = tuple(
        StageStretch(step=0, stage=stage, first=first, end=end)
        for stage, first, end in zip(stages, [0, *cuts], [*cuts, len(events)], strict=True)
        if first < end
    )
    return passage_of(dataclasses.replace(window, stretches=stretches))


block_sizes = st.lists(st.integers(1, 30 * MIB), max_size=4)
programs = st.lists(passages(), min_size=1, max_size=2)


@given(programs, block_sizes, block_sizes)
def test_each_block_is_returned_once_at_most_and_after_it_was_asked_for(
    windows: list[AllocationTrace], first: list[int], states: list[int]
) -> None:
    live = set()
    for entry in play(windows, first, states, num_rounds=3):
        if entry.action == "alloc":
            assert entry.addr not in live
            live.add(entry.addr)
        else:
            live.remove(entry.addr)
    assert len(live) == len(first) + len(states) + len(windows[-1].left)


@given(programs, block_sizes, block_sizes, st.sampled_from(OTHERS))
def test_no_less_is_reserved_than_was_in_use_and_more_rounds_never_lower_it(
    windows: list[AllocationTrace], first: list[int], states: list[int], text: str
) -> None:
    settings = parse_configuration(text)
    peaks = []
    for num_rounds in (1, 2, 4):
        entries = play(windows, first, states, num_rounds=num_rounds)
        program = WhatIf(History(device=0, entries=entries, settings=AllocatorSettings()))
        peaks.append(program.run(settings).peak_reserved_low_bytes)
        assert peaks[-1] >= peak_allocated_bytes(entries, settings)
    assert peaks == sorted(peaks)


# What real programs recorded.


@pytest.mark.parametrize("name", ["backward_peak-sick", "backward_peak-healthy", "blocking_scalar_read-healthy"])
def test_a_window_played_once_has_the_peak_that_it_had(name: str) -> None:
    for window in open_run(RUNS / name).get(LiveMemory).windows:
        entries = play([passage_of(window)], (), (), num_rounds=1)
        peak = peak_allocated_bytes(entries, DEFAULT)
        most_blocks = len(window.alive_after(window.peak_index))
        assert window.peak_bytes <= peak <= window.peak_bytes + 512 * most_blocks + 0.01 * window.peak_bytes
