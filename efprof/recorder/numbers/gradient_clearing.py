"""Sees in the first steps whether anything clears the gradients between two steps of an optimizer.

A few of its gradients' numbers are copied where it steps and where each backward pass ends, and compared where the next
pass begins: they are gone, others, or the same, and then that pass adds to them. Before its step a gradient may be
scaled, as by clipping. On a device nobody waits for an answer.
"""

import sys
import time
import weakref
from collections.abc import Callable, Sequence
from itertools import compress, islice
from typing import Literal, TypeGuard
from weakref import WeakKeyDictionary

import torch

from efprof.artifacts.events import GradientClearing
from efprof.recorder.budget.sampling import FIRST_STEPS
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.numbers.late_values import on_device
from efprof.recorder.numbers.step_numbers import is_plain, is_read_late, outside_modes, parameters_of, read_value
from efprof.recorder.session.session import Session

MAX_GRADIENTS = 4
"""Of an optimizer, that are looked at: its last ones, which nearly every backward pass reaches."""

MAX_OPTIMIZERS = 8
"""That are watched: a program with more has one for each parameter, and clears all alike."""

MAX_ROW = 4096
"""Of a gradient's numbers, of its first row."""

NUM_STEPS = 10
"""Of one optimizer, without a clearing between any two. A program that clears every other step, or at the end of a
short epoch, does so within as many."""

MIN_COSINE = 0.99
"""Between gradients and the same ones scaled: rounding leaves more."""

COLLECTOR = "gradient_clearing"

Outcome = Literal["cleared", "changed", "kept"]


