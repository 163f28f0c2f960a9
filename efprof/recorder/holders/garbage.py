"""Looks at what only the garbage collector frees: which of the user's reference cycles hold tensors."""

import gc
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from types import (
    BuiltinFunctionType,
    CellType,
    FrameType,
    FunctionType,
    GeneratorType,
    MappingProxyType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import Any, Literal

import torch

from efprof.artifacts.files import no_garbage_collection
from efprof.artifacts.holders import Cycle, CycleLink
from efprof.recorder.holders import variables
from efprof.recorder.holders.paths import Held, Place, TimeLimit, TimeLimitReached
from efprof.recorder.session.sites import Sites, user_file_of

MAX_SECONDS = 0.1
"""A look stops here; what it has found by then is told."""

MAX_OBJECTS = 20_000
"""The youngest of the garbage: several steps' worth, of which one would do."""

MAX_KINDS = 20
"""Classes and functions of the user's among the garbage; of each the first, a middle and the last are followed."""

MAX_CYCLES = 3
"""A file tells of no more: whoever mends the largest records again."""

_BETWEEN = (CellType, MethodType, TracebackType, MappingProxyType)
"""A link goes through these, and through containers, to what they hold."""

_OF_MODULE = ("_modules", "_parameters", "_buffers")
"""Where a module of torch keeps what a program calls its attributes."""

_OF_ERROR = ("__traceback__", "__context__", "__cause__")

_Kind = Literal["attribute", "variable", "closure", "class"]


def may_look() -> bool:
    """Whether the program leaves the collector alone: else it might see what we do to it, and mind.

    Others who are called at each collection could look at `gc.garbage` just then.
    """
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    is_usual = gc.isenabled() and gc.get_debug() == 0 and not gc.garbage
    return bool(has_gil) and is_usual and gc.get_freeze_count() == 0 and len(gc.callbacks) == 1


def look_at_garbage(generation: int, sites: Sites) -> list[Cycle]:
    """Collect these generations, look at what is freed before it is, and let it go; most bytes first.

    The collector runs finalizers and weak references' callbacks as always: DEBUG_SAVEALL keeps objects only from being
    taken apart. The second collection does that; it is one generation older, since that is where they are put.
    """
    with no_garbage_collection():
        try:
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect(generation)
            gc.set_debug(0)
            found = _find_cycles(sites)
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
        gc.collect(min(generation + 1, 2))
    return found


def _find_cycles(sites: Sites) -> list[Cycle]:
    search = _Search(sites, gc.garbage[-MAX_OBJECTS:])
    with suppress(TimeLimitReached):
        search.run()

    def order(cycle: Cycle) -> tuple[int, int, int]:
        num_foreign = sum(link.file is None for link in cycle.links)
        return -cycle.tensor_bytes - cycle.graph_bytes, num_foreign, len(cycle.links)

    found = sorted(search.found, key=order)
    different = {frozenset((link.owner, link.name) for link in cycle.links): cycle for cycle in reversed(found)}
    return list(reversed(different.values()))[:MAX_CYCLES]


class _Search:
    """Finds circles, and tells whose code an object belongs to and by which name it keeps another; runs none of it."""

    def __init__(self, sites: Sites, objects: list[Any]) -> None:
        self.found: list[Cycle] = []
        self._sites = sites
        self._objects = objects
        self._members = {id(value) for value in objects}
        self._time_limit = TimeLimit(time.thread_time() + MAX_SECONDS)

    def run(self) -> None:
        for values in self._starts():
            for value in {id(one): one for one in (values[-1], values[len(values) // 2], values[0])}.values():
                ring = self._ring(value)
                if ring:
                    self._note(ring, len(values))
                    break

    def _starts(self) -> list[list[Any]]:
        """The user's objects by what they are; those of libraries where there are none."""
        alike: dict[tuple[str, str | None], list[Any]] = {}
        for value in self._objects:
            self._time_limit.check()
            if issubclass(type(value), (ModuleType, BuiltinFunctionType)) or self._is_between(value):
                continue
            alike.setdefault((_owner_of(value), self._file_of(value)), []).append(value)
        of_user = [values for (_, file), values in alike.items() if file is not None]
        return sorted(of_user or alike.values(), key=len, reverse=True)[:MAX_KINDS]

    def _ring(self, start: Any) -> list[Any]:
        """The shortest way from an object back to itself; nothing where there is none."""
        came_from: dict[int, tuple[Any, int]] = {}
        todo = deque([start])
        while todo:
            value = todo.popleft()
            self._time_limit.check()
            for referent in self._referents(value):
                if referent is start:
                    way, here = [], id(value)
                    while here != id(start):
                        one, here = came_from[here]
                        way.append(one)
                    return [start, *reversed(way)]
                if id(referent) not in came_from:
                    came_from[id(referent)] = (referent, id(value))
                    todo.append(referent)
        return []

    def _referents(self, value: Any) -> list[Any]:
        return [referent for referent in gc.get_referents(value) if id(referent) in self._members]

    def _note(self, ring: list[Any], count: int) -> None:
        """Unless no tensor hangs on these objects, which would be freed with them."""
        held = Held(Place("", "", "", "", None), ring)
        seen, todo = {id(value) for value in ring}, list(ring)
        while todo:
            value = todo.pop()
            self._time_limit.check()
            if issubclass(type(value), torch.Tensor):
                held.add([value])
            for referent in self._referents(value):
                if id(referent) not in seen:
                    seen.add(id(referent))
                    todo.append(referent)
        held.add_graphs({}, self._time_limit)
        held.forget()
        counted = held.counted
        if counted.tensors:
            self.found.append(
                Cycle(
                    links=self._links_along(ring),
                    count=count,
                    tensors=counted.tensors,
                    tensor_bytes=counted.tensor_bytes,
                    graph_nodes=counted.graph_nodes,
                    graph_bytes=counted.graph_bytes,
                )
            )

    def _is_between(self, value: Any) -> bool:
        """Whether a program has no name for it: a cell, a bound method, a container that is not of the user's class."""
        kind = type(value)
        return kind in _BETWEEN or (issubclass(kind, variables.CONTAINERS) and self._file_of(value) is None)

    def _file_of(self, value: Any) -> str | None:
        """The path of the user's file that defines it; None for what a library defines."""
        code = _code_of(value)
        path = code.co_filename if code is not None else user_file_of(_kind_of(value), self._sites)
        return path if path and self._sites.is_user_file(path) else None

    def _links_along(self, objects: Sequence[Any]) -> list[CycleLink]:
        """The links of a cycle of objects, which begins with one that has names; each refers to the next."""
        ring = [*objects, objects[0]]
        starts = [place for place, value in enumerate(objects) if not self._is_between(value)]
        ends = [*starts[1:], len(objects)]
        return [self._link(ring[start : end + 1]) for start, end in zip(starts, ends, strict=True)]

    def _link(self, chain: Sequence[Any]) -> CycleLink:
        """`chain` leads from an object with names through some without to the next one with names."""
        holder, held = chain[0], chain[-1]
        kind, name = _kind_and_name(holder, chain[1:])
        path = self._file_of(holder)
        return CycleLink(
            kind=kind,
            owner=_owner_of(holder),
            name=name,
            file=path and self._sites.file(path),
            through="method" if any(type(value) is MethodType for value in chain[1:-1]) else "",
            can_be_weak=bool(type(held).__weakrefoffset__) and type(held) is not FunctionType,
        )


def _owner_of(value: Any) -> str:
    code = _code_of(value)
    return str(code.co_qualname if code is not None else _kind_of(value).__qualname__)


def _kind_of(value: Any) -> type[Any]:
    return value if issubclass(type(value), type) else type(value)


def _code_of(value: Any) -> Any:
    match value:
        case FunctionType():
            return value.__code__
        case FrameType():
            return value.f_code
        case GeneratorType():
            return value.gi_code
    return None


def _kind_and_name(holder: Any, chain: Sequence[Any]) -> tuple[_Kind, str]:
    if issubclass(type(holder), type):
        return "class", ""
    if type(holder) is FunctionType:
        return "closure", _name_in(variables.variables_of(holder), chain) or _name_in(holder.__dict__, chain)
    if type(holder) in (FrameType, GeneratorType):
        frame = holder if type(holder) is FrameType else holder.gi_frame
        may_read = frame is not None and variables.may_read_locals(frame.f_code)
        return "variable", _name_in(variables.locals_of(frame), chain) if may_read else ""
    return "attribute", _attribute(holder, chain)


def _attribute(holder: Any, chain: Sequence[Any]) -> str:
    if issubclass(type(holder), BaseException):
        for name in _OF_ERROR:
            if getattr(BaseException, name).__get__(holder) is chain[0]:
                return name
    attributes = dict(variables.attributes_of(holder))
    if issubclass(type(holder), torch.nn.Module):
        for name in _OF_MODULE:
            inner = attributes.get(name)
            found = _name_in(inner, chain) if type(inner) is dict else ""
            if found:
                return found
    return _name_in(attributes, chain)


def _name_in(names: dict[str, Any], chain: Sequence[Any]) -> str:
    """The name of the first object of the chain that has one; a cell stands for what it holds."""
    for value in chain:
        if type(value) is CellType and variables.is_filled(value):
            value = value.cell_contents
        for name, named in names.items():
            if named is value:
                return str(name)
    return ""
