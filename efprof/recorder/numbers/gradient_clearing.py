"""Sees in the first steps whether anything clears the gradients between two steps of an optimizer.

A few of its gradients' numbers are copied where it steps and where each backward pass begins and ends. As a pass begins
they are gone, others, or the same, and then that pass adds to them. Before its step a gradient may be scaled, as by
clipping. Where some are cleared, it is asked by the line of the last pass before the step: one branch of a program may
clear its gradients, and another one not. On a device nobody waits for an answer.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, islice
from typing import NamedTuple, TypeGuard
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

MAX_AT_EACH_END = 2
"""Gradients of an optimizer that are looked at: nearly every backward pass reaches its last ones, or, where it has
several heads, its first ones."""

MAX_OPTIMIZERS = 8
"""That are watched: a program with more has one for each parameter, and clears all alike."""

MAX_ROW = 4096
"""Of a gradient's numbers, of its first row."""

NUM_STEPS = 10
"""Of one optimizer, without a clearing between any two. A program that clears every other step, or at the end of a
short epoch, does so within as many."""

MIN_OF_LINE = 4
"""Such rounds of one line, where those of another are all cleared."""

MIN_COSINE = 0.99
"""Between gradients and the same ones scaled: rounding leaves more."""

COLLECTOR = "gradient_clearing"

Pass = tuple[str | None, int]
"""The line of a backward pass, and how many other optimizers had stepped by then."""


class Round(NamedTuple):
    """From one step of an optimizer to its next one, at `site`; `line` is that of the last pass before it.

    `flags` say whether nothing but scaling changed the gradients between `passes`, and of each of these whether it
    added to them. There are neither where the gradients were gone.
    """

    line: str | None
    site: str | None
    passes: Sequence[Pass] = ()
    flags: Sequence[torch.Tensor] = ()


Told = tuple[Round, list[bool]]
"""A round and its flags, once they are known."""


