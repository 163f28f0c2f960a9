"""The replay of allocation windows against a model that keeps a plain dictionary of live blocks."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efprof.artifacts.allocations import AllocationWindow
from efprof.artifacts.steps import BoundaryMemory
from efprof.facts.peak.live_memory import replay, window_peaks
from tests.facts.allocations import allocation
from tests.support.builders import START_NS, make_step, write_run

Moves = Sequence[tuple[int, int]]


def window_of(moves: Moves) -> AllocationWindow:
    """One event a nanosecond."""
    events = tuple(allocation(time, address, num_bytes) for time, (address, num_bytes) in enumerate(moves))
    return AllocationWindow(name="allocations-1.parquet", events=events)


def model_of(moves: Moves, share: dict[int, float] | None = None) -> list[float]:
    """Live bytes after each event, the slow way; `share` of the bytes of an event's block are left out."""
    alive: dict[int, float] = {}
    totals = []
    for place, (address, num_bytes) in enumerate(moves):
        alive.pop(address, None)
        if num_bytes > 0:
            alive[address] = num_bytes * (1 - (share or {}).get(place, 0.0))
        totals.append(sum(alive.values()))
    return totals


moves = st.lists(st.tuples(st.integers(1, 6), st.sampled_from([-8, -1, 1, 8, 64, 512])), min_size=1, max_size=60)


@given(moves)
def test_live_bytes_are_those_of_the_plain_model(moves: Moves) -> None:
    assert replay(window_of(moves), []).live_bytes.tolist() == model_of(moves)


@given(moves, st.sampled_from([0.25, 0.5, 1.0]), st.data())
def test_the_peak_without_blocks_is_that_of_the_model_without_them(
    moves: Moves, share: float, data: st.DataObject
) -> None:
    allocations = [place for place, (_, num_bytes) in enumerate(moves) if num_bytes > 0]
    removed = data.draw(st.lists(st.sampled_from(allocations), unique=True)) if allocations else []
    expected = max(model_of(moves, dict.fromkeys(removed, share)))
    assert replay(window_of(moves), []).peak_without(removed, share) == int(expected)


def test_events_are_put_into_the_stage_they_happened_in() -> None:
    step = make_step(0)  # forward lasts from 1 ms to 5 ms, backward to 13 ms
    times = [START_NS + round(ms * 1e6) for ms in (0.5, 2, 4, 6)]
    events = tuple(allocation(time, place, 8) for place, time in enumerate(times))
    window = replay(AllocationWindow(name="", events=events), [step])
    stages = [stretch.stage if (stretch := window.stretch_of(index)) else None for index in range(4)]
    assert stages == ["data", "forward", "forward", "backward"]


# The highest instant inside a step, from what was in use at a boundary and what a window saw come and go.


@pytest.mark.parametrize(
    ("boundaries", "peak_bytes"),
    [
        # 100 bytes are the window's own at the boundary, so 1,000 are older; at 40 us 900 more are alive for a moment.
        ([BoundaryMemory("pre_forward", 20.0, 1_100, 2_000)], 2_000),
        # Between the boundaries 300 bytes come and 700 of the 1,000 older ones go, of which no event tells.
        ([BoundaryMemory("pre_forward", 20.0, 1_100, 2_000), BoundaryMemory("pre_backward", 35.0, 700, 2_000)], 1_300),
    ],
)
def test_a_peak_adds_what_was_there_before_and_counts_what_is_freed_within_the_window_once(
    boundaries: list[BoundaryMemory], peak_bytes: int, tmp_path: Path
) -> None:
    step = make_step(0, window="trace-1", memory=boundaries)
    moves = ((10, 1, 100), (30, 2, 300), (40, 3, 600), (50, 3, -600))
    events = [allocation(START_NS + at_us * 1000, address, num_bytes) for at_us, address, num_bytes in moves]
    assert window_peaks(write_run(tmp_path / "run", steps=[step], allocations=[events])) == (peak_bytes,)
    assert window_peaks(write_run(tmp_path / "second", steps=[make_step(0)])) == ()
