"""Counts the tensors, and the autograd graphs behind them, that each of the user's variables keeps alive."""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import (
    BuiltinFunctionType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import Any

import torch

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
            if self._sites.is_user_code(frame.f_code) and may_read_locals(frame.f_code):
                file = self._sites.file(frame.f_code.co_filename)
                self._count_names("local", frame.f_code.co_qualname, file, locals_of(frame))
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
        if issubclass(kind, COLLECTIONS):
            return self._visit_elements
        if issubclass(kind, dict):
            return self._visit_entries
        return self._visit_attributes if kind.__dictoffset__ or slots_of(kind) else None

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
            names = variables_of(value)
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
        if frame is not None and self._sites.is_user_code(frame.f_code) and may_read_locals(frame.f_code):
            file = self._sites.file(frame.f_code.co_filename)
            self._count_names("local", frame.f_code.co_qualname, file, locals_of(frame))

    def _visit_elements(self, value: Any, place: _Place, inside: Held | None) -> None:
        elements = elements_of(value)
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
        for name, element in attributes_of(value):
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
        held.length += len(value) if issubclass(type(value), (*COLLECTIONS, dict)) else 1
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


def _may_hold_tensors(elements: list[Any]) -> bool:
    """Whether the first or the last element can lead to a tensor: a long list of numbers is passed over."""
    return bool(elements) and not (
        issubclass(type(elements[0]), _NOT_DATA) and issubclass(type(elements[-1]), _NOT_DATA)
    )


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
