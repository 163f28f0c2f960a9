"""Repeated calls: which belong together, which loop is around them, and what of their time each call takes anew."""

from pathlib import Path
from typing import Any

import pytest

from efprof.facts.time.repeated_calls import RepeatedCall, RepeatedCalls
from tests.support.builders import make_steps, trace_event, write_run

SOURCE = """\
def train(encoder, head, texts):
    total = 0
    for text in texts:
        total += encode(encoder, head, text)
    total.backward()


def encode(encoder, head, text):
    return head(encoder(text))
"""
WINDOW = (20, 21)
LINEAR = {"category": "cpu_op", "Input Dims": [[1, 48], [4, 48], [4]], "Sequence number": 7}
STEP_MS = 15.5


def calls_of(folder: Path, *events: dict[str, Any], profiler_ms: float = 0.0) -> tuple[RepeatedCall, ...]:
    steps = make_steps(
        40,
        window=lambda step: "trace-1" if step in WINDOW else None,
        other_ms=lambda step: 0.5 + profiler_ms * (step in WINDOW),
    )
    return (
        write_run(folder / "run", steps=steps, sources={"train.py": SOURCE}, traces=[events]).get(RepeatedCalls).calls
    )


def encoded(step: int, *, through: str = "train.py(8): encode", first_line: int = 1) -> list[dict[str, Any]]:
    """Three texts through the encoder and the head, each in a function that line 4 calls."""
    start, ids = 1000.0 * step, 100 * step
    found = [
        trace_event(f"train.py({first_line}): train", start, STEP_MS, **{"Python id": ids, "Python parent id": -1})
    ]
    for number in range(3):
        at, frame = start + 1 + 2 * number, ids + 10 * (number + 1)
        above = {"Python id": frame, "Python parent id": ids}
        found.append(trace_event(through, at, 1.8, call_site="train.py:4:train", **above))
        for place, module in enumerate(("Encoder_0", "Linear_3")):
            inner = {"Python id": frame + place + 1, "Python parent id": frame}
            begin = at + 0.1 + 0.8 * place
            found.append(trace_event(f"nn.Module: {module}", begin, 0.6, call_site="train.py:9:encode", **inner))
            found.append(trace_event("aten::linear", begin + 0.2, 0.2, **LINEAR))
    return found


def test_the_loop_is_that_of_the_function_which_calls_the_caller(tmp_path: Path) -> None:
    (call,) = calls_of(tmp_path, *encoded(20), *encoded(21))
    assert (str(call.blame), str(call.loop), call.is_chained) == ("train.py:9", "train.py:3", False)


def test_what_a_library_calls_is_in_no_loop_of_the_users(tmp_path: Path) -> None:
    """Line 4 calls the library once, whatever loop is around it."""
    (call,) = calls_of(tmp_path, *(event for step in WINDOW for event in _by_library(encoded(step))))
    assert call.loop is None


def _by_library(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for event in events:
        if event["name"].endswith("encode"):
            event["args"].pop("Call site")
    return events


def test_modules_that_one_line_calls_equally_often_are_told_together(tmp_path: Path) -> None:
    (call,) = calls_of(tmp_path, *encoded(20), *encoded(21))
    assert (set(call.modules), call.num_calls) == ({"Encoder_0", "Linear_3"}, 3)
    assert call.total_ms == pytest.approx(6 * 0.6, rel=0.01)


def test_a_function_that_ran_when_the_window_opened_is_the_same_in_later_steps(tmp_path: Path) -> None:
    (call,) = calls_of(tmp_path, *encoded(20, first_line=4), *encoded(21))
    assert call.num_calls == 3
    assert call.total_ms == pytest.approx(6 * 0.6, rel=0.01)


def test_a_step_that_begins_within_its_first_call_has_that_call(tmp_path: Path) -> None:
    early = [{**event, "ts": event["ts"] - 1300.0, "tid": 1} for event in encoded(20)]
    (call,) = calls_of(tmp_path, *early, *encoded(21))
    assert (set(call.modules), call.num_calls) == ({"Encoder_0", "Linear_3"}, 3)


def test_times_are_those_of_a_step_outside_windows(tmp_path: Path) -> None:
    events = [*encoded(20), *encoded(21), *(trace_event("sum", 1000.0 * step + STEP_MS, STEP_MS) for step in WINDOW)]
    (call,) = calls_of(tmp_path, *events, profiler_ms=STEP_MS)
    assert call.total_ms == pytest.approx(6 * 0.6 / 2, rel=0.01)


def test_the_engines_own_time_belongs_to_the_calls_whose_nodes_it_runs(tmp_path: Path) -> None:
    events = [event for step in WINDOW for event in (*encoded(step), *_backward(step))]
    (call,) = calls_of(tmp_path, *events)
    assert call.total_ms == pytest.approx(6 * 0.6 + 4.0, rel=0.01)
    assert call.fixed_ms == pytest.approx(6 * (0.4 + 0.1) + 4.0 - 1.0 + 0.1, rel=0.01), "a launch takes 0.1 ms"


def _backward(step: int) -> list[dict[str, Any]]:
    """Four milliseconds, one of which is the node's."""
    start = 1000.0 * step + 9.0
    node = {"category": "cpu_op", "Sequence number": 7, "Fwd thread id": 1}
    return [
        trace_event("torch/_tensor.py(600): backward", start, 4.0, call_site="train.py:5:train"),
        trace_event("autograd::engine::evaluate_function: AddmmBackward0", start + 1, 1.0, **node),
    ]
