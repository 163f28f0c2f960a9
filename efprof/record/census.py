"""Counts the tensors, and the autograd graphs behind them, that each of the user's variables keeps alive."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import CO_OPTIMIZED
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any
from weakref import WeakKeyDictionary

import torch

from efprof.record.sites import Sites

MAX_SECONDS = 0.2
"""A census stops here; what it has not reached by then is not counted."""

MAX_DEPTH = 6
"""Attributes and keys below a variable; deeper structures are libraries' own."""

MAX_GRAPH_NODES = 20_000
"""Per holder; about 20 ms of walking."""

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

_COLLECTIONS: tuple[type[Any], ...] = (list, tuple, deque, set, frozenset)

_READS_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec"})


@dataclass(kw_only=True, slots=True)
class Held:
    """What one variable, attribute or container holds, counted once."""

    path: str
    scope: str
    owner: str
    name: str
    file: str | None
    type: str
    length: int = 0
    tensors: int = 0
    tensor_bytes: int = 0
    graph_nodes: int = 0
    graph_bytes: int = 0
    _storages: set[int] = field(default_factory=set)
    _nodes: set[Any] = field(default_factory=set)

    def add(self, tensor: torch.Tensor) -> None:
        """Count a tensor, its storage once, and the graph that it keeps."""
        self.tensors += 1
        self.tensor_bytes += self._bytes_of(tensor)
        if tensor.grad_fn is not None:
            self._add_graph(tensor.grad_fn)

    def forget(self) -> None:
        """Let go of the nodes that were walked: a census must keep nothing alive."""
        self._nodes.clear()
        self._storages.clear()

    def _bytes_of(self, tensor: torch.Tensor) -> int:
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            return 0
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._storages:
            return 0
        self._storages.add(storage.data_ptr())
        return storage.nbytes()

    def _add_graph(self, root: Any) -> None:
        todo = [root]
        while todo and len(self._nodes) < MAX_GRAPH_NODES:
            node = todo.pop()
            if node in self._nodes:
                continue
            self._nodes.add(node)
            self.graph_bytes += sum(self._bytes_of(tensor) for tensor in _saved_tensors(node))
            todo.extend(following for following, _ in node.next_functions if following is not None)
        self.graph_nodes = len(self._nodes)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """Where a walk stands: the names that led there."""

    path: str
    scope: str
    owner: str
    name: str
    file: str | None
    depth: int = 0


class Census:
    """One walk from the user's variables; `held` maps (scope, path) to what was found there."""

    def __init__(self, sites: Sites) -> None:
        self.held: dict[tuple[str, str], Held] = {}
        self._sites = sites
        self._seen: set[int] = set()
        self._deadline = time.perf_counter() + MAX_SECONDS

    def count(self) -> dict[tuple[str, str], Held]:
        """Walk from the locals of the user's functions that are running, then from the globals of his modules."""
        if sys.gettrace() is None:  # under a debugger, reading a frame's locals may write them back
            self._count_frames(sys._getframe())
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if file and self._sites.is_user_file(file):
                self._count_names("global", module.__name__, self._sites.file(file), vars(module))
        for held in self.held.values():
            held.forget()
        return {key: held for key, held in self.held.items() if held.tensors}

    def _count_frames(self, frame: FrameType | None) -> None:
        while frame is not None:
            if self._sites.is_user_code(frame.f_code) and _may_read_locals(frame.f_code):
                file = self._sites.file(frame.f_code.co_filename)
                self._count_names("local", frame.f_code.co_qualname, file, _locals_of(frame))
            frame = frame.f_back

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
        if issubclass(kind, torch.Tensor):
            (inside or self._holder(place, value)).add(value)
            return
        if kind in _CODE:
            self._visit_code(value, place)
            return
        if issubclass(kind, _NOT_DATA) or value is None or place.depth > MAX_DEPTH or id(value) in self._seen:
            return
        if time.perf_counter() > self._deadline:
            return
        self._seen.add(id(value))
        visit = self._visitor(kind)
        if visit is not None:
            visit(value, place, inside)

    def _visitor(self, kind: type[Any]) -> Callable[[Any, _Place, Held | None], None] | None:
        if issubclass(kind, _COLLECTIONS):
            return self._visit_elements
        if issubclass(kind, dict):
            return self._visit_entries
        return self._visit_attributes if kind.__dictoffset__ or _slots_of(kind) else None

    def _visit_code(self, value: Any, place: _Place) -> None:
        """Count the variables that the user's own functions, generators and classes keep."""
        if id(value) in self._seen or place.depth > MAX_DEPTH or time.perf_counter() > self._deadline:
            return
        self._seen.add(id(value))
        if isinstance(value, MethodType):
            self._visit(value.__self__, _deeper(place), None)
        elif isinstance(value, type):
            self._visit_class(value)
        elif isinstance(value, GeneratorType):
            self._visit_generator(value)
        elif self._sites.is_user_code(value.__code__):
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            names = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
            defaults = value.__defaults__ or ()
            arguments = value.__code__.co_varnames[: value.__code__.co_argcount]
            names |= dict(zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True))
            owner = value.__qualname__.removesuffix(f".<locals>.{value.__name__}")
            file = self._sites.file(value.__code__.co_filename)
            self._count_names("local", owner, file, names)
            self._count_names("attribute", value.__qualname__, file, value.__dict__)

    def _visit_class(self, kind: type[Any]) -> None:
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        if file and self._sites.is_user_file(file):
            names = {name: value for name, value in vars(kind).items() if not isinstance(value, _CODE)}
            self._count_names("attribute", kind.__qualname__, self._sites.file(file), names)

    def _visit_generator(self, generator: Any) -> None:
        frame = generator.gi_frame
        if frame is not None and self._sites.is_user_code(frame.f_code) and _may_read_locals(frame.f_code):
            file = self._sites.file(frame.f_code.co_filename)
            self._count_names("local", frame.f_code.co_qualname, file, _locals_of(frame))

    def _visit_elements(self, value: Any, place: _Place, inside: Held | None) -> None:
        elements = _elements_of(value)
        if not _may_hold_tensors(elements):
            return
        holder = inside or self._holder(place, value)
        for element in elements:
            self._visit(element, _deeper(place), holder)

    def _visit_entries(self, value: dict[Any, Any], place: _Place, inside: Held | None) -> None:
        holder = inside or self._holder(place, value)
        for key, element in list(dict.items(value)):
            named = _deeper(place, path=f"{place.path}[{key!r}]") if type(key) is str else _deeper(place)
            is_leaf = issubclass(type(element), torch.Tensor) or type(key) is not str
            self._visit(element, named, holder if is_leaf else inside)

    def _visit_attributes(self, value: Any, place: _Place, inside: Held | None) -> None:
        kind = type(value)
        module = sys.modules.get(kind.__module__)
        file = getattr(module, "__file__", None)
        for name, element in _attributes_of(value):
            attribute = _Place(
                path=f"{kind.__qualname__}.{name}",
                scope="attribute",
                owner=kind.__qualname__,
                name=name,
                file=self._sites.file(file) if file and self._sites.is_user_file(file) else None,
                depth=place.depth + 1,
            )
            self._visit(element, attribute, inside)

    def _holder(self, place: _Place, value: Any) -> Held:
        held = self.held.get((place.scope, place.path))
        if held is None:
            held = self.held[place.scope, place.path] = Held(
                path=place.path,
                scope=place.scope,
                owner=place.owner,
                name=place.name,
                file=place.file,
                type=type(value).__name__,
            )
        held.length += len(value) if issubclass(type(value), (*_COLLECTIONS, dict)) else 1
        return held


