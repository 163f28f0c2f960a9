"""Sees whether a schedule of the learning rate moves on with each backward pass, where an update has several."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch

from efprof.artifacts.events import ScheduleMoves
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Note
from efprof.recorder.session.sites import Sites

MAX_SCHEDULES = 16
NOTED_AT = frozenset({5, 10, 30, 100, 300, 1000})
"""Updates after which the counts of a schedule are written; and at the end."""
LENGTHS = ("total_steps", "T_max", "total_iters")
"""What torch's schedules call the number of moves after which they end."""


@dataclass(eq=False)
class _Schedule:
    event: ScheduleMoves
    gaps: list[int] = field(default_factory=list)
    """For each move since the last update, how many passes had begun by then."""


@dataclass(eq=False)
class ScheduleWatch:
    _loop: Loop
    _sites: Sites
    _note: Note
    _schedules: WeakKeyDictionary[Any, _Schedule] = field(default_factory=WeakKeyDictionary)
    _events: list[ScheduleMoves] = field(default_factory=list)
    _num_passes: int = 0
    """Since the last update."""
    _is_whole: bool = False
    """Whether everything since that was seen, no light step among it."""
    _last_step: int = -1

    def step_began(self, step: OpenStep) -> None:
        if step.number > self._last_step + 1:
            self._is_whole = False
        self._last_step = step.number

    def backward_began(self, *_: object) -> None:
        self._num_passes += 1

    def schedule_moved(self, schedule: Any) -> None:
        """One that moves several times in one gap does so for several processes, as Accelerate has it."""
        seen = self._schedules.get(schedule)
        if seen is None and len(self._events) < MAX_SCHEDULES:
            name, length = next(_lengths(schedule), ("", None))
            event = ScheduleMoves(
                step=self._loop.number,
                number=len(self._events),
                schedule=type(schedule).__name__,
                site=self._sites.of_caller(),
                length=length,
                length_name=name,
            )
            self._events.append(event)
            seen = self._schedules[schedule] = _Schedule(event)
        if seen is not None:
            seen.gaps.append(self._num_passes)
            seen.event.site = self._sites.of_caller()

    def optimizer_began(self, _: OpenStep, __: torch.optim.Optimizer) -> None:
        if not self._num_passes:  # another optimizer has used the same passes
            return
        for seen in list(self._schedules.values()):
            if self._is_whole:
                self._count(seen)
            seen.gaps = [0 for gap in seen.gaps if gap == self._num_passes]  # ahead of the next update's first pass
        self._num_passes, self._is_whole = 0, True

    def at_end(self) -> None:
        for event in self._events:
            self._note(event)

    def _count(self, seen: _Schedule) -> None:
        event, gaps = seen.event, [gap for gap in seen.gaps if gap < self._num_passes]
        event.num_updates += 1
        event.num_moves += len(gaps)
        event.num_drifting += len(set(gaps)) > 1
        if event.num_updates in NOTED_AT:
            self._note(event)


def start(session: Session) -> None:
    session.attach("schedule_moves", ScheduleWatch(session.loop, session.sites, session.note))


def _lengths(schedule: Any) -> Iterator[tuple[str, int]]:
    """What it calls its end, and after how many moves that comes; of Transformers' schedules, their function knows."""
    settings = dict(vars(schedule))
    for function in settings.get("lr_lambdas") or ():
        settings |= getattr(function, "keywords", {})
    for name in (*LENGTHS, "num_training_steps"):
        if isinstance(length := settings.get(name), int):
            yield name, length
