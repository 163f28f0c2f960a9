"""Finds out in the first steps whether anything clears the gradients between two steps of an optimizer.

A cleared gradient is gone or was zeroed in place; one that a backward pass adds to stays the tensor that it was, and
autograd raises its version by one (measured, torch 2.13). So a few gradients of each optimizer are looked at where it
steps and where each backward pass begins: what was touched in between, other than by a backward pass whose graph
reaches the parameter, is not called kept. What touched it may have been no clearing: in doubt the optimizer is let off.
No value is read up to here. Of `gradient.data.zero_()` no version tells, so in the last two rounds a row of each is
counted where a pass begins, on a device without waiting for it.
"""

import sys
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch

from efprof.artifacts.events import GradientClearing
from efprof.recorder.gradients import answers_late, is_plain, read_value
from efprof.recorder.open_step import OpenStep
from efprof.recorder.session import Session
from efprof.recorder.sprint import FIRST_STEP

MAX_GRADIENTS = 4
"""Of an optimizer, that are looked at: its last ones, since the graph's nodes next to the loss reach those."""

MAX_OPTIMIZERS = 8
"""That are watched: a program with more has one for each parameter, and clears all alike."""

MAX_NODES = 1000
"""Of a graph, looked at for these parameters: 0.15 to 0.45 ms (measured, 400 small layers), and only in a program that
has kept its gradients so far. What lies deeper is taken for not reached, and its optimizer let off."""

NUM_STEPS = 10
"""Of one optimizer, without a clearing between any two. A program that clears every other step, or at the end of a
short epoch, does so within as many."""

NUM_READ_STEPS = 2
"""The last of these, before which it is looked for numbers other than zero."""

MAX_ROW = 4096
"""Of a gradient's numbers that are looked through then, in one row."""

Outcome = Literal["cleared", "changed", "kept"]


@dataclass(slots=True)
class Look:
    """One gradient as it was when last looked at."""

    parameter: weakref.ref[torch.Tensor]
    gradient: weakref.ref[torch.Tensor]
    version: int


