"""Memory through the steps of a window: what it is for, whose line made most of it, and which stage ran."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from efprof.artifacts.allocations import AllocationEvent
from efprof.artifacts.steps import StepRecord
from efprof.facts.peak.window_memory import (
    MAX_INSTANTS,
    WindowMemory,
    drawn_instants,
    sums_at,
)
from efprof.facts.run.run import Run
from efprof.model import Series, SeriesLine
from efprof.units import MIB
from tests.facts.peak.test_peak_composition import (
    BEFORE,
    CALL,
    NARROW,
    SOURCES,
    STEP,
    WIDE,
    Recording,
    run_of,
    stacked_blocks,
)
from tests.support.builders import make_step, write_run


def picture_of(run: Run) -> Series:
    return run.get(WindowMemory).series


def line_of(series: Series, label: str) -> SeriesLine:
    return next(line for line in series.lines if line.label == label)


def note_at(line: SeriesLine, at_ms: float) -> str:
    """What is told of the last point up to then."""
    return line.notes[max(place for place, x in enumerate(line.x) if x <= at_ms)]


def window_step(step: int, window: str = "trace-1") -> StepRecord:
    return make_step(step, window=window, allocated_bytes=[BEFORE])


def a_step_later(recording: Recording) -> list[AllocationEvent]:
    """The same events in the step after, at addresses of their own."""
    return [
        event._replace(time_ns=event.time_ns + 1_000_000_000, address=event.address + 1000)
        for event in recording.events
    ]


def test_the_layers_add_up_to_what_was_there_and_what_is_alive_and_the_stages_are_bands(tmp_path: Path) -> None:
    series = picture_of(run_of(tmp_path, stacked_blocks()))
    assert [line.label for line in series.lines] == ["held before", "activations", "work space"]
    totals = [sum(sizes) for sizes in zip(*(line.y for line in series.lines), strict=True)]
    assert totals[0] == totals[-1] == BEFORE
    assert max(totals) == BEFORE + 47 * MIB
    assert {line.x for line in series.lines} == {series.lines[0].x}
    assert [(band.stage, band.start, band.end) for band in series.bands] == [
        ("data", 0.0, 1.0),
        ("forward", 1.0, 5.0),
        ("backward", 5.0, 13.0),
        ("optimizer", 13.0, 15.0),
    ]


def test_each_layer_names_the_line_that_has_most_of_it_at_that_instant(tmp_path: Path) -> None:
    recording = Recording()
    wide = recording.make(2, 5, CALL, WIDE)
    recording.make(3, 4, CALL, NARROW)
    recording.make(4, 4, CALL, NARROW)
    recording.free(7, wide)
    activations = line_of(picture_of(run_of(tmp_path, recording)), "activations")
    assert note_at(activations, 2.5) == "model.py:10 has 5.00 MiB of it"
    assert note_at(activations, 3.5) == "model.py:10 has 5.00 MiB of it"
    assert note_at(activations, 4.5) == "model.py:11 has 8.00 MiB of it"
    assert note_at(activations, 1.0) == "", "none was alive yet"


def test_the_fullest_of_several_windows_is_shown_unless_its_start_is_not_known(tmp_path: Path) -> None:
    windows = [stacked_blocks(num_blocks=2).events, a_step_later(stacked_blocks(num_blocks=4))]
    steps = [window_step(STEP), window_step(STEP + 1, window="trace-2")]
    series = picture_of(write_run(tmp_path, steps=steps, sources=SOURCES, allocations=windows))
    assert series.title.endswith("in step 6")
    steps = [window_step(STEP), make_step(STEP + 1, window="trace-2", allocated_bytes=[])]
    series = picture_of(write_run(tmp_path / "second", steps=steps, sources=SOURCES, allocations=windows))
    assert series.title.endswith("in step 5")


def test_a_window_of_several_steps_is_shown_whole_and_what_is_not_known_of_it_is_left_out(tmp_path: Path) -> None:
    events = [*stacked_blocks().events, *a_step_later(stacked_blocks())]
    steps = [window_step(STEP), window_step(STEP + 1)]
    series = picture_of(write_run(tmp_path / "both", steps=steps, sources=SOURCES, allocations=[events]))
    assert series.title.endswith("in steps 5 to 6")
    assert {band.stage for band in series.bands if band.start >= 1000.0} == {band.stage for band in series.bands}
    assert series.lines[0].x[-1] == 1015.0
    steps = [make_step(STEP, allocated_bytes=[])]
    series = picture_of(write_run(tmp_path, steps=steps, sources=SOURCES, allocations=[stacked_blocks().events]))
    assert [line.label for line in series.lines] == ["activations", "work space"]
    assert note_at(line_of(series, "activations"), 3) == "model.py:10 has 40.0 MiB of it"


def test_a_long_window_is_drawn_from_few_points_with_its_peak(tmp_path: Path) -> None:
    recording = Recording()
    for number in range(4000):
        recording.free(2, recording.make(2, 700 if number == 2345 else 1, CALL, WIDE))
    series = picture_of(run_of(tmp_path, recording))
    work = line_of(series, "work space")
    assert len(work.x) <= MAX_INSTANTS
    assert max(work.y) == 700 * MIB
    assert note_at(work, work.x[work.y.index(700.0 * MIB)]) == "model.py:10 has 700 MiB of it"


# A long history is drawn from few instants, and none of its heights is lost.


def test_a_short_history_is_drawn_whole_and_of_a_long_one_ends_peaks_and_valleys() -> None:
    assert list(drawn_instants(np.arange(500), 20, 310)) == list(range(20, 310))
    values = np.arange(100_000) % 1000
    values[54_321], values[67_890] = 5_000, -5_000
    drawn = drawn_instants(values, 10, 99_000)
    assert len(drawn) <= MAX_INSTANTS - 2
    assert {10, 54_321, 67_890, 98_999} <= set(drawn)
    assert list(drawn) == sorted(set(drawn))


@given(
    moves=st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 30), st.integers(-50, 50)), min_size=1),
    places=st.sets(st.integers(-1, 30), min_size=1),
)
def test_what_an_owner_has_is_the_sum_of_its_changes_so_far(
    moves: list[tuple[int, int, int]], places: set[int]
) -> None:
    drawn = np.array(sorted(places))
    sums = sums_at(drawn, np.array(moves).T, 4)
    for owner in range(4):
        for column, place in enumerate(drawn):
            assert sums[owner, column] == sum(amount for whose, at, amount in moves if whose == owner and at <= place)
