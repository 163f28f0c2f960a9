"""The replay of allocation windows against a model that keeps a plain dictionary of live blocks."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from efprof.artifacts.allocations import AllocationWindow
from efprof.facts.peak.live_memory import replay
from tests.facts.allocations import allocation
from tests.support.builders import START_NS, make_step

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


@given(moves, st.data())
def test_the_blocks_alive_at_any_instant_add_up_to_the_live_bytes(moves: Moves, data: st.DataObject) -> None:
    window = replay(window_of(moves), [])
    index = data.draw(st.integers(0, len(moves) - 1))
    assert sum(moves[block][1] for block in window.alive_after(index)) == window.live_bytes[index]


@given(moves, st.sampled_from([0.25, 0.5, 1.0]), st.data())
def test_the_peak_without_blocks_is_that_of_the_model_without_them(
    moves: Moves, share: float, data: st.DataObject
) -> None:
    allocations = [place for place, (_, num_bytes) in enumerate(moves) if num_bytes > 0]
    removed = data.draw(st.lists(st.sampled_from(allocations), unique=True)) if allocations else []
    expected = max(model_of(moves, dict.fromkeys(removed, share)))
    assert replay(window_of(moves), []).peak_without(removed, share) == int(expected)


def test_the_release_of_an_older_block_changes_nothing() -> None:
    assert replay(window_of([(1, -64), (2, 8)]), []).live_bytes.tolist() == [0, 8]


def test_events_are_put_into_the_stage_they_happened_in() -> None:
    step = make_step(0)  # forward lasts from 1 ms to 5 ms, backward to 13 ms
    times = [START_NS + round(ms * 1e6) for ms in (0.5, 2, 4, 6)]
    events = tuple(allocation(time, place, 8) for place, time in enumerate(times))
    window = replay(AllocationWindow(name="", events=events), [step])
    stages = [stretch.stage if (stretch := window.stretch_of(index)) else None for index in range(4)]
    assert stages == ["data", "forward", "forward", "backward"]
