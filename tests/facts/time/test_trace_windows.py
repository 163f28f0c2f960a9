"""Which of the user's lines, and which functions outside of them, the time of a recorded window is spent under."""

from pathlib import Path
from typing import Any

import pytest

from efprof.artifacts.trace.read import trace_paths
from efprof.facts.time.trace_windows import TraceWindow, TraceWindows, num_warming_up
from efprof.model import NotRecorded
from tests.facts.time.traces import event, foreign_run, kernel, launch
from tests.support.builders import make_step, make_steps, trace_event, write_run

SOURCE = """\
def main():
    for batch in loader:
        train(batch)


def train(batch):
    out = model(batch)
    total = sum(x.item() for x in out)
    loss = out + out
    loss.backward()
"""
FIRST_STEP_MS = 5000
"""The window's first step begins so long after START_NS."""


def window_of(folder: Path, *events: dict[str, Any], steps: tuple[int, ...] = (5,)) -> TraceWindow:
    made = [make_step(step, window="trace-1") for step in steps]
    run = write_run(folder / "run", steps=made, sources={"train.py": SOURCE}, traces=[events])
    (window,) = run.get(TraceWindows).windows
    return window


def call(name: str, start_ms: float, duration_ms: float, site: str | None = None, **fields: Any) -> dict[str, Any]:
    arguments = {"call_site": site} if site else {}
    return trace_event(name, FIRST_STEP_MS + start_ms, duration_ms, **arguments, **fields)


def own_ms(window: TraceWindow) -> dict[str, dict[str, float]]:
    """By line and stage, where any was spent; a function's name ends in `()`."""
    found: dict[str, dict[str, float]] = {}
    for (kind, place), paths in window.lines.items():
        for path in paths:
            if path.own_ns:
                stages = found.setdefault(place + "()" * (kind == "function"), {})
                stages[path.stage] = stages.get(path.stage, 0.0) + path.own_ns / 1e6
    return found


def test_a_comprehension_counts_once_for_the_line_it_is_written_in(tmp_path: Path) -> None:
    window = window_of(
        tmp_path,
        call("<built-in function sum>", 1, 6, "train.py:8:train"),
        call("train.py(8): <genexpr>", 2, 4, "train.py:8:train"),
        call("<built-in method item>", 3, 2, "train.py:8:<genexpr>"),
    )
    assert own_ms(window) == {"train.py:8": {"other": 6.0}}


def test_a_script_s_loop_is_not_under_the_line_at_which_the_profiler_began(tmp_path: Path) -> None:
    """The frame of the script, which was there before, has that line for its caller."""
    window = window_of(
        tmp_path,
        call("train.py(6): <module>", 1, 10, "train.py:6:<module>"),
        call("nn.Module: Net_0", 2, 4, "train.py:7:<module>"),
    )
    assert own_ms(window) == {"train.py:6()": {"other": 6.0}, "train.py:7": {"forward": 4.0}}
    assert ("line", "train.py:6") not in window.lines


def test_time_in_deeper_user_lines_is_not_the_outer_line_s_own(tmp_path: Path) -> None:
    window = window_of(
        tmp_path,
        call("train.py(6): train", 1, 10, "train.py:3:main"),
        call("nn.Module: Net_0", 2, 4, "train.py:7:train"),
        call("torch/_tensor.py(600): backward", 6, 3, "train.py:10:train"),
    )
    assert own_ms(window) == {
        "train.py:6()": {"other": 3.0},
        "train.py:7": {"forward": 4.0},
        "train.py:10": {"backward": 3.0},
    }
    assert window.lines["line", "train.py:7"][0].text == "train.py:7:train"


