"""Enters the stage `forward` at the outermost module call."""

from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from efprof.recorder.compilation import watch_compilation
from efprof.recorder.compiled_functions import CompiledFunction, CompiledFunctions
from efprof.recorder.hooks import Undo
from efprof.recorder.loop import Loop
from efprof.recorder.open_step import OpenStep
from efprof.recorder.pattern import OTHER
from efprof.recorder.shell import Shell
from efprof.recorder.sprint import Sprint

STEPS_TO_LEARN = 2
"""A loop shows all its outermost modules within a step; the second one confirms it."""

MAX_MISSED = 2
"""Learnings in a row after each of which no forward pass was seen: what they find is of no use then."""

UNKNOWN_STEPS = 2
"""Steps of another kind than those learned from, but with no new optimizer, before it is learned again: a single one
may be an odd one out."""

FIRST_DISTANCE = 16
"""Steps from one learning to the next one at least; each time twice as many, for loops that are never alike."""

Kind = tuple[frozenset[int], int]
"""The optimizers that stepped, by their `id`, and the number of backward passes."""


class ForwardWatch:
    """Enters the stage `forward` at the outermost module call, at no cost to the modules inside.

    A hook on every module call costs 1.6 us each (measured), so the hooks for all modules stay only until they
    have shown which classes are outermost; from then on the stopwatch sees the calls of those classes. Nothing lies
    in a class or an instance: that would be pickled with the user's model. Where the stopwatch cannot see them, the
    hooks stay. A step without a forward pass (another model took over) starts the learning again, and so do steps of
    another kind (another model is trained beside it).

    Hooks that come and go would make `torch.compile` compile again: they are never in while compiled code runs.
    """

    def __init__(self, loop: Loop, sprint: Sprint, shell: Shell) -> None:
        self._watch = sprint.watch
        self._began = shell.guarded("loop", loop.forward_began)
        self._ended = shell.guarded("loop", loop.forward_ended)
        self._before = shell.guarded("loop", self._before_any)
        self._after = shell.guarded("loop", self._after_any)
        self._loop, self._hosts = loop, loop.hosts
        self._learning: list[Undo] = []
        self._functions = CompiledFunctions(loop, sprint)
        self._num_compiled = 0
        """Calls of compiled code that are running, one within another."""
        self._may_learn = True
        self._is_learning = False
        self._depth = 0
        self._left_to_learn = 0
        self._known: set[Kind] = set()
        self._unknown: list[Kind] = []
        self._distance, self._learn_from = FIRST_DISTANCE, 0
        self._num_missed = 0
        """Learnings, one after another, that steps without a forward pass began, and none with one came between."""
        self._num_seen = 0
        """Steps that have ended since the hooks are out."""
        self._outermost: dict[type[torch.nn.Module], None] = {}
        self.module_began = shell.guarded("loop", self._module_began)
        self.module_ended = shell.guarded("loop", self._module_ended)
        self.function_began = shell.guarded("loop", self._function_began)
        self.function_ended = shell.guarded("loop", self._function_ended)
        self.function_returned = shell.guarded("loop", self._function_returned)
        self.compilation_began = shell.guarded("loop", self._compilation_began)
        self._undo_compilation = watch_compilation(self, shell)
        loop.hosts.found.append(self._host_found)
        loop.steps.walked.append(shell.guarded("loop", self._after_step))
        self._learn()

    def remove(self) -> None:
        """Take every hook out, for good: the step in whose end this comes may still ask to learn again."""
        self._may_learn = False
        self._stop_learning()
        self._watch.leave_classes(*self._outermost)
        self._undo_compilation()

    def _learn(self) -> None:
        if not self._may_learn:
            return
        self._is_learning, self._left_to_learn = True, STEPS_TO_LEARN
        if not self._num_compiled:
            self._put_hooks_in()

    def _stop_learning(self) -> None:
        self._take_hooks_out()
        self._is_learning, self._depth, self._num_seen = False, 0, 0

    def _put_hooks_in(self) -> None:
        if not self._learning:
            before = register_module_forward_pre_hook(self._before)
            after = register_module_forward_hook(self._after, always_call=True)
            self._learning = [before.remove, after.remove]
            self._watch.are_hooks_in = True

    def _take_hooks_out(self) -> None:
        for undo in self._learning:
            undo()
        self._learning = []
        self._watch.are_hooks_in = False

    def _before_any(self, module: torch.nn.Module, _: Any) -> None:
        if module in self._hosts:
            return
        self._watch.mark(OTHER)
        self._began(module)  # which may be what makes the calling thread ours
        if self._loop.is_ours:
            if self._depth == 0:
                self._outermost[type(module)] = None
            self._depth += 1

    def _after_any(self, module: torch.nn.Module, *_: Any) -> None:
        if module in self._hosts:
            return
        is_ours = self._loop.is_ours
        if is_ours:
            self._depth = max(0, self._depth - 1)
        self._ended()
        is_within = self._depth > 0 or self._loop.steps.others.is_within
        # Not at the step's end, which may come within a call; nor in another thread, while ours is perhaps within one.
        if is_ours and not is_within and self._left_to_learn <= 0 and self._watch_outermost():
            self._stop_learning()

    def _host_found(self, kind: type[torch.nn.Module]) -> None:
        """What was taken for outermost is not; whatever it calls may be, from here on."""
        self._watch.leave_classes(*self._outermost)
        self._outermost.pop(kind, None)
        self._depth = 0
        self._learn()

    def _after_step(self, step: OpenStep, _: object) -> None:
        if step.num_backwards and not step.has_forward:
            self._num_missed += not self._is_learning
            self._learn()
        elif self._is_learning:
            self._left_to_learn -= 1
            self._known.add(_kind_of(step))
        else:
            self._num_seen += 1
            if self._num_seen > 1:  # in the first one the hooks were still in
                self._num_missed = 0
            self._look_for_unknown(step)

    def _look_for_unknown(self, step: OpenStep) -> None:
        kind = _kind_of(step)
        if step.number >= self._learn_from and kind not in self._known:
            self._unknown.append(kind)
            if len(self._unknown) >= UNKNOWN_STEPS or self._has_new_optimizer(kind):
                self._learn_again(step.number)

    def _has_new_optimizer(self, kind: Kind) -> bool:
        """Then the first step tells enough, and may be the only one that is walked: the calls are often the same."""
        return not kind[0].issubset(optimizer for known, _ in self._known for optimizer in known)

    def _learn_again(self, number: int) -> None:
        self._known.update(self._unknown)
        self._unknown.clear()
        self._learn_from = number + self._distance
        self._distance *= 2
        self._learn()

    # Compiled code.

    def _module_began(self, module: torch.nn.Module) -> None:
        if self._loop.is_ours:
            self._num_compiled += 1
            self._take_hooks_out()
            if self._is_learning:
                self._before_any(module, None)

    def _module_ended(self, module: torch.nn.Module) -> None:
        if self._loop.is_ours:
            if self._is_learning:
                self._after_any(module)
            self._compiled_ended()

    def _function_began(self, function: CompiledFunction) -> None:
        if self._loop.is_ours:
            self._num_compiled += 1
            self._take_hooks_out()
            self._functions.began(function)

    def _function_ended(self, function: CompiledFunction) -> None:
        if self._loop.is_ours:
            self._functions.ended(function)
            self._compiled_ended()

    def _function_returned(self, function: CompiledFunction, result: object) -> None:
        if self._loop.is_ours:
            self._functions.returned(function, result)

    def _compiled_ended(self) -> None:
        self._num_compiled = max(0, self._num_compiled - 1)
        if not self._num_compiled and self._is_learning:
            self._put_hooks_in()

    def _compilation_began(self) -> None:
        """Of code that was compiled before the recording began: whatever is running now, its end will not be seen."""
        if self._learning and self._loop.is_ours:
            self._may_learn = False
            for _ in range(self._depth):
                self._ended()
            self._stop_learning()
            self._watch_outermost()

    def _watch_outermost(self) -> bool:
        """Whether their calls are seen; not where they come by another way, as `model.__call__(batch)` does, which was
        always missed so far.
        """
        if self._num_missed > MAX_MISSED:
            return False
        return all(self._watch.watch_class(kind, self._began, self._ended) for kind in self._outermost)


def _kind_of(step: OpenStep) -> Kind:
    return frozenset(step.stepped), step.num_backwards
