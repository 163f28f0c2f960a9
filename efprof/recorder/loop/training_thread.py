"""Which thread it is that trains."""

import threading
from collections.abc import Callable
from threading import get_ident
from typing import Any
from weakref import WeakSet

import torch

from efprof.recorder.loop.open_step import Span
from efprof.recorder.loop.steps import StageClock, Steps

NO_THREAD = 0
"""No thread has this number: while it stands for the training's, every entry point returns at once."""


class TrainingThread:
    """Hands the loop that is being recorded from one thread to another.

    One thread trains: the one that imported torch, or another one that steps an optimizer where that one never did, or
    is no more; or several alternate.
    """

    def __init__(
        self, steps: Steps, clock: StageClock, *, is_busy: Callable[[], bool], go_on: Callable[[], None]
    ) -> None:
        """`is_busy` tells whether ours is within a call; `go_on` is called when another one goes on in its place."""
        self.ident = get_ident()
        self._steps = steps
        self._clock = clock
        self._is_busy = is_busy
        self._go_on = go_on
        self.asks_capturing: Callable[[], Any] = lambda: False
        """Whether the current stream is captured; harmless."""
        self.has_captured = False
        self._alternating: set[int] = set()
        self._has_taken_over = False
        self._changing = threading.Lock()
        self._paused: int | None = None
        self._optimizers: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._optimizers_of_others: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._known_updates: set[int] = set()
        """Optimizers of finished steps by `id`, and 0 for an update that was none of an optimizer's."""
        steps.ended.append(lambda step, _: self._known_updates.update(step.stepped))

    @property
    def is_training_thread(self) -> bool:
        """Whether this call comes from the thread that trains, or from one of autograd's that works for it.

        Autograd runs the nodes of a graph that lie on a device, and so the hooks of gradients, on a thread of its own.
        """
        return get_ident() == self.ident or (self.ident != NO_THREAD and self._steps.others.works_for_training_thread)

    def is_training_step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether this call of its step is our thread's.

        While several threads wait for a pass, nobody knows which of them one of autograd's threads works for. It is
        ours if it steps what ours has stepped, or, while ours waits for a pass, what no other was seen to step.
        """
        if self.is_training_thread or self.ident == NO_THREAD or not self._steps.others.is_autograd_thread:
            return self.is_training_thread
        is_new = self._clock.opener == "backward" and optimizer not in self._optimizers_of_others
        return is_new or optimizer in self._optimizers

    @property
    def is_capturing(self) -> bool:
        """Whether what the program does now is captured into a CUDA graph, by whatever way, and is not run."""
        found = bool(self.asks_capturing())
        self.has_captured |= found
        return found

    @property
    def is_alternating(self) -> bool:
        """Whether several threads make the steps, so that nobody can foresee whose call comes next."""
        return bool(self._alternating)

    def set(self, thread: int) -> None:
        self.ident = thread
        self._steps.others.is_paused = thread == NO_THREAD

    def pause(self) -> None:
        """See nothing until `resume`: a CUDA graph is being captured, into which nothing of ours may get."""
        self._paused = self.ident
        self.set(NO_THREAD)

    def resume(self) -> None:
        if self._paused is not None:
            self.set(self._paused)
            self._paused = None

    def stop(self) -> None:
        self.set(NO_THREAD)
        self._paused = None

    def take_over(self, optimizer: torch.optim.Optimizer | None = None) -> bool:
        """Another thread ends a step, by this optimizer or by a mark: whether it is the one that trains from here on.

        It is where ours never trained or is no more, and where the two update the same in turn. Any other is set apart
        for good.
        """
        others = self._steps.others
        if self.ident == NO_THREAD or (others.is_autograd_thread and others.caller == get_ident()):
            return False  # of the latter nobody knows whom it works for
        if not others.is_separate:
            with self._changing:
                if self._is_free() or (self._has_stepped(optimizer) and self._is_idle() and self._made_whole_step()):
                    self._go_on_in_caller()
                    return True
            others.separate_thread()
        if optimizer is not None:
            self._optimizers_of_others.add(optimizer)
        others.count_update()
        return False

    def note_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizers.add(optimizer)

    def continue_in_caller(self) -> bool:
        """Another thread begins a step, or goes on with one: whether it trains from here on.

        It does if it trained before, or if the one that took over is no more.
        """
        if self.ident == NO_THREAD or not self._has_taken_over:
            return False
        others = self._steps.others
        if others.is_separate or others.is_within or not (get_ident() in self._alternating or self._has_ended()):
            return False
        with self._changing:
            if not self._has_ended() and (not self._is_idle() or self._is_under_way()):
                return False
            self._go_on_in_caller()
        return True

    def _is_free(self) -> bool:
        step = self._steps.open
        has_trained = self._has_taken_over or self._steps.num_finished or self._clock.opener == "optimizer"
        if not has_trained and not (step is not None and step.stepped):
            return True
        return self._has_ended()

    def _has_ended(self) -> bool:
        return all(thread.ident != self.ident for thread in threading.enumerate())

    def _has_stepped(self, optimizer: torch.optim.Optimizer | None) -> bool:
        """Whether our thread has stepped it, too; None is an update that was none of an optimizer's."""
        if optimizer is not None and optimizer not in self._optimizers:  # another one may lie where one of them lay
            return False
        number, step = 0 if optimizer is None else id(optimizer), self._steps.open
        return number in self._known_updates or (step is not None and number in step.stepped)

    def _is_idle(self) -> bool:
        """Whether our thread is in no stage, and did nothing since the calling one began."""
        own = self._steps.others.own_spans()
        is_after = not own or own[0][1] >= self._last_ns()
        return self._clock.stage is None and not self._is_busy() and is_after

    def _made_whole_step(self) -> bool:
        """Whether the calling thread, which ends a step, made all of it, or only its end."""
        others = self._steps.others
        return not others.has_contributed and not (others.own_spans() and self._is_under_way())

    def _is_under_way(self) -> bool:
        step = self._steps.open
        return step is not None and not step.stepped and (step.has_gradients or step.has_forward)

    def _last_ns(self) -> int:
        step = self._steps.open
        return step.spans[-1][2] if step is not None and step.spans else 0

    def _go_on_in_caller(self) -> None:
        """The calling thread trains from here on, and its passes since the last step are the first of its own."""
        others = self._steps.others
        thread = others.caller
        if not self._is_free():
            self._alternating |= {self.ident, thread}
        own = [span for span in others.own_spans() if span[1] >= self._last_ns()]
        others.becomes_recorded()
        self._has_taken_over = True
        self.set(thread)
        self._clock.leave()
        self._go_on()
        if own:
            self._begin_with(own)

    def _begin_with(self, passes: list[Span]) -> None:
        steps, start = self._steps, passes[0][1]
        steps.end_whole(start)
        step = steps.open or steps.begin(start)
        step.spans += passes
        step.num_backwards += sum(stage == "backward" for stage, _, _ in passes)
        step.has_forward |= any(stage == "forward" for stage, _, _ in passes)
