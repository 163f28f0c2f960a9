"""Calls that make a step wait, at the line that made them."""

import gc
import pkgutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from efprof.artifacts.steps import SiteCalls
from efprof.recorder.collectors.waiting_calls import STALLS
from tests.recorder.recording import Recorded, line_of, record_here, running_session
from tests.recorder.training import make_weight

HERE = Path(__file__)

WITHOUT_DEVICE = (AssertionError, AttributeError, RuntimeError)
"""What torch raises for want of a GPU; such a call is counted all the same."""


WAITING = (
    "torch.cuda.synchronize",
    "torch.cuda.empty_cache",
    "torch.cuda.reset_peak_memory_stats",
    "torch.cuda.Stream.synchronize",
    "torch.cuda.Event.synchronize",
    "torch.accelerator.synchronize",
    "torch.accelerator.empty_cache",
    "torch.accelerator.reset_peak_memory_stats",
    "gc.collect",
)
"""Wherever torch has them."""


def step_with(stall: Callable[[], object]) -> Callable[[], None]:
    """Two training steps that call `stall`."""

    def train() -> None:
        weight, optimizer = make_weight(2)
        for _ in range(2):
            weight.sum().backward()
            stall()
            optimizer.step()

    return train


def collect() -> None:
    gc.collect(0)  # collect


def stalls_of(recorded: Recorded) -> list[SiteCalls]:
    return [stall for step in recorded.steps for stall in step.stalls]


def test_a_stall_is_counted_once_at_its_line(tmp_path: Path) -> None:
    stalls = stalls_of(record_here(tmp_path, step_with(collect)))
    site = f"tests/recorder/collectors/test_stalls.py:{line_of(HERE, 'collect')}:collect"
    assert [(stall.site, stall.call, stall.count) for stall in stalls] == [(site, "gc.collect", 1)] * 2


@pytest.mark.parametrize("name", WAITING)
def test_every_call_that_would_wait_for_a_device_is_counted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []

    def pretended(*args: object) -> None:
        waits.append(args)

    if name not in STALLS:
        pytest.skip(f"needs {name}")  # an older torch lacks some
    monkeypatch.setattr(name, pretended)

    def wait() -> None:
        pkgutil.resolve_name(name)("for", "it")  # wait

    stalls = stalls_of(record_here(tmp_path, step_with(wait)))
    site = f"tests/recorder/collectors/test_stalls.py:{line_of(HERE, 'wait')}:{wait.__qualname__}"
    assert [(stall.site, stall.call, stall.count) for stall in stalls] == [(site, name, 1)] * 2
    assert waits == [("for", "it")] * 2


def test_the_error_of_a_call_comes_through(tmp_path: Path) -> None:
    def collect_wrongly() -> None:
        with pytest.raises(ValueError, match="invalid generation"):
            gc.collect(7)

    assert [stall.call for stall in stalls_of(record_here(tmp_path, step_with(collect_wrongly)))] == ["gc.collect"] * 2


def test_a_call_outside_of_steps_is_not_counted(tmp_path: Path) -> None:
    def collect_before() -> None:
        gc.collect(0)
        step_with(lambda: None)()

    assert stalls_of(record_here(tmp_path, collect_before)) == []


def test_what_the_recorder_collects_itself_is_not_counted(tmp_path: Path) -> None:
    with running_session(tmp_path) as session:
        step_with(session.shell.guarded("test", gc.collect))()
    assert stalls_of(Recorded(folder=tmp_path)) == []


def test_every_call_is_given_back_at_the_end(tmp_path: Path) -> None:
    def owned() -> list[object]:
        return [gc.collect, torch.cuda.empty_cache, torch.cuda.Stream.synchronize]

    before = owned()
    seen: list[list[object]] = []
    record_here(tmp_path, lambda: seen.append(owned()))
    assert owned() == before
    assert all(while_recorded is not at_rest for while_recorded, at_rest in zip(seen[0], before, strict=True))
