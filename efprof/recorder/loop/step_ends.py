"""What tells where a step ends: optimizers that take turns, gradients that were thrown away, a batch that came after.

A batch's gradients are thrown away by `if not isfinite(norm): continue`, and `zero_grad()` somewhere. Those that are
gone before any optimizer stepped may also have been gathered elsewhere, as the clipped ones of single samples are, or
been made for something else, as an adversary's. So such a batch has as many passes as the last step with an update,
called at the same line, and few others like it; in doubt it is left in the step it came with.

`optimizer.zero_grad()` at the top of a loop, or just before its backward pass, comes after the next batch was fetched,
or even went forward: until then the loop looks as if it gathered gradients.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakSet, ref

import torch

from efprof.recorder.loop.open_step import OpenStep, Span

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


class OptimizerCycle:
    """The order in which optimizers step, as long as it is one: generator, critic, generator, critic.

    Where it is none (two steps of the critic to one of the generator), every optimizer's step ends a step. An optimizer
    that stepped alone several times before the first other came takes turns only once a whole round has shown it: it
    may as well step five times to the other's one.
    """

    def __init__(self) -> None:
        self._order: list[int] = []
        self._last: int | None = None
        self._is_strict = True
        self._has_repeated = False
        self._is_on_trial = False

    def stepped(self, optimizer: int) -> None:
        """This optimizer, by its `id`, has stepped."""
        if not (self._is_strict or self.is_alone):
            return
        if optimizer not in self._order:
            self._order.append(optimizer)
            self._is_on_trial = self._has_repeated
        elif self.is_alone:
            self._has_repeated = True
        elif optimizer != self._expected():
            self.broke()
        elif optimizer == self._order[-1]:
            self._is_on_trial = False
        self._last = optimizer

    def broke(self) -> None:
        """Optimizers do not take turns after all."""
        self._is_strict = False

    def is_complete(self, stepped: list[int]) -> bool:
        """Whether a step in which these optimizers stepped, in this order, has seen the last of the round."""
        takes_turns = self._is_strict and not (self.is_alone or self._is_on_trial)
        return not takes_turns or stepped[-1] == self._order[-1]

    @property
    def is_alone(self) -> bool:
        """Whether only one optimizer has stepped so far."""
        return len(self._order) < 2

    def _expected(self) -> int:
        assert self._last is not None
        return self._order[(self._order.index(self._last) + 1) % len(self._order)]


class NextBatch:
    """What came since the last backward pass of a step, from the next fetch or forward pass on; taken out of it."""

    def __init__(self, step: OpenStep, first: int) -> None:
        self._spans: list[Span] = step.spans[first:]
        self.start_ns = self._spans[0][1]
        """By `time.perf_counter_ns`."""
        marks = step.device_marks or []
        num_kept = max(0, len(marks) - len(self._spans))
        self._marks: list[tuple[Any, Any]] = marks[num_kept:]
        self._memory = [reading for reading in step.memory if reading[1] >= self.start_ns]
        num_fetches, samples, num_loaders = step.fed
        self._num_fetches, self._samples = step.num_fetches - num_fetches, step.samples - samples
        self._loaders, self._had_loader = step.loaders[num_loaders:], step.had_loader
        del step.spans[first:], marks[num_kept:], step.loaders[num_loaders:]
        step.memory = step.memory[: len(step.memory) - len(self._memory)]
        step.num_fetches, step.samples = num_fetches, samples

    def move_to(self, step: OpenStep) -> None:
        """Have this step, which begins with it, hold it."""
        step.spans, step.memory, step.device_marks = self._spans, self._memory, self._marks or None
        step.num_fetches, step.samples, step.loaders = self._num_fetches, self._samples, self._loaders
        step.had_loader = self._had_loader
        step.has_forward = any(stage == "forward" for stage, _, _ in self._spans)


def first_span_of_it(step: OpenStep) -> int | None:
    """The number of the first span that fetches or goes forward since the last backward pass."""
    since = next((i for i in range(len(step.spans), 0, -1) if step.spans[i - 1][0] == "backward"), 0)
    return next((i for i in range(since, len(step.spans)) if step.spans[i][0] in ("data", "forward")), None)


class Hosts:
    """Classes of modules within whose call an optimizer steps their own parameters.

    So does a trainer that is a module, and what a framework wraps a whole step in; but not a model that fits something
    else on its way, as in meta-learning.
    """

    def __init__(self) -> None:
        self.found: list[Callable[[type[torch.nn.Module]], None]] = []
        """Told of each."""
        self._kinds: set[type[torch.nn.Module]] = set()
        self._others: set[type[torch.nn.Module]] = set()
        self._called: ref[torch.nn.Module] | None = None

    def __contains__(self, module: object) -> bool:
        return type(module) in self._kinds

    def called(self, module: torch.nn.Module | None) -> None:
        """It is outermost, and its call is taken for a forward pass."""
        self._called = None if module is None else ref(module)

    def has_found(self, optimizer: torch.optim.Optimizer) -> bool:
        """This one steps within that call: whether it was none. That is asked once of each class: it takes long."""
        module = None if self._called is None else self._called()
        if module is None or type(module) in self._others:
            return False
        updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if not any(id(parameter) in updated for parameter in module.parameters()):
            self._others.add(type(module))
            return False
        self._kinds.add(type(module))
        for listener in self.found:
            listener(type(module))
        return True
