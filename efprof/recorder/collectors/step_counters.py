"""Sees in the first steps whether a whole number that is called a step grows by more than one with each update."""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import torch

from efprof.artifacts.events import StepCounter
from efprof.recorder.budget.sampling import FIRST_STEPS
from efprof.recorder.holders.variables import locals_of, may_read_locals
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Note
from efprof.recorder.session.sites import Sites

NAMED = re.compile(
    r"(?:global|train|total|cur|current|num|n|opt)?_?(?:step|iter|iteration|update)s?(?:_(?:count|num|no))?"
)
"""All of a name; `steps_per_epoch` and `max_steps` are no counters, and stay the same."""
MAX_FRAMES = 4
"""Of the user's, from the update outwards."""
MIN_UPDATES = 10
MIN_ALIKE = 0.8
"""Of the updates, by how much it grew in the others."""

Key = tuple[str, str]
"""The file and function that it is a variable of, or whose `self` has it, and its name with `self.` before it."""


@dataclass(eq=False)
class CounterWatch:
    """Holds numbers alone."""

    _loop: Loop
    _sites: Sites
    _note: Note
    _last: dict[Key, int] = field(default_factory=dict)
    _growth: dict[Key, Counter[int]] = field(default_factory=dict)
    _passes: Counter[int] = field(default_factory=Counter)
    _num_passes: int = 0
    _optimizer: int | None = None
    """The `id` of the first that steps: of several each has its own part of an update."""
    _is_over: bool = False

    def backward_began(self, *_: object) -> None:
        self._num_passes += 1

    def optimizer_began(self, step: OpenStep, optimizer: torch.optim.Optimizer) -> None:
        if self._is_over or self._optimizer not in (None, id(optimizer)):
            return
        if step.number >= FIRST_STEPS:
            self._is_over = True
            self._judge()
            return
        self._optimizer = id(optimizer)
        self._passes[self._num_passes] += 1
        self._num_passes = 0
        for key, value in self._counters():
            if key in self._last:
                self._growth.setdefault(key, Counter())[value - self._last[key]] += 1
            self._last[key] = value

    def at_end(self) -> None:
        if not self._is_over:
            self._judge()

    def _counters(self) -> Iterator[tuple[Key, int]]:
        if sys.gettrace() is not None:
            return
        for frame in islice(self._sites.user_frames(), MAX_FRAMES):
            code = frame.f_code
            place = self._sites.of_line(code, code.co_firstlineno)
            names = locals_of(frame) if may_read_locals(code) else frame.f_globals
            own = getattr(names.get("self"), "__dict__", {})
            for prefix, values in (("", names), ("self.", own)):
                for name, value in list(values.items()):
                    if type(value) is int and NAMED.fullmatch(name):
                        yield (place, prefix + name), value

    def _judge(self) -> None:
        """One that grows by the number of passes counts those, as is common."""
        usual_passes = max(self._passes, key=self._passes.__getitem__, default=1)
        for (place, name), growth in self._growth.items():
            (by, num), num_updates = growth.most_common(1)[0], growth.total()
            if num_updates >= MIN_UPDATES and num >= MIN_ALIKE * num_updates and by > 1 and by != usual_passes:
                self._note(
                    StepCounter(
                        step=self._loop.number, site=place, name=name, by=by, num_updates=num_updates, num_alike=num
                    )
                )


def start(session: Session) -> None:
    session.attach("step_counters", CounterWatch(session.loop, session.sites, session.note))
