"""Enters the stage `forward` at the outermost module call, in steps that are recorded in full."""

from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from efprof.recorder.compilation import watch_compilation
from efprof.recorder.compiled_functions import CompiledFunction, CompiledFunctions
from efprof.recorder.hooks import Undo
from efprof.recorder.loop import Loop
from efprof.recorder.shell import Shell


class ModuleCalls:
    """Hooks on every module call, which cost about 2 us each (measured): in light steps there are none.

    Hooks that come and go would make `torch.compile` compile again: they are never in while compiled code runs.
    """

    def __init__(self, loop: Loop, shell: Shell) -> None:
        self._began = shell.guarded("loop", loop.forward_began)
        self._ended = shell.guarded("loop", loop.forward_ended)
        self._loop, self._hosts = loop, loop.hosts
        self._hooks: list[Undo] = []
        self._functions = CompiledFunctions(loop)
        self._num_compiled = 0
        """Calls of compiled code that are running, one within another."""
        self._depth = 0
        self._are_wanted = True
        self._may_hook = True
        self.module_began = shell.guarded("loop", self._module_began)
        self.module_ended = shell.guarded("loop", self._module_ended)
        self.function_began = shell.guarded("loop", self._function_began)
        self.function_ended = shell.guarded("loop", self._function_ended)
        self.function_returned = shell.guarded("loop", self._function_returned)
        self.compilation_began = shell.guarded("loop", self._compilation_began)
        self._undo_compilation = watch_compilation(self, shell)
        loop.light.woken.append(self._want)
        self._put_hooks_in()

    def remove(self) -> None:
        """Take every hook out, for good."""
        self._may_hook = False
        self._take_hooks_out()
        self._undo_compilation()

    def _want(self, are_wanted: bool) -> None:
        self._are_wanted = are_wanted
        self._depth = 0
        if are_wanted:
            self._put_hooks_in()
        else:
            self._take_hooks_out()

    def _put_hooks_in(self) -> None:
        if self._are_wanted and self._may_hook and not self._hooks and not self._num_compiled:
            before = register_module_forward_pre_hook(self._before)
            after = register_module_forward_hook(self._after, always_call=True)
            self._hooks = [before.remove, after.remove]

    def _take_hooks_out(self) -> None:
        for undo in self._hooks:
            undo()
        self._hooks = []

    def _before(self, module: torch.nn.Module, _: Any) -> None:
        if module not in self._hosts:
            self._began(module)
            self._depth += self._loop.is_ours

    def _after(self, module: torch.nn.Module, *_: Any) -> None:
        if module not in self._hosts:
            self._depth = max(0, self._depth - self._loop.is_ours)
            self._ended()

    # Compiled code.

    def _module_began(self, module: torch.nn.Module) -> None:
        if self._loop.is_ours:
            self._num_compiled += 1
            self._take_hooks_out()
            self._before(module, None)

    def _module_ended(self, module: torch.nn.Module) -> None:
        if self._loop.is_ours:
            self._after(module)
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
        self._put_hooks_in()

    def _compilation_began(self) -> None:
        """Of code that was compiled before the recording began: whatever is running now, its end will not be seen."""
        if self._hooks and self._loop.is_ours:
            self._may_hook = False
            for _ in range(self._depth):
                self._ended()
            self._take_hooks_out()