def test_a_stage_begun_by_a_library_belongs_to_the_user_s_line(tmp_path: Path) -> None:
    window = window_of(
        tmp_path,
        call("library.py(1): fit", 0, 8, "train.py:3:main"),
        call("nn.Module: Net_0", 1, 5, "library.py:9:fit"),
        call("train.py(6): train", 2, 3, "torch/nn/modules/module.py:1:_call_impl"),
        call("<built-in function sum>", 2.5, 2, "train.py:8:train"),
    )
    assert own_ms(window) == {
        "train.py:3": {"other": 3.0, "forward": 2.0},
        "train.py:6()": {"forward": 1.0},
        "train.py:8": {"forward": 2.0},
    }


def test_a_window_is_its_own_steps_and_its_own_thread(tmp_path: Path) -> None:
    window = window_of(
        tmp_path,
        call("f", 1, 4, "train.py:7:train"),
        call("f", 1001, 6, "train.py:7:train"),
        call("f", 2, 1, "train.py:8:train", thread=2),
        call("f", 900_000, 50, "train.py:7:train"),
        steps=(5, 6),
    )
    assert own_ms(window) == {"train.py:7": {"other": 10.0}}
    assert (window.span, window.middle) == ("steps 5 to 6", 5.5)


def test_a_trace_without_a_step_is_no_window_and_a_run_without_traces_has_none_recorded(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=make_steps(4), sources={"train.py": SOURCE}, traces=[[]])
    assert run.get(TraceWindows).windows == ()
    with pytest.raises(NotRecorded, match="trace-<n>"):
        write_run(tmp_path / "second", steps=make_steps(4)).get(TraceWindows)


@pytest.mark.parametrize(("share", "read"), [(0.7, "step 5"), (0.25, "the first 42 % of step 5")])
def test_of_a_trace_that_is_too_large_whole_steps_or_the_begin_of_one_are_read(
    tmp_path: Path, share: float, read: str
) -> None:
    made = [make_step(step, window="trace-1") for step in (5, 6)]
    length_ms = made[0].total_us / 1000
    events = [call("aten::add", place * 2 * length_ms / 20_000, length_ms / 20_000) for place in range(20_000)]
    run = write_run(tmp_path / "run", steps=made, sources={"train.py": SOURCE}, traces=[events])
    run.max_trace_bytes = share * trace_paths(run.rank_folder)[0].stat().st_size
    traces = run.get(TraceWindows)
    assert traces.windows[0].span == read
    assert len(traces.windows[0].trace) < len(events)
    assert traces.windows[0].step_ms == pytest.approx(length_ms)
    assert traces.unread[0].endswith(f"of steps 5 to 6 were traced, too much: {read} is read.")


def test_a_kernel_belongs_to_the_step_that_launched_it_whenever_the_device_comes_to_it(tmp_path: Path) -> None:
    def until(*events: dict[str, Any]) -> tuple[int, int]:
        labels = [event("ProfilerStep#1", 1000, 1000, "user_annotation")]
        window = foreign_run(tmp_path, *labels, *events).get(TraceWindows).windows[0]
        start_ns, _ = window.bounds
        first_ns, last_ns = window.device_bounds
        return (first_ns - start_ns) // 1000, (last_ns - start_ns) // 1000

    own = [launch(1, 1100), kernel(1, 1300, 900)]
    assert until(*own) == (0, 1200), "to the end of its last kernel"
    assert until(launch(1, 1100), kernel(1, 1300, 100)) == (0, 1000), "the host's end, where that is later"
    assert until(launch(9, 900), kernel(9, 950, 350), *own) == (300, 1200), "not what an earlier step launched"
    assert until(*own, launch(2, 2050), kernel(2, 2250, 50)) == (0, 1250), "up to the first kernel of what follows"


def test_leading_steps_that_are_far_longer_warm_up_and_a_long_one_later_does_not() -> None:
    assert num_warming_up([1022, 25, 25, 26]) == 1
    assert num_warming_up([900, 200, 25, 25, 26]) == 2
    assert num_warming_up([25, 25, 1022, 26]) == 0
    assert num_warming_up([70, 25, 25]) == 0
    assert num_warming_up([1022, 25]) == num_warming_up([5]) == num_warming_up([]) == 0
