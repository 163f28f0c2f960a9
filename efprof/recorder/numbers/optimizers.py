"""Sees where optimizers are built, and whether one loses what another of the same parameters had learned."""

import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from efprof.artifacts.events import OptimizerBuilt
from efprof.recorder.loop.loop import Loop
from efprof.recorder.numbers.step_numbers import parameters_of, read_value
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Note
from efprof.recorder.session.sites import Sites, callers

COLLECTOR = "optimizers"

MAX_NOTED = 256
"""Optimizers that are told of: a program may build one in each step."""

MAX_GONE = 8
"""Optimizers that are no more and whose parameters are remembered."""

Versions = frozenset[tuple[int, float]]
"""Of parameters, by `id`, how often each had been written to: so many numbers are not those of other tensors. And of
one of them what `Sample` reads."""


class Sample:
    """What shows whether an optimizer's parameters are as it left them: of the largest the number in its middle.

    It differs from the number of writes where values are put back, as after an evaluation of averaged ones, and where
    `.data` is written to. On a device, where to read it takes a wait, the number of writes has to do.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        readable = filter(_can_be_read, parameters)
        self._parameter = max(readable, key=torch.Tensor.numel, default=parameters[0])
        self._whole = self._middle = torch.empty(0)
        self._left: float | None = None
        self._is_written_between = False
        """Whether the program itself writes to it between two updates, as where weights are clipped."""

    def read(self) -> float:
        one = self._parameter
        if not _can_be_read(one):
            return _num_writes(one)
        with torch._C._DisableTorchDispatch():
            if self._whole.data_ptr() != one.data_ptr():
                self._whole = one.detach()
                self._middle = self._whole[tuple(size // 2 for size in one.shape)]
            return read_value(self._middle)

    def note_next(self) -> None:
        self._is_written_between |= self.is_set_afresh

    def note_update(self) -> None:
        self._left = self.read()

    @property
    def is_set_afresh(self) -> bool:
        """True if it was given another value since the last update, as it was not before."""
        return not self._is_written_between and self._left is not None and self.read() != self._left


@dataclass(eq=False)
class Built:
    """An optimizer that is alive, and what was told of it."""

    event: OptimizerBuilt
    sample: Sample


@dataclass(eq=False)
class OptimizerWatch:
    """Remembers optimizers by their parameters, and holds neither."""

    _loop: Loop
    _sites: Sites
    _note: Note
    _alive: weakref.WeakKeyDictionary[Any, Built] = field(default_factory=weakref.WeakKeyDictionary)
    _gone: dict[Versions, str] = field(default_factory=dict)
    _num_built: int = 0

    def note_built(self, optimizer: Any, *_: object) -> None:
        if not self._loop.thread.is_training_thread or self._num_built == MAX_NOTED:
            return
        # The `__init__`s of its class, of which the program may have some, are passed.
        codes = {getattr(vars(kind).get("__init__"), "__code__", None) for kind in type(optimizer).__mro__}
        frame = sys._getframe()
        inner = [one for one in callers(frame) if one.f_code in codes]
        event = OptimizerBuilt(
            step=self._loop.number,
            number=self._num_built,
            site=self._sites.of_caller(inner[-1].f_back if inner else frame),
            optimizer=type(optimizer).__name__,
            num_parameters=len(parameters_of(optimizer)),
        )
        if self._is_replacing(optimizer, event.optimizer):
            event.num_lost = event.num_parameters
        self._num_built += 1
        self._alive[optimizer] = Built(event, Sample(parameters_of(optimizer)))
        self._note(event)

    def note_next(self, _: object, optimizer: Any) -> None:
        if (built := self._alive.get(optimizer)) is not None:
            built.sample.note_next()

    def note_update(self, optimizer: Any, *_: object) -> None:
        if (built := self._alive.get(optimizer)) is not None:
            built.sample.note_update()

    def note_restored(self, optimizer: Any, *_: object) -> None:
        built = self._alive.get(optimizer)
        if built is not None and built.event.num_lost:
            built.event.num_lost = 0
            self._note(built.event)

    def note_gone(self, optimizer: Any) -> None:
        """Before it is torn down."""
        built = self._alive.get(optimizer)
        if _has_state(optimizer) and not (built and built.sample.is_set_afresh):
            self._gone[_versions(optimizer)] = type(optimizer).__name__
            for oldest in list(self._gone)[:-MAX_GONE]:
                del self._gone[oldest]

    def _is_replacing(self, optimizer: Any, name: str) -> bool:
        ids = set(map(id, parameters_of(optimizer)))
        if self._gone.pop(_versions(optimizer), None) == name:
            return True
        return any(
            type(other) is type(optimizer) and _has_state(other) and set(map(id, parameters_of(other))) == ids
            for other, built in list(self._alive.items())
            if not built.sample.is_set_afresh
        )


def start(session: Session) -> None:
    watch = OptimizerWatch(session.loop, session.sites, session.note)
    kind: Any = torch.optim.Optimizer
    session.after(kind, "__init__", COLLECTOR, watch.note_built)
    session.after(kind, "load_state_dict", COLLECTOR, watch.note_restored)
    session.listen(COLLECTOR, optimizer_began=watch.note_next)
    updated = session.shell.guarded(COLLECTOR, watch.note_update)
    session.undo_at_end(register_optimizer_step_post_hook(updated).remove)
    if not hasattr(kind, "__del__"):
        gone = session.shell.reraise_later(session.shell.guarded(COLLECTOR, watch.note_gone))
        kind.__del__ = gone

        def undo() -> None:
            if vars(kind).get("__del__") is gone:
                del kind.__del__

        session.undo_at_end(undo)


def _versions(optimizer: Any) -> Versions:
    parameters = parameters_of(optimizer)
    written = [(id(one), _num_writes(one)) for one in parameters]
    return frozenset([*written, (0, Sample(parameters).read())])


def _num_writes(parameter: torch.Tensor) -> int:
    return 0 if parameter.is_inference() else parameter._version


def _can_be_read(one: torch.Tensor) -> bool:
    """True if nobody waits for its values, and no code of a class of its own runs."""
    is_plain = type(one) in (torch.Tensor, torch.nn.Parameter) and one.layout == torch.strided
    return is_plain and one.is_cpu and one.data_ptr() != 0


def _has_state(optimizer: Any) -> bool:
    """True if it keeps numbers of a parameter; of one that was never finished nothing is asked."""
    states = vars(optimizer).get("state") or {}
    return any(isinstance(one, dict) and one for one in states.values())
