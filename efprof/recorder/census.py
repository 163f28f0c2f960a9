"""Counts the tensors, and the autograd graphs behind them, that each of the user's variables keeps alive."""

import gc
import queue
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import (
    BuiltinFunctionType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import Any, NamedTuple

import torch

from efprof.recorder.frames import callers, waiting_generators
from efprof.recorder.held import Clock, Held, TimeIsUp
from efprof.recorder.sites import Sites
from efprof.recorder.variables import (
    COLLECTIONS,
    attributes_of,
    elements_of,
    locals_of,
    may_read_locals,
    slots_of,
    variables_of,
)

MAX_SECONDS = 1.0
"""A census stops here, what it has not reached by then is not counted. It usually takes 100 to 250 ms (measured), of
which a limit of 200 ms cut off the holder itself."""

MAX_SHARE = 0.75
"""Of the time that is left, for one variable: a data set in memory must not take it all."""

MAX_DEPTH = 6
"""Attributes and keys below a variable; deeper structures are libraries' own."""

MANY = 1000
"""A dictionary of more entries, the first and the last of which are plain, is passed over."""

_PLAIN = frozenset({str, bytes, int, float, bool, complex, NoneType})
"""What can hold nothing, and is told at a glance."""

_NOT_DATA = (
    ModuleType,
    type,
    FunctionType,
    BuiltinFunctionType,
    MethodType,
    FrameType,
    str,
    bytes,
    int,
    float,
    complex,
)

_CODE = (FunctionType, MethodType, GeneratorType, type)
"""What may keep variables of its own: a closure's cells and defaults, a suspended frame, a class's attributes."""

_TABLES = frozenset({"_buffers", "_parameters"})
"""Where a `torch.nn.Module` keeps the tensors that the program knows as its attributes."""

Key = tuple[str, str]
"""Scope and path."""


class _Place(NamedTuple):
    """Where a walk stands: the names that led there."""

    path: str
    scope: str
    owner: str
    name: str
    file: str | None
    depth: int = 0


class Census:
    """One walk from the user's variables; `held` maps scope and path to what was found there.

    `cut` are those of a variable that took too long: what was counted there is the least there is.
    """

    def __init__(self, sites: Sites) -> None:
        self.held: dict[Key, Held] = {}
        self.cut: set[Key] = set()
        self.is_partial = False
        self._sites = sites
        self._seen: set[int] = set()
        self._seen_here: set[int] = set()
        self._held_here: set[Key] = set()
        self._running: set[int] = set()
        """Frames, by `id`."""
        self._tables: set[int] = set()
        """Dictionaries of modules, by `id`, whose entries are counted as the modules' attributes."""
        self._end = time.perf_counter() + MAX_SECONDS
        self._clock = Clock(self._end)

    def count(self) -> dict[Key, Held]:
        """Walk from the locals of the user's functions that are running, then from the globals of his modules."""
        with _without_garbage_collection():
            if sys.gettrace() is None:  # under a debugger, reading a frame's locals may write them back
                self._count_frames(sys._getframe())
            for module in list(sys.modules.values()):
                file = getattr(module, "__file__", None)
                if file and self._sites.is_user_file(file):
                    self._count_variables("global", module.__name__, file, vars(module))
            if self._running:
                self._count_generators()
            for held in self.held.values():
                held.forget()
            self._seen.clear()
        self.held = {key: held for key, held in self.held.items() if held.tensors}
        return self.held

    def _count_frames(self, innermost: FrameType | None) -> None:
        self._running = set(map(id, callers(innermost)))
        for frame in callers(innermost):
            code = frame.f_code
            if self._sites.is_user_code(code) and may_read_locals(code):
                self._count_variables("local", code.co_qualname, code.co_filename, locals_of(frame))

    def _count_generators(self) -> None:
        for generator, frame in waiting_generators(self._seen, self._running):
            code = generator.gi_code
            if self._sites.is_user_code(code) and may_read_locals(code):
                self._count_variables("local", code.co_qualname, code.co_filename, locals_of(frame))

    def _count_variables(self, scope: str, owner: str, file: str, names: dict[str, Any]) -> None:
        """Each within a time of its own; one that takes longer leaves nothing behind that another could meet."""
        for name, value in list(names.items()):
            now = time.perf_counter()
            self._clock.limit = now + MAX_SHARE * (self._end - now)
            self._seen_here, self._held_here = set(), set()
            try:
                self._count_names(scope, owner, file, {name: value})
            except TimeIsUp:
                self.is_partial = True
                self.cut |= self._held_here
            else:
                self._seen |= self._seen_here

    def _count_names(self, scope: str, owner: str, file: str, names: dict[str, Any]) -> None:
        for name, value in list(names.items()):
            if not name.startswith("__"):
                place = _Place(path=f"{owner}.{name}", scope=scope, owner=owner, name=name, file=file)
                self._visit(value, place, None)

    def _visit(self, value: Any, place: _Place, inside: Held | None) -> None:
        """Count `value`; `inside` is the collection that it is an element of, which then holds it.

        By its type alone: `isinstance` and `hasattr` would run the code of a proxy that loads lazily.
        """
        kind = type(value)
        if kind in _PLAIN:
            return
        self._clock.check()
        if issubclass(kind, torch.Tensor):
            (inside or self._holder(place, value)).add(value, self._clock)
            return
        if kind not in _CODE and issubclass(kind, _NOT_DATA):
            return
        if place.depth > MAX_DEPTH or id(value) in self._seen or id(value) in self._seen_here:
            return
        self._seen_here.add(id(value))
        if kind in _CODE:
            self._visit_code(value, place)
            return
        visit = self._visitor(kind)
        if visit is not None:
            visit(value, place, inside)

    def _visitor(self, kind: type[Any]) -> Callable[[Any, _Place, Held | None], None] | None:
        if issubclass(kind, COLLECTIONS):
            return self._visit_elements
        if issubclass(kind, dict):
            return self._visit_entries
        if issubclass(kind, BaseException):
            return self._visit_error
        if issubclass(kind, queue.Queue):
            return self._visit_queue
        return self._visit_attributes if kind.__dictoffset__ or slots_of(kind) else None

    def _visit_code(self, value: Any, place: _Place) -> None:
        """Count the variables that the user's own functions, generators and classes keep."""
        if isinstance(value, MethodType):
            self._visit(value.__self__, _deeper(place), None)
        elif isinstance(value, type):
            self._visit_class(value)
        elif isinstance(value, GeneratorType):
            self._visit_generator(value)
        elif self._sites.is_user_code(value.__code__):
            names = variables_of(value)
            owner = value.__qualname__.removesuffix(f".<locals>.{value.__name__}")
            file = value.__code__.co_filename
            self._count_names("local", owner, file, names)
            self._count_names("attribute", value.__qualname__, file, value.__dict__)

    def _visit_class(self, kind: type[Any]) -> None:
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        if file and self._sites.is_user_file(file):
            names = {name: value for name, value in vars(kind).items() if not isinstance(value, _CODE)}
            self._count_names("attribute", kind.__qualname__, file, names)

    def _visit_generator(self, generator: Any) -> None:
        frame, code = generator.gi_frame, generator.gi_code
        if frame is not None and self._sites.is_user_code(code) and may_read_locals(code):
            self._count_names("local", code.co_qualname, code.co_filename, locals_of(frame))

    def _visit_elements(self, value: Any, place: _Place, inside: Held | None) -> None:
        elements = elements_of(value)
        if not _may_hold_tensors(elements):
            return
        holder, below = inside or self._holder(place, value), _deeper(place)
        for element in elements:
            self._visit(element, below, holder)

    def _visit_entries(self, value: dict[Any, Any], place: _Place, inside: Held | None) -> None:
        if len(value) > MANY and not _may_hold_tensors([next(iter(dict.values(value))), _last(value)]):
            return
        holder, below = inside or self._holder(place, value), _deeper(place)
        for key, element in list(dict.items(value)):
            if type(element) in _PLAIN or (id(value) in self._tables and _is_attribute(key)):
                continue
            is_leaf = issubclass(type(element), torch.Tensor) or type(key) is not str
            named = below._replace(path=f"{place.path}[{key!r}]") if type(key) is str else below
            self._visit(element, named, holder if is_leaf else inside)

    def _visit_queue(self, value: Any, place: _Place, inside: Held | None) -> None:
        """What waits in it is held by the variable that the program calls the queue by."""
        waiting = dict(attributes_of(value)).get("queue")
        if type(waiting) in COLLECTIONS:
            self._visit_elements(waiting, place, inside)
            held = self.held.get((place.scope, place.path))
            if inside is None and held is not None:
                held.type = type(value).__name__

    def _visit_error(self, value: BaseException, place: _Place, inside: Held | None) -> None:
        """A kept error keeps the variables of every function that it came through; of those that still run, they do."""
        holder, below = inside or self._holder(place, value), _deeper(place)
        traceback = value.__traceback__
        while traceback is not None:
            frame, traceback = traceback.tb_frame, traceback.tb_next
            is_over = id(frame) not in self._running
            if is_over and self._sites.is_user_code(frame.f_code) and may_read_locals(frame.f_code):
                for element in list(locals_of(frame).values()):
                    self._visit(element, below, holder)
        self._visit_attributes(value, place, inside)

    def _visit_attributes(self, value: Any, place: _Place, inside: Held | None) -> None:
        kind = type(value)
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        written = file if file and self._sites.is_user_file(file) else None
        is_module = issubclass(kind, torch.nn.Module)
        for name, element in attributes_of(value):
            if is_module and name in _TABLES and issubclass(type(element), dict):
                self._visit_table(element, kind, written, place.depth + 1, inside)
            if type(element) not in _PLAIN:
                path = f"{kind.__qualname__}.{name}"
                below = _Place(path, "attribute", kind.__qualname__, name, written, place.depth + 1)
                self._visit(element, below, inside)

    def _visit_table(
        self, table: dict[Any, Any], kind: type[Any], file: str | None, depth: int, inside: Held | None
    ) -> None:
        """A module's buffers or parameters, by the names that the program knows them by."""
        self._tables.add(id(table))
        for name, tensor in list(dict.items(table)):
            if _is_attribute(name):
                place = _Place(f"{kind.__qualname__}.{name}", "attribute", kind.__qualname__, name, file, depth)
                self._visit(tensor, place, inside)

    def _holder(self, place: _Place, value: Any) -> Held:
        key = (place.scope, place.path)
        self._held_here.add(key)
        held = self.held.get(key)
        if held is None:
            held = self.held[key] = Held(
                path=place.path,
                scope=place.scope,
                owner=place.owner,
                name=place.name,
                file=place.file,
                type=type(value).__name__,
            )
        held.length += len(value) if issubclass(type(value), (*COLLECTIONS, dict)) else 1
        return held


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """What a census makes in passing would otherwise have the whole heap collected, which takes as long again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _deeper(place: _Place) -> _Place:
    return place._replace(depth=place.depth + 1)


def _is_attribute(key: Any) -> bool:
    """Whether the program knows an entry of a module's table as an attribute; a name with a number is one of many."""
    return type(key) is str and not key[-1:].isdigit()


def _last(entries: dict[Any, Any]) -> Any:
    return next(iter(reversed(dict.values(entries))))


def _may_hold_tensors(elements: list[Any]) -> bool:
    """Whether the first or the last element can lead to a tensor: a long list of numbers is passed over."""
    return bool(elements) and not (
        issubclass(type(elements[0]), _NOT_DATA) and issubclass(type(elements[-1]), _NOT_DATA)
    )
