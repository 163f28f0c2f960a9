"""Classes of modules whose `__call__` is replaced, and how that is kept out of the compiler's sight."""

from collections.abc import Callable
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from efprof.recorder.hooks import Undo, replace

Module = torch.nn.Module

COMPILER = "torch._dynamo"


class WatchedClasses:
    """Replaces `__call__` of each class by what `make_call` makes for it.

    A replaced class that is called within compiled code would be compiled otherwise than before: while a compiled
    module runs, those in it are as they were. That takes 5 us per class (measured), and few programs have one.
    """

    def __init__(self, make_call: Callable[[type[Module]], Callable[..., Any]]) -> None:
        self._make_call = make_call
        self._calls: dict[type[Module], Callable[..., Any]] = {}
        self._undo: dict[type[Module], Undo] = {}
        self._aside: list[type[Module]] = []
        self._contained: WeakKeyDictionary[Module, frozenset[type[Module]]] = WeakKeyDictionary()

    def watch(self, kind: type[Module]) -> None:
        """Replace its `__call__`; nothing happens the second time, nor where it is no plain function."""
        if kind not in self._calls and _is_plain(kind):
            self._calls[kind] = self._make_call(kind)
            self._undo[kind] = replace(kind, "__call__", self._calls[kind])

    def put_aside(self, compiled: Module) -> None:
        """This module's compiled code is about to run."""
        if any(not kind.__module__.startswith(COMPILER) for kind in self._undo):
            for kind in self._kinds_in(compiled) & self._undo.keys():
                self._undo.pop(kind)()
                self._aside.append(kind)

    def put_back(self) -> None:
        """No compiled code runs any more."""
        while self._aside:
            kind = self._aside.pop()
            self._undo[kind] = replace(kind, "__call__", self._calls[kind])

    def remove(self) -> None:
        """Leave every class as it was."""
        for undo in self._undo.values():
            undo()
        self._undo.clear()
        self._aside.clear()

    def _kinds_in(self, compiled: Module) -> frozenset[type[Module]]:
        kinds = self._contained.get(compiled)
        if kinds is None:
            found = {type(module) for module in compiled.modules()}
            kinds = frozenset(kind for kind in found if not kind.__module__.startswith(COMPILER))
            self._contained[compiled] = kinds
        return kinds


def _is_plain(kind: type[Module]) -> bool:
    """Whether its `__call__` is a function or inherited: what else makes a method gets its module in another way."""
    return "__call__" not in vars(kind) or isinstance(vars(kind)["__call__"], FunctionType)
