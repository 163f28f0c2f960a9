"""What fails within the recorder, or is interrupted there, costs nothing else."""

import signal
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import CollectorStopped
from efprof.recorder.collectors.host_memory import HostMemory
from efprof.recorder.loop.open_step import OpenStep
from tests.recorder.recording import PLAIN, Recorded, open_session, record_here, stages
from tests.recorder.training import make_loader, make_training, train_plainly, train_step


def test_ctrl_c_within_the_recorder_loses_no_finished_step(tmp_path: Path) -> None:
    session = open_session(tmp_path)
    session.start()
    session.subscribe(
        session.loop.step_ended,
        "test",
        lambda step, _: signal.raise_signal(signal.SIGINT) if step.number == 3 else None,
    )
    with pytest.raises(KeyboardInterrupt):
        train_plainly(6)
    session.end()
    assert [step.step for step in Recorded(folder=tmp_path).steps] == [0, 1, 2, 3]


@pytest.mark.parametrize("stage", PLAIN)
def test_an_interrupt_within_the_recorder_leaves_no_stage_open(stage: str, tmp_path: Path) -> None:
    session = open_session(tmp_path)
    session.start()
    open_stage, num_interrupts = session.loop.clock.open, 0

    def interrupted(step: OpenStep, opened: str, opener: str, entered: int) -> None:
        nonlocal num_interrupts
        open_stage(step, opened, opener, entered)
        if step.number == 4 and opened == stage and not num_interrupts:
            num_interrupts += 1
            raise KeyboardInterrupt

    session.loop.clock.open = interrupted  # type: ignore[method-assign]
    (model, optimizer), batches = make_training(), iter(make_loader(12))
    for _ in range(11):
        with suppress(KeyboardInterrupt):
            inputs, targets = next(batches)
            train_step(model, optimizer, inputs, targets)
    session.end()
    steps = Recorded(folder=tmp_path).steps
    assert num_interrupts == 1
    assert [step.step for step in steps] == list(range(10)), "the batch of step 4 counts with the next update"
    assert {tuple(stages(step)) for step in steps if step.step not in (0, 4)} == {
        ("data", "forward", "backward", "optimizer")
    }


def test_an_end_that_is_interrupted_leaves_no_hook_behind(tmp_path: Path) -> None:
    backward = torch.autograd.backward
    session = open_session(tmp_path)
    session.start()
    assert torch.autograd.backward is not backward
    session.on_end("test", lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        session.end()
    assert torch.autograd.backward is backward


def test_memray_stops_with_its_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("memray", reason="needs memray")
    monkeypatch.setattr(HostMemory, "step_began", lambda self, step: 1 / 0)
    record_here(tmp_path / "broken", train_plainly, host_memory=True)
    monkeypatch.undo()
    recorded = record_here(tmp_path / "next", train_plainly, host_memory=True)
    assert recorded.events(CollectorStopped) == []
