"""Sees whether gradients that a backward pass left are cleared as the next pass of its line begins, without an update.

A few parameters of each optimizer are looked at as passes begin and end. Where a parameter has changed in between, as
in sharpness-aware training, the gradient was used; a pass in the closure of an optimizer's step is that step's own.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakSet

import torch

from efprof.artifacts.events import DiscardedPasses
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.numbers.step_numbers import is_plain, outside_modes, parameters_of, read_value
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Note
from efprof.recorder.session.sites import Sites

COLLECTOR = "discarded_passes"

MAX_PARAMETERS = 4
"""Of an optimizer, its last ones, which nearly every pass reaches."""
MAX_OPTIMIZERS = 8
MAX_NUMBERS = 4096
"""Of a gradient on the CPU, that are looked at for whether all are zero."""
MAX_UPDATES = 100
NOTED_AT = frozenset({5, 10, 30, MAX_UPDATES})
"""Updates of a line after which its counts are written; and at the end."""


class _Seen(NamedTuple):
    """The `id` of a parameter's gradient, None without one; how often that and the parameter had been written to."""

    gradient: int | None
    num_writes: int
    num_updates: int


class _Left(NamedTuple):
    """The line of the last pass, and the parameters whose gradients it wrote to, by their `id`."""

    site: str
    seen: dict[int, _Seen]


@dataclass(eq=False)
class DiscardWatch:
    """Holds no tensor of the program's, and no optimizer."""

    _loop: Loop
    _sites: Sites
    _note: Note
    _known: WeakSet[torch.optim.Optimizer] = field(default_factory=WeakSet)
    _events: dict[str, DiscardedPasses] = field(default_factory=dict)
    _before: dict[int, _Seen] | None = None
    """As the pass began that runs."""
    _left: _Left | None = None
    _num_passes: Counter[str] = field(default_factory=Counter)
    _num_discarded: Counter[str] = field(default_factory=Counter)
    """By their line, since the last update."""
    _is_clipped: bool = False
    _is_rewritten: bool = False

    def step_began(self, _: OpenStep) -> None:
        self._forget()

    def backward_began(self, step: OpenStep, *_: object) -> None:
        left, site, self._before = self._left, step.backward_site, None
        self._left, self._is_clipped, self._is_rewritten = None, False, False
        if self._loop.has_closure or site is None or self._has_enough(site):
            return
        self._before = now = self._look()
        self._num_passes[site] += 1
        if (
            left is not None
            and left.site == site
            and all(_is_cleared(now.get(key), at) for key, at in left.seen.items())
        ):
            self._num_discarded[site] += 1

    def backward_ended(self) -> None:
        step, before = self._loop.step, self._before
        self._before = None
        if before is not None and step is not None and step.backward_site is not None:
            now = self._look()
            written = {key: at for key, at in now.items() if at.gradient is not None and at != before.get(key)}
            self._left = _Left(step.backward_site, written) if written else None

    def clip_began(self, *_: object) -> None:
        if self._left is not None:
            self._is_rewritten |= self._has_other_numbers(self._left)
            self._is_clipped = True

    def optimizer_began(self, _: OpenStep, optimizer: torch.optim.Optimizer) -> None:
        if self._left is not None:
            self._count(self._left)
        if len(self._known) < MAX_OPTIMIZERS:
            self._known.add(optimizer)
        self._forget()

    def at_end(self) -> None:
        for event in self._events.values():
            self._note(event)

    def _forget(self) -> None:
        self._before = self._left = None
        self._num_passes.clear()
        self._num_discarded.clear()
        self._is_clipped = self._is_rewritten = False

    def _has_enough(self, site: str) -> bool:
        return site in self._events and self._events[site].num_updates == MAX_UPDATES

    def _count(self, left: _Left) -> None:
        """Gradients that the program has put in the place of those of the passes are made of all of them."""
        event = self._events.setdefault(left.site, DiscardedPasses(step=self._loop.number, site=left.site))
        now = self._look()
        are_replaced = any(key not in now or now[key].gradient != at.gradient for key, at in left.seen.items())
        num_discarded = 0 if are_replaced else self._num_discarded[left.site]
        event.num_updates += 1
        event.num_passes += self._num_passes[left.site]
        event.num_discarded += num_discarded
        event.num_discarding += num_discarded > 0
        event.num_rewritten += self._is_rewritten or self._has_other_numbers(left)
        event.step_site = self._sites.of_caller()
        if event.num_updates in NOTED_AT:
            self._note(event)

    def _has_other_numbers(self, left: _Left) -> bool:
        """True if something wrote to the gradients that the last pass left, other than clipping or a scaler."""
        if self._is_clipped or self._loop.scaled_losses.by_id:
            return False
        now = self._look()
        return any(key in now and now[key].num_writes != at.num_writes for key, at in left.seen.items())

    def _look(self) -> dict[int, _Seen]:
        with outside_modes(), torch.no_grad():
            every = [[one for one in parameters_of(of) if one.requires_grad] for of in list(self._known)]
            return {id(one): _seen(one) for parameters in every for one in parameters[-MAX_PARAMETERS:]}


def start(session: Session) -> None:
    session.attach(COLLECTOR, DiscardWatch(session.loop, session.sites, session.note))


def _is_cleared(now: _Seen | None, before: _Seen) -> bool:
    return now is not None and now.gradient is None and now.num_updates == before.num_updates


def _seen(parameter: torch.Tensor) -> _Seen:
    gradient = parameter.grad
    if gradient is None or _is_zero(gradient):
        return _Seen(None, 0, _num_writes(parameter))
    return _Seen(id(gradient), _num_writes(gradient), _num_writes(parameter))


def _is_zero(gradient: torch.Tensor) -> bool:
    """True if the first numbers of a gradient on the CPU are: of a device, nobody waits for the answer."""
    if not (is_plain(gradient) and gradient.is_cpu and gradient.is_contiguous()):
        return False
    first = gradient.detach().reshape(-1).narrow(0, 0, min(MAX_NUMBERS, gradient.numel()))
    return not read_value(first.any())


def _num_writes(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
