"""By how much more gradients later backward passes compute."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from efprof.facts.gradient_growth import ACCUMULATING, GradientGrowth
from efprof.model import ThinEvidence
from tests.builders import make_steps, trace_event, write_run

NUM_STEPS = 120
WINDOWS = {5: "trace-1", 6: "trace-1", 60: "trace-2"}


def accumulated_in(num_gradients: int, *steps: int) -> list[Any]:
    """A window's backward passes, and one node that belongs to no step of it."""
    nodes = [
        trace_event(ACCUMULATING, 1000.0 * step + 6 + 0.1 * number, 0.05, category="cpu_op")
        for step in steps
        for number in range(num_gradients)
    ]
    return [*nodes, trace_event(ACCUMULATING, 1000.0 * steps[-1] + 500, 0.05, category="cpu_op")]


def growth(
    folder: Path, *, windows: tuple[int, int] | None = None, counted: Callable[[int], int | None] = lambda _: None
) -> GradientGrowth:
    """Of a run whose windows and records tell of so many gradients."""
    traces = [accumulated_in(windows[0], 5, 6), accumulated_in(windows[1], 60)] if windows else []
    sizes = {step: None if (count := counted(step)) is None else 100 * count for step in range(NUM_STEPS)}
    steps = make_steps(NUM_STEPS, window=WINDOWS.get, num_gradients=counted, gradient_bytes=sizes.get)
    return write_run(folder, steps=steps, traces=traces).get(GradientGrowth)


def test_the_first_window_and_the_last_tell_of_a_step_s_gradients(tmp_path: Path) -> None:
    grown = growth(tmp_path, windows=(2, 8))
    assert (grown.early, grown.late, grown.factor, grown.byte_factor) == (2, 8, 4, 1)


def test_a_step_whose_gradients_were_not_counted_has_as_many_as_the_last_one_counted(tmp_path: Path) -> None:
    grown = growth(tmp_path, counted={0: 2, 20: 4, 70: 12}.get)
    assert (grown.early, grown.late, grown.byte_factor) == (4, 12, 3)


def test_what_differs_more_counts(tmp_path: Path) -> None:
    assert growth(tmp_path / "windows", windows=(2, 8), counted=lambda _: 3).factor == 4
    assert growth(tmp_path / "records", windows=(2, 2), counted={0: 2, 70: 12}.get).factor == 6


def test_where_nothing_is_known_nothing_grew(tmp_path: Path) -> None:
    grown = growth(tmp_path)
    assert (grown.factor, grown.byte_factor) == (1, 1)


def test_a_short_run_is_thin_evidence(tmp_path: Path) -> None:
    with pytest.raises(ThinEvidence):
        write_run(tmp_path, steps=make_steps(10)).get(GradientGrowth)
