"""Sees whether layers that do otherwise in an evaluation, dropout and batch statistics, are trained in that mode."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from efprof.artifacts.events import TrainedAsEvaluated
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.numbers.step_numbers import parameters_of
from efprof.recorder.session.session import Session
from efprof.recorder.session.sites import Sites

NOTED_AT = frozenset({10, 30, 100, 300, 1000, 3000, 10_000})
"""Updates in that mode after which they are written; and at the end."""
MAX_SWITCHED = 16
"""Of the modules that were last put into evaluation mode, the line is kept."""


@dataclass
class _Root:
    """A module that the program calls, its layers that have two modes, and the number of one of its parameters."""

    module: weakref.ref[torch.nn.Module]
    layers: list[weakref.ref[torch.nn.Module]]
    parameter: int
    event: TrainedAsEvaluated | None = None
    num_updates: int = 0

    @property
    def is_evaluated(self) -> bool:
        """Whether it and all of these are in evaluation mode: batch statistics alone may be frozen on purpose."""
        alive = [one for layer in [self.module, *self.layers] if (one := layer()) is not None]
        return len(alive) > 1 and not any(one.training for one in alive)


@dataclass
class _Modes:
    loop: Loop
    sites: Sites
    note: Callable[[TrainedAsEvaluated], None]
    roots: dict[int, _Root | None] = field(default_factory=dict)
    called: dict[int, bool] = field(default_factory=dict)
    """Since the last update, in steps recorded in full: whether each was in evaluation mode in all calls."""
    switched: dict[int, tuple[weakref.ref[torch.nn.Module], str]] = field(default_factory=dict)

    def eval_began(self, module: torch.nn.Module, *_: object) -> None:
        site = self.sites.of_caller() if self.loop.thread.is_training_thread else None
        if site is not None:
            self.switched.pop(id(module), None)
            self.switched[id(module)] = weakref.ref(module), site
            while len(self.switched) > MAX_SWITCHED:
                self.switched.pop(next(iter(self.switched)))

    def module_began(self, module: torch.nn.Module, _: Any) -> None:
        if not torch.is_grad_enabled():
            return
        number = id(module)
        root = self.roots.get(number)
        if root is None or root.module() is not module:
            if number in self.roots and root is None:
                return
            root = self.roots[number] = _root(module)
        if root is not None:
            self.called[number] = self.called.get(number, True) and root.is_evaluated

    def optimizer_began(self, _: OpenStep, optimizer: torch.optim.Optimizer) -> None:
        if not self.called:
            return
        numbers = {id(parameter) for parameter in parameters_of(optimizer)}
        for number, is_evaluated in [*self.called.items()]:
            root = self.roots[number]
            if root is not None and root.parameter in numbers:
                del self.called[number]
                self._count(root, is_evaluated=is_evaluated)

    def at_end(self) -> None:
        for root in self.roots.values():
            if root is not None and root.event is not None:
                self.note(root.event)

    def _count(self, root: _Root, *, is_evaluated: bool) -> None:
        root.num_updates += 1
        event = root.event
        if not is_evaluated:
            if event is not None:
                event.num_updates, event.num_last = root.num_updates, 0
            return
        if event is None or not event.num_last:
            event = root.event = self._entered(root, event)
        event.num_updates = root.num_updates
        event.num_last += 1
        event.num_evaluated += 1
        if event.num_evaluated in NOTED_AT:
            self.note(event)

    def _entered(self, root: _Root, before: TrainedAsEvaluated | None) -> TrainedAsEvaluated:
        layers = [one for layer in root.layers if (one := layer()) is not None]
        module = root.module()
        return TrainedAsEvaluated(
            step=self.loop.number,
            module=type(module).__name__,
            kinds=sorted({type(layer).__name__ for layer in layers}),
            num_layers=len(layers),
            site=self._switched_at(module),
            backward_site=self.sites.of_caller(),
            num_evaluated=before.num_evaluated if before else 0,
            num_entries=(before.num_entries if before else 0) + (root.num_updates > 1),
        )

    def _switched_at(self, module: torch.nn.Module | None) -> str | None:
        """Where it, or one that holds it, was last put into that mode."""
        for reference, site in reversed(self.switched.values()):
            outer = reference()
            if outer is not None and any(one is module for one in torch.nn.Module.modules(outer)):
                return site
        return None


def start(session: Session) -> None:
    modes = _Modes(session.loop, session.sites, session.note)
    session.before(torch.nn.Module, "eval", "training_modes", modes.eval_began)
    session.attach("training_modes", modes)


def _root(module: torch.nn.Module) -> _Root | None:
    """None of one without such layers, or that nothing trains; that is not asked again."""
    layers = [one for one in torch.nn.Module.modules(module) if _has_two_modes(one)]
    trained = (one for one in torch.nn.Module.parameters(module) if one.requires_grad)
    parameter = next(trained, None)
    if not layers or parameter is None:
        return None
    return _Root(weakref.ref(module), [*map(weakref.ref, layers)], id(parameter))


def _has_two_modes(module: torch.nn.Module) -> bool:
    kind = type(module)
    if issubclass(kind, _DropoutNd):
        return bool(module.p)
    if issubclass(kind, _BatchNorm):
        return bool(module.track_running_stats)
    return issubclass(kind, torch.nn.RNNBase | torch.nn.MultiheadAttention) and bool(module.dropout)