@dataclass(slots=True)
class Watched:
    """What is known of one optimizer.

    `sites` are the lines of the backward passes that reached it since another optimizer's step; `num_earlier` did
    before that, since its own.
    """

    looks: list[Look] = field(default_factory=list)
    outcome: Outcome | None = None
    num_kept: int = 0
    reached: frozenset[int] = frozenset()
    """By `id`, the parameters that the backward pass since the last look adds to."""
    has_added: bool = False
    sites: list[str] = field(default_factory=list)
    num_earlier: int = 0
    is_others_turn: bool = False
    counts: list[torch.Tensor] = field(default_factory=list)
    """Of numbers other than zero when a pass began that reached it, which a device still has to tell."""

    @property
    def parameters(self) -> set[int]:
        """Those that are looked at, by `id`; some may be gone."""
        return {id(parameter) for look in self.looks if (parameter := look.parameter()) is not None}

    def look(self, *, num_scalings: int = 0) -> None:
        """Compare with the last look; so many times the gradients may have been scaled in place since."""
        for look in self.looks:
            parameter, known = look.parameter(), look.gradient()
            if parameter is None:
                continue
            gradient = parameter.grad
            is_reached = id(parameter) in self.reached
            if gradient is None or gradient is not known:
                # Another one may hold the sum: DistributedDataParallel moves it to a view of its bucket, a backward
                # pass that makes a graph of its own to a new tensor.
                self.outcome = "cleared" if gradient is None else "changed"
                return
            num_changes = gradient._version - look.version
            look.version = gradient._version
            self.has_added |= is_reached and num_changes > 0
            if num_changes > is_reached + num_scalings:
                self.outcome = "changed"
        self.reached = frozenset()

    def note_backward(self, reached: frozenset[int], site: str | None) -> None:
        """A backward pass begins that adds to these parameters, by `id`."""
        self.reached = reached & self.parameters
        if not self.reached:
            return
        if self.is_others_turn:
            self.num_earlier += len(self.sites)
            self.sites, self.is_others_turn = [], False
        self.sites.append(site or "")

    def count_numbers(self) -> None:
        """A pass begins that reaches it: where all is zero, somebody has cleared it, or it has nothing to clear."""
        if not self.reached or self.num_kept < NUM_STEPS - NUM_READ_STEPS:
            return
        rows = [_row(gradient) for look in self.looks if (gradient := look.gradient()) is not None]
        with torch.no_grad():
            counts = [torch.count_nonzero(row) for row in rows if row.device == rows[0].device]
            count = torch.stack(counts).sum()
        if not _is_told(count):
            self.counts.append(count)
        elif not read_value(count):
            self.outcome = "changed"

    def begin_round(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer steps: from here to its next step its gradients have to be cleared."""
        self.looks = _looks_at(optimizer)
        self.has_added, self.sites, self.num_earlier, self.is_others_turn = False, [], 0, False


class ClearingWatch:
    """Listens until the steps may be recorded in short; holds no optimizer, and no tensor of the program's."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._watched: WeakKeyDictionary[torch.optim.Optimizer, Watched] = WeakKeyDictionary()
        self._num_clips = 0
        guarded, loop = session.shell.guarded, session.loop
        self._backward_began = guarded("gradient_clearing", self._note_backward)
        self._optimizer_began = guarded("gradient_clearing", self._note_step)
        self._clipped = guarded("gradient_clearing", self._note_clip)
        loop.backward_began.append(self._backward_began)
        loop.optimizer_began.append(self._optimizer_began)
        loop.clipped.append(self._clipped)

    def _note_backward(self, step: OpenStep, tensors: Any, _: object) -> None:
        if step.number >= FIRST_STEP:
            self._stop()
            return
        self._num_clips = 0
        unsettled = self._unsettled()
        for _, watched in unsettled:
            watched.look()
        still = [watched for _, watched in unsettled if watched.outcome is None]
        reached = _reached(tensors, still) if still else frozenset()
        for watched in still:
            watched.note_backward(reached, step.backward_site)
            watched.count_numbers()
        for optimizer, watched in unsettled:
            if watched.outcome is not None:
                self._write(step, optimizer, watched)

    def _note_step(self, step: OpenStep, stepping: torch.optim.Optimizer) -> None:
        """Just before the step, with a closure just after it."""
        if step.number >= FIRST_STEP:
            self._stop()
            return
        for optimizer, watched in self._unsettled():
            is_own = optimizer is stepping
            watched.look(num_scalings=self._num_clips + _averages_ranks() if is_own else 0)
            watched.is_others_turn |= not is_own
            if is_own and watched.outcome is None:
                watched.num_kept += watched.has_added
                watched.outcome = "kept" if watched.num_kept >= NUM_STEPS else None
            if watched.outcome is not None:
                self._write(step, optimizer, watched)
            elif is_own:
                watched.begin_round(optimizer)
        self._num_clips = 0
        if stepping not in self._watched and len(self._watched) < MAX_OPTIMIZERS:
            self._watched[stepping] = watched = Watched()
            watched.begin_round(stepping)

    def _note_clip(self, *_: object) -> None:
        self._num_clips += 1

    def _unsettled(self) -> list[tuple[torch.optim.Optimizer, Watched]]:
        return [(optimizer, watched) for optimizer, watched in self._watched.items() if watched.outcome is None]

    def _write(self, step: OpenStep, optimizer: torch.optim.Optimizer, watched: Watched) -> None:
        """Once for each optimizer; `kept` is found out where it steps."""
        session, is_kept, counts = self._session, watched.outcome == "kept", watched.counts
        assert watched.outcome is not None
        event = GradientClearing(
            at_ns=time.time_ns(),
            step=step.number,
            optimizer=type(optimizer).__name__,
            outcome=watched.outcome,
            num_steps=watched.num_kept,
            backward_sites=list(dict.fromkeys(filter(None, watched.sites))) if is_kept else [],
            num_backwards=len(watched.sites) if is_kept else 0,
            num_earlier_backwards=watched.num_earlier if is_kept else 0,
            step_site=session.sites.of_caller(sys._getframe()) if is_kept else None,
        )
        watched.looks, watched.counts = [], []
        if is_kept and counts:
            guarded = session.shell.guarded("gradient_clearing", _noting_late(session, event, counts))
            step.owe(lambda: guarded() is not False)
        else:
            session.note(event)

    def _stop(self) -> None:
        """Anew instead of in place: the loop is going through one of these lists."""
        loop = self._session.loop
        loop.backward_began = [listener for listener in loop.backward_began if listener is not self._backward_began]
        loop.optimizer_began = [listener for listener in loop.optimizer_began if listener is not self._optimizer_began]
        loop.clipped = [listener for listener in loop.clipped if listener is not self._clipped]
        self._watched.clear()


def _averages_ranks() -> bool:
    """Whether DistributedDataParallel may write the mean over the ranks back into each gradient (measured: once)."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def start(session: Session) -> None:
    """Listen to backward passes and optimizer steps."""
    ClearingWatch(session)


def _looks_at(optimizer: torch.optim.Optimizer) -> list[Look]:
    """The optimizer's last parameters with a gradient whose version tells of every change."""
    looks: list[Look] = []
    for group in reversed(optimizer.param_groups):
        for parameter in reversed(group["params"]):
            gradient = parameter.grad
            if gradient is None or not _tells_of_changes(gradient):
                continue
            looks.append(Look(weakref.ref(parameter), weakref.ref(gradient), gradient._version))
            if len(looks) == MAX_GRADIENTS:
                return looks
    return looks


def _tells_of_changes(gradient: torch.Tensor) -> bool:
    """Whether its version counts them, and its values can be looked at without waiting for them."""
    is_whole = is_plain(gradient) and gradient.numel() > 0 and gradient.untyped_storage().nbytes() > 0
    return is_whole and not gradient.is_inference() and (gradient.is_cpu or answers_late(gradient))


def _row(gradient: torch.Tensor) -> torch.Tensor:
    """One of its rows, without a copy."""
    return gradient.detach()[(0,) * (gradient.ndim - 1)][:MAX_ROW] if gradient.ndim else gradient.detach()


def _is_told(count: torch.Tensor) -> bool:
    """Whether reading it waits for nothing."""
    return count.is_cpu


def _noting_late(session: Session, event: GradientClearing, counts: list[torch.Tensor]) -> Callable[[], bool]:
    """What notes the event as soon as the device has told the counts, and then returns True."""
    copies = [
        torch.empty((), dtype=torch.int64, device="cpu", pin_memory=True).copy_(count, non_blocking=True)
        for count in counts
    ]
    told: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    told.record()

    def note() -> bool:
        if not told.query():
            return False
        if not all(read_value(copy) for copy in copies):
            event.outcome = "changed"
        session.note(event)
        return True

    return note


def _reached(tensors: Any, watched: Iterable[Watched]) -> frozenset[int]:
    """By `id`, the parameters looked at that the graph of these tensors ends in, as far as it is walked."""
    wanted = {parameter for one in watched for parameter in one.parameters}
    found: set[int] = set()
    losses = tensors if isinstance(tensors, list | tuple) else (tensors,)
    roots = [loss.grad_fn for loss in losses if isinstance(loss, torch.Tensor) and loss.grad_fn is not None]
    waiting, seen = list(roots), set(roots)
    for node in waiting:
        below = node.next_functions
        if not below:
            found.update({id(getattr(node, "variable", None))} & wanted)
        new = [child for child, _ in below if child is not None and child not in seen]
        seen.update(new)
        waiting += new
        if len(found) == len(wanted) or len(waiting) > MAX_NODES:
            break
    return frozenset(found)
