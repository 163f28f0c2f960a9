import pytest

from efprof.facts.time.line_times import LineTimes
from efprof.model import NotRecorded
from tests.support.builders import START_NS, make_step, make_steps, trace_event, write_run

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


def write_window(folder, events, steps=(5,)):
    steps = [make_step(5, window="trace-1")] + [make_step(step, window="trace-1") for step in steps[1:]]
    return write_run(folder, steps=steps, sources={"train.py": SOURCE}, traces=[events])


def call(name, start_ms, duration_ms, site=None, **fields):
    arguments = {"call_site": site} if site else {}
    return trace_event(name, FIRST_STEP_MS + start_ms, duration_ms, **arguments, **fields)


def test_a_call_and_a_comprehension_count_once_for_the_line_they_were_made_from(tmp_path):
    events = [
        call("nn.Module: Net_0", 1, 4, "train.py:7:train"),
        call("torch/nn/x.py(1): f", 2, 1, "torch/nn/y.py:3:g"),
    ]
    (window,) = write_window(tmp_path / "run", events).get(LineTimes).windows
    line = window.lines["train.py:7"]
    assert line.own_ms == {"forward": 4.0}
    assert (line.blame.function, line.blame.text) == ("train", "out = model(batch)")
    assert set(window.lines) == {"train.py:7"}
    events = [
        call("<built-in function sum>", 1, 6, "train.py:8:train"),
        call("train.py(8): <genexpr>", 2, 4, "train.py:8:train"),
        call("<built-in method item>", 3, 2, "train.py:8:<genexpr>"),
    ]
    (window,) = write_window(tmp_path / "second", events).get(LineTimes).windows
    line = window.lines["train.py:8"]
    assert line.own_ms["other"] == 6.0
    assert line.blame.function == "train"
    assert list(window.lines) == ["train.py:8"]


def test_time_in_deeper_user_lines_is_not_the_outer_line_s_own(tmp_path):
    events = [
        call("train.py(6): train", 1, 10, "train.py:3:main"),
        call("nn.Module: Net_0", 2, 4, "train.py:7:train"),
        call("torch/_tensor.py(600): backward", 6, 3, "train.py:10:train"),
    ]
    (window,) = write_window(tmp_path / "run", events).get(LineTimes).windows
    assert window.lines["train.py:3"].own_ms == {}
    assert window.lines["train.py:train()"].own_ms == {"other": 3.0}
    assert window.lines["train.py:10"].own_ms == {"backward": 3.0}
    assert sum(sum(line.own_ms.values()) for line in window.lines.values()) == 10.0


def test_a_stage_begun_by_a_library_belongs_to_the_user_s_line(tmp_path):
    events = [
        call("library.py(1): fit", 0, 8, "train.py:3:main"),
        call("nn.Module: Net_0", 1, 5, "library.py:9:fit"),
        call("train.py(6): train", 2, 3, "torch/nn/modules/module.py:1:_call_impl"),
        call("<built-in function sum>", 2.5, 2, "train.py:8:train"),
    ]
    (window,) = write_window(tmp_path / "run", events).get(LineTimes).windows
    assert window.lines["train.py:3"].own_ms == {"other": 3.0, "forward": 2.0}
    assert window.lines["train.py:8"].own_ms == {"forward": 2.0}
    assert window.lines["train.py:train()"].own_ms == {"forward": 1.0}


def test_times_are_per_step_of_one_thread_and_without_windows_not_recorded(tmp_path):
    events = [
        call("f", 1, 4, "train.py:7:train"),
        call("f", 1001, 6, "train.py:7:train"),
        call("f", 900_000, 50, "train.py:7:train"),
    ]
    (window,) = write_window(tmp_path / "run", events, steps=(5, 6)).get(LineTimes).windows
    assert (window.first_step, window.last_step) == (5, 6)
    assert window.lines["train.py:7"].own_ms == {"other": 5.0}
    events = [call("f", 1, 4, "train.py:7:train"), call("f", 2, 1, "train.py:8:train", thread=2)]
    (window,) = write_window(tmp_path / "second", events).get(LineTimes).windows
    assert window.lines["train.py:7"].own_ms == {"other": 4.0}
    run = write_run(tmp_path / "third", steps=make_steps(4), sources={"train.py": SOURCE}, traces=[[]])
    assert run.get(LineTimes).windows == ()
    assert make_step(0).started_ns == START_NS
    with pytest.raises(NotRecorded, match="trace-<n>"):
        write_run(tmp_path / "fourth", steps=make_steps(4)).get(LineTimes)
