"""What may go wrong while steps are recorded together loses none of them, and never touches the training."""

import ctypes
import errno
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from efprof.artifacts.events import CollectorStopped
from efprof.artifacts.pending import PENDING_FILE
from efprof.artifacts.steps import StepRecord, read_steps
from efprof.recorder import sprint, writing
from efprof.recorder.open_step import OpenStep
from efprof.recorder.pending_steps import PendingSteps
from efprof.recorder.sprint import Sprint
from efprof.recorder.sprinted_steps import SprintedSteps
from efprof.recorder.steps import Steps
from tests.recorder.recording import record_here
from tests.recorder.test_loop import error_of, make_loader, make_model, stages

LONG = 300


def train_long() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs, targets in make_loader(LONG):
        error_of(model, inputs, targets).backward()
        optimizer.step()


def train_until_interrupted(trained: list[int]) -> None:
    """Notes the number of each step that the program saw the end of."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        for inputs, targets in make_loader(LONG):
            error_of(model, inputs, targets).backward()
            optimizer.step()
            trained.append(len(trained))


def test_another_thread_that_reads_a_loader_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = writing.LineWriter._append

    def append_slowly(self: writing.LineWriter, line: bytes) -> None:
        time.sleep(0.002)  # as to a disk in the network: other threads run meanwhile
        append(self, line)

    is_over = threading.Event()

    def read_batches() -> None:
        while not is_over.is_set():
            for _ in make_loader(5):
                time.sleep(0.001)

    def train_beside() -> None:
        thread = threading.Thread(target=read_batches)
        thread.start()
        try:
            train_long()
        finally:
            is_over.set()
            thread.join()

    monkeypatch.setattr(writing.LineWriter, "_append", append_slowly)
    recorded = record_here(tmp_path, train_beside)
    assert [step.step for step in recorded.steps] == list(range(LONG))
    after_the_first = {tuple(stages(step)) for step in recorded.steps[1:]}  # that one starts its loader as well
    assert after_the_first == {("data", "forward", "backward", "optimizer")}


def test_an_interrupt_while_steps_are_written_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, num_calls = PendingSteps.rows, 0

    def interrupted(self: PendingSteps, num_codes: int) -> list[tuple[Any, ...]]:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            raise KeyboardInterrupt
        return rows(self, num_codes)

    monkeypatch.setattr(PendingSteps, "rows", interrupted)
    monkeypatch.setattr(sprint, "MAX_SPRINT_NS", 20_000_000)
    trained: list[int] = []
    recorded = record_here(tmp_path, lambda: train_until_interrupted(trained))
    assert [step.step for step in recorded.steps] == trained
    assert not (recorded.rank / PENDING_FILE).exists()


def test_an_interrupt_between_two_steps_that_are_written_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete, num_calls = Steps.complete, 0

    def interrupted(self: Steps, step: OpenStep, at: int) -> StepRecord:
        nonlocal num_calls
        record = complete(self, step, at)
        num_calls += sys._getframe(1).f_code is SprintedSteps._finish.__code__
        if num_calls == 1:
            num_calls += 1
            raise KeyboardInterrupt
        return record

    monkeypatch.setattr(Steps, "complete", interrupted)
    monkeypatch.setattr(sprint, "MAX_SPRINT_NS", 20_000_000)
    trained: list[int] = []
    recorded = record_here(tmp_path, lambda: train_until_interrupted(trained))
    assert num_calls > 2, "and the others are written after it"
    assert [step.step for step in recorded.steps] == trained


def test_what_a_full_disk_refuses_stays_in_the_pending_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    append = writing.LineWriter._append
    known: list[int] = []

    def append_while_there_is_room(self: writing.LineWriter, line: bytes) -> None:
        if self._name == "steps.jsonl" and line.count(b"\n") > 1:
            known.append(line.count(b"\n"))
            if len(known) > 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, line)

    monkeypatch.setattr(writing.LineWriter, "_append", append_while_there_is_room)
    monkeypatch.setattr(sprint, "MAX_SPRINT_NS", 20_000_000)
    recorded = record_here(tmp_path, train_long)
    assert "recording stops, training goes on" in capsys.readouterr().err
    assert (recorded.rank / PENDING_FILE).exists()
    numbers = [step.step for step in recorded.steps]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= sum(known[:2]), "what was refused is read from the pending steps"


def test_where_no_memory_can_be_mapped_every_step_is_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr("efprof.recorder.pending_steps.mmap.mmap", refused)
    recorded = record_here(tmp_path, train_long)
    assert [step.step for step in recorded.steps] == list(range(LONG))
    assert not (recorded.rank / PENDING_FILE).exists()


def test_each_sprint_looks_anew_where_backward_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sprint, "MAX_SPRINT_NS", 5_000_000)
    sprinted: list[bool] = []

    def train_by_two_lines() -> None:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for inputs, targets in make_loader(LONG):
            loss = error_of(model, inputs, targets)
            is_on = session_of_now().watch.is_on
            if is_on:
                loss.backward()
            else:
                loss.backward()
            sprinted.append(is_on)
            optimizer.step()

    recorded = record_here(tmp_path, train_by_two_lines)
    sites = {is_on: {step.backward_site for step, on in zip(recorded.steps, sprinted, strict=True) if on is is_on}
             for is_on in (True, False)}  # fmt: skip
    assert len(sites[True]) == len(sites[False]) == 1
    assert sites[True] != sites[False]


def session_of_now() -> Sprint:
    from efprof.recorder import current

    assert current.session is not None
    return current.session.sprint


def test_a_loss_that_a_scaler_has_multiplied_is_recorded_as_it_was(tmp_path: Path) -> None:
    losses: list[float] = []

    def train_scaled() -> None:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for inputs, targets in make_loader(LONG):
            loss = error_of(model, inputs, targets)
            scaler.scale(loss).backward()  # and never `update`: the scale stays
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))

    recorded = record_here(tmp_path, train_scaled)
    assert [step.loss for step in recorded.steps] == pytest.approx(losses)


def test_a_recording_that_ends_within_a_call_of_the_stopwatch_does_no_harm(tmp_path: Path) -> None:
    from torch.overrides import TorchFunctionMode

    from efprof.recorder import current

    num_trained = 0

    class Ending(TorchFunctionMode):
        """Ends the recording where the stopwatch asks for a tensor's attribute, as a signal's handler might."""

        def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if num_trained == 150 and current.session is not None and current.session.sprint.is_on:
                current.session.end()
            return function(*args, **(kwargs or {}))

    def train_under_mode() -> None:
        nonlocal num_trained
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with Ending():
            for inputs, targets in make_loader(LONG):
                error_of(model, inputs, targets).backward()
                optimizer.step()
                num_trained += 1

    recorded = record_here(tmp_path, train_under_mode)
    assert num_trained == LONG
    assert [step.step for step in recorded.steps] == list(range(150))
    assert read_steps(recorded.rank)[1] == 0


@pytest.mark.parametrize("error", [TimeoutError, SystemExit, KeyboardInterrupt])
def test_what_a_signal_s_handler_raises_within_a_call_of_the_stopwatch_reaches_the_program(
    error: type[BaseException], tmp_path: Path
) -> None:
    from torch.overrides import TorchFunctionMode

    num_rung, caught = 0, []

    class Rings(TorchFunctionMode):
        """As a default device, which has Python look at whatever is asked of a tensor: a signal comes meanwhile."""

        def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal num_rung
            if function.__name__ == "storage_offset" and session_of_now().is_on and not num_rung:
                num_rung += 1
                signal.raise_signal(signal.SIGALRM)
            return function(*args, **(kwargs or {}))

    def ring(*_: object) -> None:
        raise error("rung")

    def train_under_mode() -> None:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with Rings():
            for inputs, targets in make_loader(LONG):
                try:
                    error_of(model, inputs, targets).backward()
                    optimizer.step()
                except error as raised:
                    caught.append(raised.args)

    before = signal.signal(signal.SIGALRM, ring)
    try:
        recorded = record_here(tmp_path, train_under_mode)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert num_rung == 1, "a step was sprinted"
    assert caught == [("rung",)]
    assert recorded.events(CollectorStopped) == []


def test_a_mode_s_own_error_at_what_the_stopwatch_asks_never_reaches_the_program(tmp_path: Path) -> None:
    from torch.overrides import TorchFunctionMode

    num_raised = 0

    class Refuses(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal num_raised
            if function.__name__ == "storage_offset" and session_of_now().is_on:
                num_raised += 1
                raise RuntimeError("not here")
            return function(*args, **(kwargs or {}))

    def train_under_mode() -> None:
        with Refuses():
            train_long()

    recorded = record_here(tmp_path, train_under_mode)
    assert num_raised > LONG / 3
    assert [step.step for step in recorded.steps] == list(range(LONG))


class Exchange(ctypes.Structure):
    """DLPack's table of functions, all of them missing."""

    _fields_ = [("version", ctypes.c_uint32 * 2), ("functions", ctypes.c_void_p * 6)]


def test_where_torch_describes_no_tensor_by_dlpack_its_attributes_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, name = Exchange(version=(1, 3)), b"dlpack_exchange_api"
    make_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
        ("PyCapsule_New", ctypes.pythonapi)
    )
    capsule = make_capsule(ctypes.addressof(table), name, None)
    monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", capsule, raising=False)
    recorded = record_here(tmp_path, train_long)
    assert [step.step for step in recorded.steps if step.loss is not None] == list(range(LONG))


def test_memory_that_cannot_be_mapped_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", refused)
    with pytest.raises(OSError, match="not supported"):
        PendingSteps(tmp_path)
    assert list(tmp_path.iterdir()) == []
