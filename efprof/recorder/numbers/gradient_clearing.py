"""Sees in the first steps whether anything clears the gradients between two steps of an optimizer.

A few of its gradients' numbers are copied where it steps and where each backward pass begins and ends. As a pass begins
they are gone, others, or the same, and then that pass adds to them. Before its step a gradient may be scaled, as by
clipping. On a device nobody waits for an answer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, islice
from typing import Literal, TypeGuard
from weakref import WeakKeyDictionary

import torch

from efprof.artifacts.events import GradientClearing
from efprof.recorder.budget.sampling import FIRST_STEPS
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.numbers.late_values import LateValues, on_device
from efprof.recorder.numbers.step_numbers import is_plain, is_read_late, outside_modes, parameters_of, read_value
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Guard, Note
from efprof.recorder.session.sites import Sites

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

Pass = tuple[str | None, int]
"""The line of a backward pass, and how many other optimizers had stepped by then."""

Outcome = Literal["cleared", "kept"]


class Watched:
    """One optimizer, in rounds from one of its steps to the next; parameters are known by their places in it.

    One that there is a weak reference to could not be exchanged, as `torch.utils.swap_tensors` has it.
    """

    def __init__(self, optimizer: str) -> None:
        self.optimizer = optimizer
        self.is_settled = self.is_gone = False
        self.were_kept: list[torch.Tensor] = []
        self.were_added_to: list[torch.Tensor] = []
        """Of each round, whether nothing but scaling changed the gradients between passes, and whether a pass did."""
        self.rows: tuple[torch.Tensor, ...] = ()
        """The numbers when they were looked at last, and the time before; none where this round does not count."""
        self.differ: list[torch.Tensor] = []
        """Of this round, whether they were others than before as each pass began and as it ended, by turns."""
        self.passes: list[Pass] = []
        self.num_others = 0
        """Other optimizers that have stepped in this round."""
        self._places: list[int] = []

    def begin_round(self, optimizer: torch.optim.Optimizer) -> None:
        every = parameters_of(optimizer)
        places = (place for place in reversed(range(len(every))) if _can_be_read(every[place].grad))
        self._places = list(islice(places, MAX_GRADIENTS))
        row = _row([every[place] for place in self._places])
        self.rows, self.differ, self.passes, self.num_others = () if row is None else (row,), [], [], 0

    @property
    def is_within_pass(self) -> bool:
        return len(self.differ) % 2 == 1

    def look(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the gradients are there still."""
        every, last = parameters_of(optimizer), self.rows[-1]
        parameters = [every[place] for place in self._places if place < len(every)]
        row = _row(parameters)
        if row is None or row.shape != last.shape or row.device != last.device:
            self.is_settled, self.rows = True, ()
            self.is_gone = any(parameter.grad is None for parameter in parameters)
            return False
        self.rows = last, row
        self.differ.append((last != row).any())
        return True

    def end_round(self) -> bool:
        """It steps again, with what the passes have left, which may be scaled; whether enough rounds were seen."""
        if self.passes:
            last, now = self.rows
            is_scaled = torch.dot(last, now) > MIN_COSINE * last.norm() * now.norm()
            *between, at_step = self.differ[::2]
            self.were_kept.append(~torch.stack([*between, at_step & ~is_scaled]).any())
            self.were_added_to.append(torch.stack(self.differ[1::2]).any())
        return len(self.were_kept) == NUM_STEPS


def _quietly(listener: Callable[..., None]) -> Callable[..., None]:
    """The program's modes, and its graphs, see nothing of what is computed here."""

    def call(*args: object) -> None:
        with outside_modes(), torch.no_grad():
            listener(*args)

    return call


