"""Takes the recorder's hooks out of a recording and puts them back, as often as one likes.

Bare steps and recorded ones can so take turns several times a second, and what a shared machine does to both of them
over seconds cancels out: pairs of blocks half a second long differ by 150 us per step of 2.5 ms for that alone
(measured), and no budget of 40 us could be seen through it.
"""

import gc
from collections.abc import Iterable
from typing import Any

import torch
import torch.optim.optimizer as optimizers
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from efprof.recorder import current

MISSING = object()

OWNERS = (
    torch, torch.autograd, torch.nn.utils, torch.nn.utils.clip_grad, torch.Tensor, torch.amp.GradScaler, DataLoader,
    _BaseDataLoaderIter, gc, torch.cuda, torch.cuda.memory, torch._tensor_str, lr_scheduler.LRScheduler,
    *lr_scheduler.LRScheduler.__subclasses__(),
)  # fmt: skip
"""What the recorder replaces functions of, and a training step calls; the model's classes come on top."""

HOOKS: tuple[dict[int, Any], ...] = (
    optimizers._global_optimizer_pre_hooks,
    optimizers._global_optimizer_post_hooks,
)


class Switch:
    """Made before the recording starts; `learn` is called when all its hooks are in place."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._owners = [*OWNERS, *{type(module) for module in model.modules()}]
        self._bare = [dict(vars(owner)) for owner in self._owners]
        self._is_on = True
        self._changes: list[tuple[Any, str, Any, Any]] = []
        self._hooks: list[dict[int, Any]] = []
        self._watch: Any = None
        self._looks_away = False

    def learn(self) -> None:
        """Whatever is not as it was is the recorder's."""
        self._changes = list(self._changed())
        self._hooks = [dict(hooks) for hooks in HOOKS]
        self._watch = current.session.loop.watch if current.session is not None else None
        self._looks_away = self._watch is not None and self._watch.are_hooks_in
        if not self._changes:
            raise RuntimeError("the recorder has replaced nothing: there is nothing to measure")

    @property
    def places(self) -> list[tuple[Any, str]]:
        """The owners and names of what it has learnt."""
        return [(owner, name) for owner, name, _, _ in self._changes]

    def turn(self, is_on: bool) -> None:
        """From here on the steps are recorded, or bare."""
        if is_on != self._is_on:
            self._is_on = is_on
            (self._put_back if is_on else self._take_out)()

    def _take_out(self) -> None:
        for owner, name, bare, _ in self._changes:
            if bare is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, bare)
        for hooks in HOOKS:
            hooks.clear()
        if self._watch is not None:  # calls of modules are seen in their class's slot: there it looks away
            self._watch.are_hooks_in = True

    def _put_back(self) -> None:
        for owner, name, _, recorded in self._changes:
            setattr(owner, name, recorded)
        for hooks, recorded in zip(HOOKS, self._hooks, strict=True):
            hooks.update(recorded)
        if self._watch is not None:
            self._watch.are_hooks_in = self._looks_away

    def _changed(self) -> Iterable[tuple[Any, str, Any, Any]]:
        for owner, bare in zip(self._owners, self._bare, strict=True):
            for name, value in vars(owner).items():
                if callable(value) and value is not bare.get(name, MISSING):
                    yield owner, name, bare.get(name, MISSING), value
