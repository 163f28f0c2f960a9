"""Takes the recorder's hooks out of a recording and puts them back, as often as one likes.

Bare steps and recorded ones can so take turns several times a second, and what a shared machine does to both of them
over seconds cancels out: pairs of blocks half a second long differ by 150 us per step of 2.5 ms for that alone
(measured), and no budget of 40 us could be seen through it.
"""

import gc
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any

import torch
import torch.nn.modules.module as modules
import torch.optim.optimizer as optimizers
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from benchmarks.recording.blocks import Side
from efprof.recorder.budget.sampling import MAX_UNASKED_STEPS
from efprof.recorder.collectors import evaluations
from efprof.recorder.loop.loop import Loop
from efprof.recorder.session import current
from efprof.recorder.session.session import Session

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
    modules._global_forward_pre_hooks,
    modules._global_forward_hooks,
    modules._global_forward_hooks_always_called,
)
"""Those of modules are the recorder's in bursts only."""


class Switch:
    """Made before the recording starts; `learn` is called when all its functions are in place."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._owners = [*OWNERS, *{type(module) for module in model.modules()}]
        self._before = [dict(vars(owner)) for owner in self._owners]
        self._side: Side = "recorded"
        self._changes: list[tuple[Any, str, Any, Any]] = []
        self._hooks: list[dict[int, Any]] = []
        self._listeners: list[Callable[..., Any]] = []
        self._count_nodes, self._num_nodes = evaluations.count_nodes, 0
        """How autograd counts the nodes of its graphs, and how many it had when the bare steps began."""
        self._num_bare = 0
        """Nodes of all the bare steps so far."""

    def learn(self) -> None:
        """Whatever is not as it was is the recorder's. Graphs of bare steps would be an evaluation to it."""
        evaluations.count_nodes = lambda: self._count_nodes() - self._num_bare
        self._changes = list(self._changed())
        if not self._changes:
            raise RuntimeError("the recorder has replaced nothing: there is nothing to measure")

    def turn(self, side: Side) -> None:
        """From here on the steps are bare, or recorded in this way; it takes effect between two steps."""
        was, self._side = self._side, side
        if side == was:
            return
        session = current.session
        if not isinstance(session, Session):
            raise RuntimeError("the recording has ended: there is nothing to measure")
        if was == "bare":
            self._num_bare += self._count_nodes() - self._num_nodes
            self._put_back()
            _resume(session.loop)
        _choose(session, side)
        if side == "bare":
            _pause(session.loop)
            self._take_out()
            self._num_nodes = self._count_nodes()

    def _take_out(self) -> None:
        for owner, name, bare, _ in self._changes:
            if bare is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, bare)
        self._hooks, self._listeners = [dict(hooks) for hooks in HOOKS], list(gc.callbacks)
        for hooks in HOOKS:
            hooks.clear()
        gc.callbacks.clear()

    def _put_back(self) -> None:
        for owner, name, _, recorded in self._changes:
            setattr(owner, name, recorded)
        for hooks, recorded in zip(HOOKS, self._hooks, strict=True):
            hooks.update(recorded)
        gc.callbacks[:] = self._listeners

    def _changed(self) -> Iterable[tuple[Any, str, Any, Any]]:
        for owner, before in zip(self._owners, self._before, strict=True):
            for name, value in vars(owner).items():
                if callable(value) and value is not before.get(name, MISSING):
                    yield owner, name, before.get(name, MISSING), value


def _pause(loop: Loop) -> None:
    """What the program does until `_resume` is part of no step; one that is whole ends here."""
    if not loop.light.is_on and loop.clock.stage is None:
        loop.steps.finish_last(perf_counter_ns())
    loop.thread.pause()


def _resume(loop: Loop) -> None:
    """The next step begins now."""
    loop.thread.resume()
    if not loop.light.is_on:
        loop.mark_interrupted()
        return
    steps = loop.light.steps
    if steps.stepped:
        steps.close()
    steps._start_ns = perf_counter_ns()


def _choose(session: Session, side: Side) -> None:
    """Have every step recorded lightly, or in full, or leave that to the recorder."""
    sampling, light = session.loop.sampling, session.loop.light
    own = vars(sampling)

    def is_due_after(number: int) -> bool:
        sampling.look_at = number + MAX_UNASKED_STEPS
        return side == "full"

    if side in ("light", "full"):
        own["wants_full"], own["is_due_after"] = lambda _: side == "full", is_due_after
        light.is_burst_due = side == "full"
    else:
        own.pop("wants_full", None)
        own.pop("is_due_after", None)
        sampling.look_at = 0
