"""The highest instant inside a step, from what was in use at a boundary and what a window saw come and go."""

import msgspec

from efprof.artifacts.allocations import AllocationEvent
from efprof.artifacts.steps import BoundaryMemory
from efprof.facts.peak.live_memory import window_peaks
from tests.facts.allocations import allocation
from tests.support.builders import make_step, write_allocations, write_run


def events_after(start_ns: int, *moves: tuple[int, int, int]) -> list[AllocationEvent]:
    """Allocations and releases at microseconds after `start_ns`."""
    return [allocation(start_ns + at_us * 1000, address, num_bytes) for at_us, address, num_bytes in moves]


def test_a_peak_adds_what_was_there_before_and_counts_what_is_freed_within_the_window_once(tmp_path):
    step = msgspec.structs.replace(
        make_step(0, window="trace-1"), memory=[BoundaryMemory("pre_forward", 20.0, 1_100, 2_000)]
    )
    run = write_run(tmp_path / "run", steps=[step])
    # 100 bytes are the window's own at the boundary, so 1,000 are older; at 40 us 900 more are alive for a moment.
    events = events_after(step.started_ns, (10, 1, 100), (30, 2, 300), (40, 3, 600), (50, 3, -600), (60, 2, -300))
    write_allocations(run.rank_folder, 1, events)
    assert window_peaks(run) == (2_000,)
    step = msgspec.structs.replace(
        make_step(0, window="trace-1"),
        memory=[BoundaryMemory("pre_forward", 20.0, 1_100, 2_000), BoundaryMemory("pre_backward", 35.0, 700, 2_000)],
    )
    run = write_run(tmp_path / "second", steps=[step])
    # Between the boundaries 300 bytes come and 700 of the 1,000 older ones go, of which no event tells.
    events = events_after(step.started_ns, (10, 1, 100), (30, 2, 300), (40, 3, 600), (50, 3, -600))
    write_allocations(run.rank_folder, 1, events)
    assert window_peaks(run) == (1_300,)


def test_a_run_without_allocation_windows_knows_no_peak_within_a_step(tmp_path):
    assert window_peaks(write_run(tmp_path / "run", steps=[make_step(0)])) == ()