class Watched:
    """One optimizer, in rounds from one of its steps to the next; parameters are known by their places in it.

    One that there is a weak reference to could not be exchanged, as `torch.utils.swap_tensors` has it.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = type(optimizer).__name__
        self.outcome: Outcome | None = None
        self.is_over = False
        self.were_kept: list[torch.Tensor] = []
        self.were_added_to: list[torch.Tensor] = []
        """Of each round, whether nothing but scaling changed the gradients between passes, and whether a pass did."""
        self.begin_round(optimizer)

    def begin_round(self, optimizer: torch.optim.Optimizer) -> None:
        every, self.of = parameters_of(optimizer), weakref.ref(optimizer)
        places = (place for place in reversed(range(len(every))) if _can_be_read(every[place].grad))
        self.places = list(islice(places, MAX_GRADIENTS))
        self.row = _row([every[place] for place in self.places])
        self.num_others = 0
        """Other optimizers that have stepped in this round."""
        self.passes: list[tuple[str | None, int]] = []
        """The line of each backward pass, and how many others had stepped by then."""
        self.checks: list[torch.Tensor] = []
        self.have_added: list[torch.Tensor] = []
        scale = getattr(optimizer, "grad_scale", None)
        if self.row is not None and isinstance(scale, torch.Tensor):
            self.row /= scale.to(self.row.device)  # as a fused optimizer does with the gradients

    def begin_pass(self, site: str | None) -> None:
        """What the last step, or the last pass, has left is to be there still."""
        if rows := self._look():
            self.checks.append(_are_equal(*rows))
            self.passes.append((site, self.num_others))

    def end_pass(self) -> None:
        if len(self.have_added) < len(self.passes) and (rows := self._look()):
            self.have_added.append((rows[0] != rows[1]).any())

    def end_round(self) -> bool:
        """It steps again, with what the passes have left, which may be scaled; whether enough rounds were seen."""
        rows = self._look()
        if rows is not None and self.have_added:
            last, now = rows
            is_scaled = torch.dot(last, now) > MIN_COSINE * last.norm() * now.norm()
            self.were_kept.append(torch.stack([*self.checks, is_scaled | _are_equal(last, now)]).all())
            self.were_added_to.append(torch.stack(self.have_added).any())
        return self.outcome is None and len(self.were_kept) == NUM_STEPS

    def _look(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        last, optimizer = self.row, self.of()
        if last is None:
            return None
        every = [] if optimizer is None else parameters_of(optimizer)
        parameters = [every[place] for place in self.places if place < len(every)]
        self.row = _row(parameters)
        if self.row is not None and last.shape == self.row.shape and last.device == self.row.device:
            return last, self.row
        is_gone = len(parameters) < len(self.places) or any(parameter.grad is None for parameter in parameters)
        self.outcome = "cleared" if is_gone else "changed"
        return None


class ClearingWatch:
    """Listens until steps may be light; holds no optimizer, and no tensor of the program's."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._watched: WeakKeyDictionary[torch.optim.Optimizer, Watched] = WeakKeyDictionary()
        loop = session.loop
        session.subscribe(loop.backward_began, COLLECTOR, _quietly(self._note_backward))
        session.subscribe(loop.backward_ended, COLLECTOR, _quietly(self._note_end))
        session.subscribe(loop.optimizer_began, COLLECTOR, _quietly(self._note_step))

    def _note_backward(self, step: OpenStep, *_: object) -> None:
        for watched in self._unsettled(step):
            watched.begin_pass(step.backward_site)
            self._write(step, watched)

    def _note_end(self) -> None:
        if (step := self._session.loop.step) is None:
            return
        for watched in self._unsettled(step):
            watched.end_pass()
            self._write(step, watched)

    def _note_step(self, step: OpenStep, stepping: torch.optim.Optimizer) -> None:
        unsettled, watched = self._unsettled(step), self._watched.get(stepping)
        for other in unsettled:
            other.num_others += 1
        if watched is None:
            if step.window is None and step.number < FIRST_STEPS and len(self._watched) < MAX_OPTIMIZERS:
                self._watched[stepping] = Watched(stepping)
        elif watched in unsettled:
            is_over = watched.end_round()
            self._write(step, watched)
            if is_over:
                self._judge(step, watched)
            elif step.window is None and watched.outcome is None:
                watched.begin_round(stepping)

    def _unsettled(self, step: OpenStep) -> list[Watched]:
        if step.number >= FIRST_STEPS:
            self._watched.clear()
        if step.window is not None:  # what it shows is to be the program's: the round does not count
            for watched in self._watched.values():
                watched.row = None
        return [watched for watched in self._watched.values() if not (watched.is_over or watched.outcome)]

    def _judge(self, step: OpenStep, watched: Watched) -> None:
        """Settled once the numbers are told, and watched no more until then."""
        passes, site = watched.passes, self._session.sites.of_caller(sys._getframe())
        told = [*watched.have_added, torch.stack(watched.were_added_to).all(), torch.stack(watched.were_kept).all()]
        watched.is_over = True

        def judge(*values: float) -> None:
            *have_added, were_added_to, were_kept = values
            if were_added_to or not were_kept:
                watched.outcome = "kept" if were_kept else "changed"
                self._write(step, watched, list(compress(passes, have_added)), site)

        if told[-1].is_cpu:
            judge(*map(read_value, told))
            return
        answer = self._session.late_values.send([on_device(one) for one in told])

        def arrives() -> bool:
            if values := answer():
                judge(*values)
            return values != []

        guarded = self._session.shell.guarded(COLLECTOR, arrives)
        step.add_late(lambda: guarded() is not False)

    def _write(
        self, step: OpenStep, watched: Watched, adding: Sequence[tuple[str | None, int]] = (), site: str | None = None
    ) -> None:
        """Once it is settled; the last two are told of gradients that were kept."""
        if watched.outcome is None:
            return
        if watched.outcome != "kept":
            adding, site = (), None
        sites = [line for line, num_others in adding if num_others == adding[-1][1]]
        event = GradientClearing(
            at_ns=time.time_ns(),
            step=step.number,
            optimizer=watched.optimizer,
            outcome=watched.outcome,
            num_steps=len(watched.were_kept),
            backward_sites=list(dict.fromkeys(filter(None, sites))),
            num_backwards=len(sites),
            num_earlier_backwards=len(adding) - len(sites),
            step_site=site,
        )
        self._session.note(event)
        watched.row = None


def start(session: Session) -> None:
    ClearingWatch(session)


def _quietly(listener: Callable[..., None]) -> Callable[..., None]:
    """The program's modes, and its graphs, see nothing of what is computed here."""

    def call(*args: object) -> None:
        with outside_modes(), torch.no_grad():
            listener(*args)

    return call


def _row(parameters: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """A copy of a row of each one's gradient; None where one has none that can be read without waiting."""
    rows = []
    for parameter in parameters:
        gradient = parameter.grad
        if not _can_be_read(gradient):
            return None
        row = gradient.detach()[(0,) * (gradient.ndim - 1)][:MAX_ROW] if gradient.ndim else gradient.detach()[None]
        rows.append(row.to(torch.float32))
    return torch.cat([row for row in rows if row.device == rows[0].device]) if rows else None


def _can_be_read(gradient: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    if not is_plain(gradient) or not gradient.numel() or not gradient.untyped_storage().nbytes():
        return False
    return gradient.is_cpu or is_read_late(gradient)


def _are_equal(last: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
    return torch.isclose(last, now, rtol=0, atol=0, equal_nan=True).all()
