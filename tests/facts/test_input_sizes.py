"""By how much the inputs of the forward pass's operators grew between profiler windows."""

from pathlib import Path
from typing import Any

import pytest

from efprof.facts.input_sizes import InputGrowth
from efprof.facts.run import open_run
from efprof.model import NotRecorded
from tests.builders import make_steps, trace_event, write_run

WINDOWS = {5: "trace-1", 60: "trace-2"}
FORWARD_MS = 1.0
"""Where the forward stage begins in a step of `make_steps`: it ends 4 ms later."""


def call(name: str, at_ms: float, length_ms: float, *sizes: Any) -> tuple[str, float, float, Any]:
    return name, at_ms, length_ms, list(sizes)


def growth(folder: Path, *windows: list[tuple[str, float, float, Any]]) -> float:
    traces = [
        [
            trace_event(name, 1000.0 * step + at, ms, category="cpu_op", **{"Input Dims": sizes})
            for name, at, ms, sizes in calls
        ]
        for step, calls in zip(WINDOWS, windows, strict=False)
    ]
    return write_run(folder, steps=make_steps(80, window=WINDOWS.get), traces=traces).get(InputGrowth).factor


def test_the_input_that_grew_most_counts_since_others_may_be_weights(tmp_path: Path) -> None:
    early, late = ([call("aten::addmm", FORWARD_MS, 2.0, [8], [16, n], [n, 8])] for n in (10, 25))
    early[0][3][2] = late[0][3][2] = [1000, 8]
    assert growth(tmp_path / "run", early, late) == 2.5


def test_a_list_of_tensors_counts_as_all_of_them(tmp_path: Path) -> None:
    early = [call("aten::cat", FORWARD_MS, 2.0, [[4, 2], [4, 1]], [])]
    late = [call("aten::cat", FORWARD_MS, 2.0, [[4, 2], [4, 2], [4, 2]], [])]
    assert growth(tmp_path / "run", early, late) == 2.0


def test_an_operator_with_a_quarter_of_the_time_does_not_make_data_longer(tmp_path: Path) -> None:
    kept = call("aten::addmm", FORWARD_MS, 2.0, [16, 8])
    early, late = ([kept, call("aten::mean", FORWARD_MS + 2, 0.6, [n, 8])] for n in (10, 900))
    assert growth(tmp_path / "run", early, late) == 1.0


def test_an_operator_s_time_is_its_own_without_that_of_those_it_calls(tmp_path: Path) -> None:
    outer = call("aten::outer", FORWARD_MS, 3.0, [16, 8])
    early, late = ([outer, call("aten::inner", FORWARD_MS + 0.1, 2.8, [n, 8])] for n in (10, 30))
    assert growth(tmp_path / "run", early, late) == 3.0


def largest(folder: Path, early: list[Any], late: list[Any]) -> float:
    growth(folder, *([call("aten::stack", FORWARD_MS, 2.0, *sizes)] for sizes in (early, late)))
    return open_run(folder).get(InputGrowth).largest_factor


def test_more_tensors_of_one_size_are_no_larger_ones(tmp_path: Path) -> None:
    assert largest(tmp_path / "more", [[[4, 2]]], [[[4, 2], [4, 2], [4, 2]]]) == 1.0
    assert largest(tmp_path / "larger", [[[4, 2]]], [[[4, 2], [4, 6]]]) == 3.0


def test_what_runs_outside_of_the_forward_pass_does_not_count(tmp_path: Path) -> None:
    early, late = (
        [call("aten::addmm", FORWARD_MS, 1.0, [16, 8]), call("aten::mul", FORWARD_MS + 5, 3.0, [n])] for n in (10, 90)
    )
    assert growth(tmp_path / "run", early, late) == 1.0


@pytest.mark.parametrize("sizes", ["", "[8, 8]", [None], [["a"]]])
def test_sizes_that_are_none_count_nothing(sizes: Any, tmp_path: Path) -> None:
    calls = [("aten::addmm", FORWARD_MS, 2.0, sizes)]
    assert growth(tmp_path / "run", calls, calls) <= 1.0


def test_one_window_tells_nothing(tmp_path: Path) -> None:
    assert growth(tmp_path / "run", [call("aten::addmm", FORWARD_MS, 2.0, [16, 8])]) == 1.0


def test_without_a_trace_it_is_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match="trace-<n>"):
        growth(tmp_path / "run")
