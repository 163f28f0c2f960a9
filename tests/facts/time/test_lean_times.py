"""Times come from the lean window, lines from the full one before it; where the two differ, all from the full one."""

from pathlib import Path
from typing import Any

import pytest

from efprof.facts.run.run import Run
from efprof.facts.time.time_use import TimeUse
from tests.support.builders import make_steps, trace_event, write_run, write_trace

Calls = list[tuple[str, float, float]]  # operators by name, begin and length in milliseconds of the step
FULL: Calls = [("aten::mm", 2, 6), ("aten::add", 11, 2)]
LEAN: Calls = [("aten::mm", 1, 2), ("aten::add", 5, 6)]


def operators(step: int, calls: Calls) -> list[dict[str, Any]]:
    """Each launches a kernel of half its length."""
    found = []
    for id_, (name, start_ms, length_ms) in enumerate(calls):
        at_ms = step * 1000 + start_ms
        found.append(trace_event(name, at_ms, length_ms, category="cpu_op"))
        found.append(trace_event("cudaLaunchKernel", at_ms + 0.1, 0.1, category="cuda_runtime", correlation=id_))
        found.append(trace_event("gemm", at_ms + 0.5, length_ms / 2, category="kernel", thread=7, correlation=id_))
    return found


def recorded(folder: Path, full: Calls, lean: Calls) -> Run:
    """A full window, in which lines 3 and 4 call an operator each, and a lean one; later a pair of longer steps."""
    frames = [
        trace_event("train.py(1): main", 5000, 15),
        trace_event("torch/functional.py(10): one", 5001, 8, call_site="train.py:3:main"),
        trace_event("torch/functional.py(20): other", 5010, 4, call_site="train.py:4:main"),
    ]
    windows = {5: "trace-1", 9: "lean-1", 12: "trace-2", 16: "lean-2"}
    run = write_run(
        folder / "run",
        steps=make_steps(30, window=windows.get, other_ms=lambda step: 16.0 if step in (12, 16) else 0.5),
        sources={"train.py": "def main():\n    while True:\n        torch.one()\n        torch.other()\n"},
        traces=[[*frames, *operators(5, full)], operators(12, full)],
    )
    for step in (9, 16):
        write_trace(run.rank_folder, 3, operators(step, lean))
        (run.rank_folder / "trace-3.json.gz").rename(run.rank_folder / f"{windows[step]}.json.gz")
    return run


def spent_ms(use: TimeUse) -> dict[str, tuple[float, float]]:
    """By operator, on the host and on the device."""
    paths = use.window.paths.root.walk()
    return {path.text: (path.own_ns / 1e6, path.device_ns / 1e6) for path in paths if path.kind == "operator"}


def test_times_are_those_of_the_lean_window_nearest_to_the_median_step(tmp_path: Path) -> None:
    use = recorded(tmp_path, FULL, LEAN).get(TimeUse)
    assert use.window.name == "lean-1, with the lines of trace-1"
    assert spent_ms(use) == {"aten::mm": (2, 1), "aten::add": (6, 3)}
    lines = {str(line.blame): line.device_ms for line in use.lines}
    assert (lines["train.py:3"], lines["train.py:4"]) == (1, 3)
    # Of 1 ms before both operators `main` has half, of 2 ms between them a third, of 4.5 ms after them 1 / 2.5.
    (main,) = (path for path in use.window.paths.root.walk() if path.text == "train.py:1:main")
    assert main.own_ns / 1e6 == pytest.approx(1 / 2 + 2 / 3 + 4.5 / 2.5, abs=1e-3)


def test_an_operator_that_only_one_window_has_is_passed_over(tmp_path: Path) -> None:
    full, lean = [*FULL, ("aten::item", 13.5, 0.2)], [("aten::is_nonzero", 0, 0.1), *LEAN]
    assert spent_ms(recorded(tmp_path, full, lean).get(TimeUse))["aten::add"][0] == 6


def test_where_the_nearest_lean_window_did_something_else_another_one_is_taken(tmp_path: Path) -> None:
    run = recorded(tmp_path, FULL, LEAN)
    write_trace(run.rank_folder, 3, operators(9, [("aten::mm", 1, 2), ("aten::sort", 5, 6)]))
    (run.rank_folder / "trace-3.json.gz").rename(run.rank_folder / "lean-1.json.gz")
    use = run.get(TimeUse)
    assert use.window.name == "lean-2, with the lines of trace-2"


def test_where_no_pair_of_windows_did_the_same_the_last_full_one_is_used(tmp_path: Path) -> None:
    run = recorded(tmp_path, FULL, [("aten::mm", 1, 2), ("aten::sort", 5, 6)])
    assert run.get(TimeUse).window.name == "trace-2"
