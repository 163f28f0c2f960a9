"""Sees where optimizers and their schedules are built, and whether one loses what another of the same parameters had
learned.
"""

import weakref
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from efprof.artifacts.events import OptimizerBuilt, ScheduleBuilt
from efprof.recorder.loop.loop import Loop
from efprof.recorder.numbers.step_numbers import parameters_of
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Note
from efprof.recorder.session.sites import Sites, callers

COLLECTOR = "optimizers"

MAX_NOTED = 256
"""Optimizers, and schedules, that are told of: a program may build one in each step."""

MAX_GONE = 8
"""Optimizers that are no more and whose parameters are remembered."""

Versions = frozenset[tuple[int, int]]
"""Of parameters, by `id`, how often each had been written to: so many numbers are not those of other tensors."""


class _Built(NamedTuple):
    """What was told of an optimizer, and what its updates and its parameters had counted as it was built."""

    event: OptimizerBuilt
    num_updates: int
    versions: Versions


@dataclass(eq=False)
class OptimizerWatch:
    """Remembers optimizers by their parameters, and holds neither."""

    _loop: Loop
    _sites: Sites
    _note: Note
    _alive: weakref.WeakKeyDictionary[Any, _Built] = field(default_factory=weakref.WeakKeyDictionary)
    _gone: dict[Versions, str] = field(default_factory=dict)
    _num_built: int = 0
    _num_schedules: int = 0

    def note_built(self, optimizer: Any, *_: object) -> None:
        if not self._loop.thread.is_training_thread or self._num_built == MAX_NOTED:
            return
        event = OptimizerBuilt(
            step=self._loop.number,
            number=self._num_built,
            site=built_at(self._sites, optimizer),
            optimizer=type(optimizer).__name__,
            num_parameters=len(parameters_of(optimizer)),
        )
        if self._is_replacing(optimizer, event.optimizer):
            event.num_lost = event.num_parameters
        self._num_built += 1
        self._alive[optimizer] = _Built(event, self._loop.updates_of[id(optimizer)], _versions(optimizer))
        self._note(event)

    def note_restored(self, optimizer: Any, *_: object) -> None:
        built = self._alive.get(optimizer)
        if built is not None and built.event.num_lost:
            built.event.num_lost = 0
            self._note(built.event)

    def note_gone(self, optimizer: Any) -> None:
        """Before it is torn down."""
        if _has_state(optimizer) and not self._are_set_afresh(optimizer):
            self._gone[_versions(optimizer)] = type(optimizer).__name__
            for oldest in list(self._gone)[:-MAX_GONE]:
                del self._gone[oldest]

    def note_schedule(self, schedule: Any, *_: object) -> None:
        if self._loop.thread.is_training_thread and self._num_schedules < MAX_NOTED:
            self._num_schedules += 1
            site = built_at(self._sites, schedule)
            self._note(ScheduleBuilt(step=self._loop.number, site=site, schedule=type(schedule).__name__))

    def _is_replacing(self, optimizer: Any, name: str) -> bool:
        ids = set(map(id, parameters_of(optimizer)))
        if self._gone.pop(_versions(optimizer), None) == name:
            return True
        return any(
            type(other) is type(optimizer)
            and _has_state(other)
            and set(map(id, parameters_of(other))) == ids
            and not self._are_set_afresh(other)
            for other in list(self._alive)
        )

    def _are_set_afresh(self, optimizer: Any) -> bool:
        """True if most of its parameters were written to other than by its updates: what follows is a new start.

        An update writes to a parameter a fixed number of times, as do weights that are clipped after each one.
        """
        built = self._alive.get(optimizer)
        num_updates = self._loop.updates_of[id(optimizer)] - built.num_updates if built else 0
        if built is None or not num_updates:
            return False
        before = dict(built.versions)
        writes = [version - before.get(key, version) for key, version in _versions(optimizer)]
        return 2 * sum(num % num_updates > 0 for num in writes) > len(writes)


def start(session: Session) -> None:
    watch = OptimizerWatch(session.loop, session.sites, session.note)
    kind: Any = torch.optim.Optimizer
    session.after(kind, "__init__", COLLECTOR, watch.note_built)
    session.after(kind, "load_state_dict", COLLECTOR, watch.note_restored)
    session.after(torch.optim.lr_scheduler.LRScheduler, "__init__", COLLECTOR, watch.note_schedule)
    if not hasattr(kind, "__del__"):
        gone = session.shell.reraise_later(session.shell.guarded(COLLECTOR, watch.note_gone))
        kind.__del__ = gone

        def undo() -> None:
            if vars(kind).get("__del__") is gone:
                del kind.__del__

        session.undo_at_end(undo)


def built_at(sites: Sites, built: Any) -> str | None:
    """The user's line that builds it now: none of an `__init__` of its class, of which the program may have some."""
    codes = {getattr(vars(kind).get("__init__"), "__code__", None) for kind in type(built).__mro__}
    inner = [one for one in callers() if one.f_code in codes]
    return sites.of_caller(inner[-1].f_back if inner else None)


def _versions(optimizer: Any) -> Versions:
    parameters = parameters_of(optimizer)
    return frozenset((id(one), 0 if one.is_inference() else one._version) for one in parameters)


def _has_state(optimizer: Any) -> bool:
    """True if it keeps numbers of a parameter; of one that was never finished nothing is asked."""
    states = vars(optimizer).get("state") or {}
    return any(isinstance(one, dict) and one for one in states.values())