def _deeper(place: _Place, path: str | None = None) -> _Place:
    return _Place(
        path=path or place.path,
        scope=place.scope,
        owner=place.owner,
        name=place.name,
        file=place.file,
        depth=place.depth + 1,
    )


_SLOTS: WeakKeyDictionary[type[Any], dict[str, Any]] = WeakKeyDictionary()


def _slots_of(kind: type[Any]) -> dict[str, Any]:
    """The attributes that lie in an object and not in its `__dict__`, by their descriptors."""
    slots = _SLOTS.get(kind)
    if slots is None:
        found = ((name, slot) for base in kind.__mro__ for name, slot in vars(base).items())
        slots = _SLOTS[kind] = {name: slot for name, slot in found if type(slot) is MemberDescriptorType}
    return slots


def _attributes_of(value: Any) -> list[tuple[str, Any]]:
    attributes = {}
    for name, slot in _slots_of(type(value)).items():
        with suppress(AttributeError):  # not set yet
            attributes[name] = slot.__get__(value)
    if type(value).__dictoffset__:
        attributes |= object.__getattribute__(value, "__dict__")
    return list(attributes.items())


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _elements_of(value: Any) -> list[Any]:
    """Its elements as they lie in memory: a subclass may have its own `__iter__`."""
    kind = next(kind for kind in _COLLECTIONS if issubclass(type(value), kind))
    return list(kind.__iter__(value))


def _may_hold_tensors(elements: list[Any]) -> bool:
    """Whether the first or the last element can lead to a tensor: a long list of numbers is passed over."""
    return bool(elements) and not (
        issubclass(type(elements[0]), _NOT_DATA) and issubclass(type(elements[-1]), _NOT_DATA)
    )


def _may_read_locals(code: CodeType) -> bool:
    """Not of a module, whose names are its globals; and not where the program may hold the snapshot itself.

    Until Python 3.13 `locals()` returns the very dict that reading a frame's locals refreshes.
    """
    is_function = bool(code.co_flags & CO_OPTIMIZED)
    return is_function and (sys.version_info >= (3, 13) or not _READS_LOCALS.intersection(code.co_names))


def _locals_of(frame: FrameType) -> dict[str, Any]:
    values = frame.f_locals
    names = dict(values)
    if sys.version_info < (3, 13):
        values.clear()  # the frame keeps this snapshot, and with it tensors that the program lets go
    return names


_SAVED: dict[str, list[str]] = {}


def _saved_tensors(node: Any) -> Iterator[torch.Tensor]:
    kind = node.name()
    if kind not in _SAVED:
        _SAVED[kind] = [name for name in dir(node) if name.startswith("_saved_")]
    for name in _SAVED[kind]:
        try:
            value = getattr(node, name)
        except RuntimeError:  # a backward pass has freed it
            continue
        for tensor in value if isinstance(value, list | tuple) else (value,):
            if isinstance(tensor, torch.Tensor):
                yield tensor
