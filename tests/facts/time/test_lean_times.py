"""Times come from the lean window, lines from the full one before it; where the two differ, all from the full one."""

from pathlib import Path
from typing import Any

import pytest

from efprof.facts.run.run import Run
from efprof.facts.time.time_use import TimeUse, time_evidence
from efprof.model import Narrative
from tests.support.builders import make_steps, trace_event, write_run

Calls = list[tuple[str, float, float]]
"""Operators by name, begin and length in milliseconds of the step."""
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
    """A run with a full window at step 5, in which lines 3 and 4 each call an operator, and a lean one at step 9."""
    frames = [
        trace_event("train.py(1): main", 5000, 15),
        trace_event("torch/functional.py(10): one", 5001, 8, call_site="train.py:3:main"),
        trace_event("torch/functional.py(20): other", 5010, 4, call_site="train.py:4:main"),
    ]
    windows = {5: "trace-1", 9: "lean-1"}
    run = write_run(
        folder / "run",
        steps=make_steps(30, window=windows.get),
        sources={"train.py": "def main():\n    while True:\n        torch.one()\n        torch.other()\n"},
        traces=[[*frames, *operators(5, full)], operators(9, lean)],
    )
    (run.rank_folder / "trace-2.json.gz").rename(run.rank_folder / "lean-1.json.gz")
    return run


def spent_ms(use: TimeUse) -> dict[str, tuple[float, float]]:
    """By operator, on the host and on the device."""
    paths = [path for path in use.window.paths.root.walk() if path.kind == "operator"]
    return {path.text: (path.own_ns / 1e6, path.device_ns / 1e6) for path in paths}


def test_times_are_those_of_the_lean_window_at_the_lines_of_the_full_one(tmp_path: Path) -> None:
    use = recorded(tmp_path, FULL, LEAN).get(TimeUse)
    assert (use.window.name, use.not_lean) == ("lean-1, with the lines of trace-1", "")
    assert spent_ms(use) == {"aten::mm": (2, 1), "aten::add": (6, 3)}
    assert {str(line.blame): line.device_ms for line in use.lines if line.device_ms} == {
        "train.py:3": 1,
        "train.py:4": 3,
    }
    # `main` has half of what lies before both operators, a third of what lies between them, 1 of 2.5 ms after them.
    (main,) = (path for path in use.window.paths.root.walk() if path.text == "train.py:1:main")
    assert main.own_ns / 1e6 == pytest.approx(1 / 2 + 2 / 3 + 4.5 / 2.5, abs=1e-3)


def test_an_operator_that_only_one_window_has_is_passed_over(tmp_path: Path) -> None:
    full, lean = [*FULL, ("aten::item", 13.5, 0.2)], [("aten::is_nonzero", 0, 0.1), *LEAN]
    assert spent_ms(recorded(tmp_path, full, lean).get(TimeUse))["aten::add"][0] == 6


def test_windows_that_did_not_do_the_same_are_told_and_the_full_one_is_used(tmp_path: Path) -> None:
    run = recorded(tmp_path, FULL, [("aten::mm", 1, 2), ("aten::sort", 5, 6)])
    assert run.get(TimeUse).window.name == "trace-1"
    (known,) = (one for one in time_evidence(run) if isinstance(one, Narrative))
    assert known.paragraphs[1].startswith("Only 25 % of what lean-1 spent in operators")
