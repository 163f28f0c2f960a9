"""Which thread it is that trains, and what is known of the others."""

import threading
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any

import torch

Pass = tuple[int, int, int]
"""A thread's backward pass: the thread, when it began and when it ended, by `time.perf_counter_ns`."""

MAX_PASSES = 1000
"""Kept until a step takes them."""

NO_THREAD = 0
"""No thread has this number: while it stands for the training's, every entry point returns at once."""


class TrainingThread:
    """One thread trains: the one that imported torch, or another one where that one never did, or is no more.

    A thread that updates parameters beside it is set apart for good; how often it does is counted. Backward passes of
    any other are for the step of the one that trains.
    """

    def __init__(self, passes: list[Pass], *, is_idle: Callable[[], bool], go_on: Callable[[], None]) -> None:
        """`passes` takes those of other threads. `is_idle` tells whether no step is open; `go_on` is called when
        another one takes the place of ours.
        """
        self.ident = get_ident()
        self.has_trained = False
        """Whether it has updated parameters."""
        self.num_updates_elsewhere = 0
        self.updated_elsewhere: list[Callable[..., None]] = []
        """Called at the first of these updates."""
        self.asks_capturing: Callable[[], Any] = lambda: False
        """Whether the current stream is captured; harmless."""
        self.has_captured = False
        self._has_moved = False
        self._is_idle, self._go_on = is_idle, go_on
        self._passes = passes
        self._in_backward: dict[int, int] = {}
        """Other threads that wait for a backward pass, and since when."""
        self._calling = threading.local()
        """What is known of the thread that calls; by its number it might be taken for one that is no more."""
        self._changing = threading.RLock()  # not Lock: a signal's handler may train, too
        self._paused: int | None = None

    @property
    def is_training_thread(self) -> bool:
        """Whether this call comes from the thread that trains, or from one of autograd's that works for it.

        Autograd runs the nodes of a graph that lie on a device, and so the hooks of gradients, on a thread of its own.
        While another thread waits for a pass, too, nobody knows which of them that one works for.
        """
        if get_ident() == self.ident:
            return True
        return self.ident != NO_THREAD and not self._in_backward and torch._C._current_graph_task_id() != -1

    @property
    def is_capturing(self) -> bool:
        """Whether what the program does now is captured into a CUDA graph, by whatever way, and is not run."""
        found = bool(self.asks_capturing())
        self.has_captured |= found
        return found

    def pause(self) -> None:
        """See nothing until `resume`: a CUDA graph is being captured, into which nothing of ours may get."""
        self._paused, self.ident = self.ident, NO_THREAD

    def resume(self) -> None:
        if self._paused is not None:
            self.ident, self._paused = self._paused, None

    def stop(self) -> None:
        self.ident, self._paused = NO_THREAD, None

    def goes_on_in_caller(self) -> bool:
        """Another thread fetches or goes forward: whether it trains from here on, in the place of one that is no more.

        Where ours never trained that shows later, by its backward pass or its update.
        """
        return self.has_trained and self._takes_over(is_free=False)

    def trains_in_caller(self) -> bool:
        """Whether the thread that begins a backward pass is the one that trains."""
        if get_ident() == self.ident:
            return True
        with self._changing:
            if self._takes_over(is_free=not (self.has_trained or self._has_moved) and self._is_idle()):
                return True
        self._in_backward[get_ident()] = perf_counter_ns()
        return False

    def backward_ended_elsewhere(self, *, is_light: bool) -> None:
        began = self._in_backward.pop(get_ident(), None)
        is_none_of_ours = is_light or self.ident == NO_THREAD or getattr(self._calling, "is_apart", False)
        if began is not None and not is_none_of_ours and len(self._passes) < MAX_PASSES:
            self._passes.append((get_ident(), began, perf_counter_ns()))

    def updates_in_caller(self) -> bool:
        """Whether the thread that updates parameters, or says that a step ends, is the one that trains."""
        with self._changing:
            if self.is_training_thread:
                self.has_trained = True
                return True
            if self.ident == NO_THREAD or torch._C._current_graph_task_id() != -1:
                return False  # of autograd's threads nobody knows whom they work for
            if self._takes_over(is_free=not self.has_trained):
                self.has_trained = True
                return True
        self._calling.is_apart = True
        self._passes[:] = [one for one in self._passes if one[0] != get_ident()]
        self.num_updates_elsewhere += 1
        for listener in self.updated_elsewhere:
            listener()
        self.updated_elsewhere.clear()
        return False

    def _takes_over(self, *, is_free: bool) -> bool:
        with self._changing:
            has_place = is_free or all(one.ident != self.ident for one in threading.enumerate())
            if self.ident == NO_THREAD or not has_place or getattr(self._calling, "is_apart", False):
                return False
            self._in_backward.pop(get_ident(), None)
            self.ident, self.has_trained, self._has_moved = get_ident(), False, True
            self._go_on()
        return True

    def note_step(self, *_: object) -> None:
        self.has_trained = True