class Watched:
    """One optimizer, in rounds from one of its steps to the next; parameters are known by their places in it.

    One that there is a weak reference to could not be exchanged, as `torch.utils.swap_tensors` has it.
    """

    def __init__(self, optimizer: str) -> None:
        self.optimizer = optimizer
        self.is_settled = self.is_gone = False
        """Whether all is told, or cannot be; and whether its gradients were cleared in this round."""
        self.is_told_cleared = False
        self.rounds: list[Round] = []
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
        ends = [range(len(every)), reversed(range(len(every)))]
        readable = [(place for place in end if _can_be_read(every[place].grad)) for end in ends]
        self._places = list(dict.fromkeys(place for end in readable for place in islice(end, MAX_AT_EACH_END)))
        row = _row([every[place] for place in self._places])
        self.rows, self.differ, self.passes, self.num_others = () if row is None else (row,), [], [], 0
        self.is_gone = False

    @property
    def is_within_pass(self) -> bool:
        return len(self.differ) % 2 == 1

    def look(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the gradients are there still."""
        every, last = parameters_of(optimizer), self.rows[-1]
        parameters = [every[place] for place in self._places if place < len(every)]
        row = _row(parameters)
        if row is None or row.shape != last.shape or row.device != last.device:
            self.is_gone = any(parameter.grad is None for parameter in parameters)
            self.is_settled, self.rows = not self.is_gone, ()
            return False
        self.rows = last, row
        self.differ.append((last != row).any())
        return True

    def end_round(self, line: str | None, site: str | None) -> None:
        """It steps again, with what the passes have left, which may be scaled."""
        if self.is_gone:
            self.rounds.append(Round(line, site))
        elif self.rows and self.passes:
            last, now = self.rows
            is_scaled = torch.dot(last, now) > MIN_COSINE * last.norm() * now.norm()
            *between, at_step = self.differ[::2]
            is_kept = ~torch.stack([*between, at_step & ~is_scaled]).any()
            self.rounds.append(Round(line, site, tuple(self.passes), (is_kept, *self.differ[1::2])))


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
    _every: list[Watched] = field(default_factory=list)
    """Those of optimizers that are no more as well."""

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
            elif watched.is_within_pass:
                watched.rows = ()
            else:
                self._look(step, stepping, watched)
        if step.window is not None:
            return
        begun = self._watched.get(stepping)
        if begun is None and step.number < FIRST_STEPS and len(self._watched) < MAX_OPTIMIZERS:
            begun = self._watched[stepping] = Watched(type(stepping).__name__)
            self._every.append(begun)
        if begun is None or begun.is_settled:
            return
        begun.end_round(step.backward_site, self._sites.of_caller())
        self._judge_early(step, begun)
        if not begun.is_settled:
            begun.begin_round(stepping)

    @_quietly
    def step_began(self, step: OpenStep) -> None:
        if step.number >= FIRST_STEPS:
            self._judge_all(step)

    @_quietly
    def at_end(self) -> None:
        self._judge_all(self._loop.step)

    def _counting(self, step: OpenStep) -> Iterator[tuple[torch.optim.Optimizer, Watched]]:
        for optimizer, watched in list(self._watched.items()):
            if step.window is not None:  # what it shows is to be the program's: the round does not count
                watched.rows, watched.is_gone = (), False
            if watched.rows:
                yield optimizer, watched

    def _look(self, step: OpenStep, optimizer: torch.optim.Optimizer, watched: Watched) -> bool:
        is_there = watched.look(optimizer)
        if watched.is_gone and not watched.is_told_cleared:
            watched.is_told_cleared = True
            self._note(GradientClearing(step=step.number, optimizer=watched.optimizer, outcome="cleared", num_steps=0))
        return is_there

    def _judge_early(self, step: OpenStep, watched: Watched) -> None:
        """Nothing is told of gradients that were changed in place: by whom nobody knows."""
        rounds = watched.rounds
        if len(rounds) != NUM_STEPS or not all(one.flags for one in rounds):
            return

        def judge(told: Sequence[Told]) -> None:
            are_kept = all(_keeps(flags) for _, flags in told)
            if are_kept and not watched.is_settled:
                self._tell_kept(watched, told)
            watched.is_settled |= are_kept or len({one.line for one, _ in told}) == 1

        self._read(step, rounds, judge)

    def _judge_all(self, step: OpenStep | None) -> None:
        for watched in self._every:
            if not watched.is_settled:
                self._read(step, watched.rounds, functools.partial(self._judge_lines, watched))
        self._every.clear()
        self._watched.clear()

    def _judge_lines(self, watched: Watched, told: Sequence[Told]) -> None:
        """Tell of lines all of whose rounds keep the gradients, where all rounds of each other line clear them.

        Where a line does both, the program clears by another rule, as after so many steps.
        """
        by_line = defaultdict[str | None, list[Told]](list)
        for one in told:
            by_line[one[0].line].append(one)
        keeping = [ones for ones in by_line.values() if all(_keeps(flags) for _, flags in ones)]
        clearing = [ones for ones in by_line.values() if not any(flags and flags[0] for _, flags in ones)]
        if watched.is_settled or not clearing or len(clearing) + len(keeping) < len(by_line):
            return
        for ones in keeping:
            if len(ones) >= MIN_OF_LINE:
                self._tell_kept(watched, ones, num_cleared=sum(map(len, clearing)))

    def _read(self, step: OpenStep | None, rounds: Sequence[Round], take: Callable[[Sequence[Told]], None]) -> None:
        seen = tuple(rounds)  # more may come before a device answers
        flags = [flag for one in seen for flag in one.flags]

        def told(values: Sequence[float]) -> None:
            left = iter(values)
            take([(one, [bool(next(left)) for _ in one.flags]) for one in seen])

        if all(flag.is_cpu for flag in flags):
            told([read_value(flag) for flag in flags])
        elif step is not None:
            self._late.owe(step.late, [on_device(flag) for flag in flags], self._guard(told))

    def _tell_kept(self, watched: Watched, kept: Sequence[Told], num_cleared: int = 0) -> None:
        last, flags = kept[-1]
        adding = list(compress(last.passes, flags[1:]))
        sites = [line for line, num_others in adding if num_others == adding[-1][1]]
        self._note(
            GradientClearing(
                step=self._loop.number,
                optimizer=watched.optimizer,
                outcome="kept",
                num_steps=len(kept),
                backward_sites=list(dict.fromkeys(filter(None, sites))),
                num_earlier_backwards=len(adding) - len(sites),
                step_site=last.site,
                num_cleared=num_cleared,
            )
        )


def start(session: Session) -> None:
    late, guard = session.late_values, session.shell.guard(COLLECTOR)
    session.attach(COLLECTOR, ClearingWatch(session.loop, session.sites, late, session.note, guard))


def _keeps(flags: Sequence[bool]) -> bool:
    """True if the gradients were kept, and a pass added to them."""
    return bool(flags) and flags[0] and any(flags[1:])


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
