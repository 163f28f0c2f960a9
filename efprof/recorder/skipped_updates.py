"""Tells a batch whose gradients the program threw away: `if not isfinite(norm): continue`, and `zero_grad()` somewhere.

Gradients that are gone before any optimizer stepped may also have been gathered elsewhere, as the clipped ones of
single samples are, or been made for something else, as an adversary's. So such a batch has as many passes as the last
step with an update, called at the same line, and few others like it; in doubt it is left in the step it came with.
"""

from weakref import WeakSet

import torch

from efprof.recorder.open_step import OpenStep

NUM_LOOKS = 20
"""Backward passes after which a new optimizer's gradients are looked for; some libraries keep them elsewhere."""

LEAST_STEPS_EACH = 5
"""Steps for each skipped one, so far: a program that clears its gradients more often has other reasons."""

FIRST_PAUSE = 20
"""Steps that are not looked at since gradients were gone in the midst of one; the next time, twice as many."""


class SkippedUpdates:
    """Compares the open step with the last one in which an optimizer stepped; holds nothing of the program's."""

    def __init__(self) -> None:
        self._optimizers: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._num_looks = 0
        self._has_seen_gradients = False
        """Whether a backward pass left any where its optimizer's parameters have theirs."""
        self._num_backwards = 0
        self._site: str | None = None
        self._num_skipped = 0
        self._next_number = 0
        self._pause = FIRST_PAUSE

    def note_optimizer(self, _: OpenStep, optimizer: torch.optim.Optimizer) -> None:
        """It is about to step."""
        if optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            self._num_looks = 0

    def note_backward(self) -> None:
        """A backward pass is over."""
        if not self._has_seen_gradients and self._optimizers and self._num_looks < NUM_LOOKS:
            self._num_looks += 1
            self._has_seen_gradients = self._has_gradients()

    def note_update(self, step: OpenStep) -> None:
        """A step ends in which an optimizer stepped."""
        self._num_backwards, self._site = step.num_backwards, step.backward_site

    def is_skipped(self, step: OpenStep) -> bool:
        """Whether the program has cleared the gradients of a step that was whole but for its update."""
        if step.stepped or not step.num_backwards or step.has_evaluation or not self._has_seen_gradients:
            return False
        is_rare = step.number >= LEAST_STEPS_EACH * self._num_skipped
        if step.number < self._next_number or not is_rare or self._has_gradients():
            return False
        if not 0 < self._num_backwards <= step.num_backwards or step.backward_site != self._site:
            self._next_number = step.number + self._pause
            self._pause *= 2
            return False
        self._num_skipped += 1
        step.held_back = tuple(map(id, self._optimizers))
        return True

    def _has_gradients(self) -> bool:
        return any(
            parameter.grad is not None
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        )
