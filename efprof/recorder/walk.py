"""Walks from a variable to every tensor that it keeps alive, by way of containers, attributes, closures and errors."""

import queue
import sys
from collections.abc import Callable
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

from efprof.recorder.held import Clock, Held
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


class Walk:
    """Visits one variable after another; what was reached from an earlier one counts there alone.

    `held` maps scope and path to what was found there.
    """

    def __init__(self, sites: Sites, clock: Clock) -> None:
        self.held: dict[Key, Held] = {}
        self.held_here: set[Key] = set()
        """Where the last variable led to."""
        self.seen: set[int] = set()
        """What was visited, by `id`."""
        self.running: set[int] = set()
        """Frames, by `id`."""
        self._sites = sites
        self._clock = clock
        self._seen_here: set[int] = set()
        self._tables: set[int] = set()
        """Dictionaries of modules, by `id`, whose entries are counted as the modules' attributes."""

    def visit_variable(self, scope: str, owner: str, file: str, name: str, value: Any) -> None:
        """Raises TimeIsUp where it takes too long; then none of it counts as seen."""
        self._seen_here, self.held_here = set(), set()
        self._visit_names(scope, owner, file, {name: value})
        self.seen |= self._seen_here

    def _visit_names(self, scope: str, owner: str, file: str, names: dict[str, Any]) -> None:
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
        if place.depth > MAX_DEPTH or id(value) in self.seen or id(value) in self._seen_here:
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
        """Go to the variables that the user's own functions, generators and classes keep."""
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
            self._visit_names("local", owner, file, names)
            self._visit_names("attribute", value.__qualname__, file, value.__dict__)

    def _visit_class(self, kind: type[Any]) -> None:
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        if file and self._sites.is_user_file(file):
            names = {name: value for name, value in vars(kind).items() if not isinstance(value, _CODE)}
            self._visit_names("attribute", kind.__qualname__, file, names)

    def _visit_generator(self, generator: Any) -> None:
        frame, code = generator.gi_frame, generator.gi_code
        if frame is not None and self._sites.is_user_code(code) and may_read_locals(code):
            self._visit_names("local", code.co_qualname, code.co_filename, locals_of(frame))

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
            is_over = id(frame) not in self.running
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
        self.held_here.add(key)
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