@dataclass(eq=False)
class ClearingWatch:
    """Listens until steps may be light; holds no optimizer, and no tensor of the program's."""

    _loop: Loop
    _sites: Sites
    _late: LateValues
    _note: Note
    _guard: Guard
    _watched: WeakKeyDictionary[torch.optim.Optimizer, Watched] = field(default_factory=WeakKeyDictionary)

    @_quietly
    def backward_began(self, step: OpenStep, *_: object) -> None:
        for optimizer, watched in self._counting(step):
            if not watched.is_within_pass and self._look(step, optimizer, watched):
                watched.passes.append((step.backward_site, watched.num_others))

    @_quietly
    def backward_ended(self) -> None:
        if (step := self._loop.step) is not None:
            for optimizer, watched in self._counting(step):
                if watched.is_within_pass:
                    self._look(step, optimizer, watched)

    @_quietly
    def optimizer_began(self, step: OpenStep, stepping: torch.optim.Optimizer) -> None:
        for optimizer, watched in self._counting(step):
            if optimizer is not stepping:
                watched.num_others += 1
            elif not watched.is_within_pass and self._look(step, stepping, watched) and watched.end_round():
                self._judge(step, watched)
        if step.window is not None:
            return
        if step.number < FIRST_STEPS and len(self._watched) < MAX_OPTIMIZERS:
            self._watched.setdefault(stepping, Watched(type(stepping).__name__))
        if (begun := self._watched.get(stepping)) is not None and not begun.is_settled:
            begun.begin_round(stepping)

    def _counting(self, step: OpenStep) -> Iterator[tuple[torch.optim.Optimizer, Watched]]:
        if step.number >= FIRST_STEPS:
            self._watched.clear()
        for optimizer, watched in list(self._watched.items()):
            if step.window is not None:  # what it shows is to be the program's: the round does not count
                watched.rows = ()
            if watched.rows:
                yield optimizer, watched

    def _look(self, step: OpenStep, optimizer: torch.optim.Optimizer, watched: Watched) -> bool:
        is_there = watched.look(optimizer)
        if watched.is_gone:
            self._tell(step, watched, "cleared")
        return is_there

    def _judge(self, step: OpenStep, watched: Watched) -> None:
        """Nothing is told of gradients that were changed in place: by whom nobody knows."""
        passes, site = watched.passes, self._sites.of_caller()
        told = [torch.stack(watched.were_kept + watched.were_added_to).all(), *watched.differ[1::2]]
        watched.is_settled, watched.rows = True, ()

        def judge(values: list[float]) -> None:
            are_kept, *have_added = values
            if are_kept:
                self._tell(step, watched, "kept", site, list(compress(passes, have_added)))

        if told[0].is_cpu:
            judge([read_value(one) for one in told])
        else:
            self._late.owe(step.late, [on_device(one) for one in told], self._guard(judge))

    def _tell(
        self, step: OpenStep, watched: Watched, outcome: Outcome, site: str | None = None, adding: Sequence[Pass] = ()
    ) -> None:
        sites = [line for line, num_others in adding if num_others == adding[-1][1]]
        self._note(
            GradientClearing(
                step=step.number,
                optimizer=watched.optimizer,
                outcome=outcome,
                num_steps=len(watched.were_kept),
                backward_sites=list(dict.fromkeys(filter(None, sites))),
                num_earlier_backwards=len(adding) - len(sites),
                step_site=site,
            )
        )


def start(session: Session) -> None:
    late, guard = session.late_values, session.shell.guard(COLLECTOR)
    session.attach(COLLECTOR, ClearingWatch(session.loop, session.sites, late, session.note, guard))


def _row(parameters: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """A copy of a row of each one's gradient; None where one has none that can be read without waiting."""
    rows = []
    for parameter in parameters:
        gradient = parameter.grad
        if not _can_be_read(gradient):
            return None
        row = gradient.detach()
        while row.ndim > 1:  # no index: the program may have put its own function there
            row = row.select(0, 0)
        row = row.narrow(0, 0, min(MAX_ROW, row.shape[0])) if row.ndim else row.reshape(1)
        rows.append(row.to(torch.float32))
    return torch.cat([row for row in rows if row.device == rows[0].device]) if rows else None


def _can_be_read(gradient: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    if not is_plain(gradient) or not gradient.numel() or not gradient.untyped_storage().nbytes():
        return False
    return gradient.is_cpu or is_read_late(gradient)
