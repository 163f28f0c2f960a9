"""By which name of a program's code one object refers to another, read without running any of that code."""

from collections.abc import Sequence
from types import CellType, FrameType, FunctionType, GeneratorType, MappingProxyType, MethodType, TracebackType
from typing import Any, Literal

import torch

from efprof.artifacts.cycles import CycleLink
from efprof.recorder.sites import Sites
from efprof.recorder.user_classes import user_file_of
from efprof.recorder.variables import (
    COLLECTIONS,
    attributes_of,
    is_filled,
    locals_of,
    may_read_locals,
    namespace_of,
    variables_of,
)

_BETWEEN = (CellType, MethodType, TracebackType, MappingProxyType)
"""A link goes through these, and through containers, to what they hold."""

_OF_MODULE = ("_modules", "_parameters", "_buffers")
"""Where a module of torch keeps what a program calls its attributes."""

_OF_ERROR = ("__traceback__", "__context__", "__cause__")


class Names:
    """Tells for any object whose code it belongs to, and by which of its names it keeps another."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites

    def is_between(self, value: Any) -> bool:
        """Whether a program has no name for it: a cell, a bound method, a container that is not of the user's class."""
        kind = type(value)
        return kind in _BETWEEN or (issubclass(kind, (*COLLECTIONS, dict)) and self.file_of(value) is None)

    def file_of(self, value: Any) -> str | None:
        """The path of the user's file that defines it; None for what a library defines."""
        code = _code_of(value)
        kind = value if issubclass(type(value), type) else type(value)
        path = code.co_filename if code is not None else user_file_of(kind, self._sites)
        return path if path and self._sites.is_user_file(path) else None

    def owner_of(self, value: Any) -> str:
        """The name of its function, or of its class."""
        code = _code_of(value)
        if code is not None:
            return str(code.co_qualname)
        kind: type[Any] = value if issubclass(type(value), type) else type(value)
        return kind.__qualname__

    def links_along(self, objects: Sequence[Any]) -> list[CycleLink]:
        """The links of a cycle of objects, which begins with one that has names; each refers to the next."""
        ring = [*objects, objects[0]]
        starts = [place for place, value in enumerate(objects) if not self.is_between(value)]
        ends = [*starts[1:], len(objects)]
        return [self._link(ring[start : end + 1]) for start, end in zip(starts, ends, strict=True)]

    def _link(self, chain: Sequence[Any]) -> CycleLink:
        """`chain` leads from an object with names through some without to the next one with names."""
        holder, held = chain[0], chain[-1]
        between = [value for value in chain[1:-1] if not _is_namespace(holder, value)]
        kind, name = _kind_and_name(holder, chain[1:])
        path = self.file_of(holder)
        return CycleLink(
            kind=kind,
            owner=self.owner_of(holder),
            name=name,
            file=path and self._sites.file(path),
            through=_through(between),
            can_be_weak=bool(type(held).__weakrefoffset__) and type(held) is not FunctionType,
        )


def _code_of(value: Any) -> Any:
    match value:
        case FunctionType():
            return value.__code__
        case FrameType():
            return value.f_code
        case GeneratorType():
            return value.gi_code
    return None


def _through(between: Sequence[Any]) -> Literal["", "method", "traceback", "container"]:
    kinds = {type(value) for value in between}
    if MethodType in kinds:
        return "method"
    if TracebackType in kinds:
        return "traceback"
    return "container" if any(issubclass(kind, (*COLLECTIONS, dict)) for kind in kinds) else ""


def _is_namespace(holder: Any, value: Any) -> bool:
    """Whether it is the dict that a holder's attributes lie in."""
    if type(value) is not dict or issubclass(type(holder), type):
        return False
    attributes = namespace_of(holder)
    if attributes is None:
        return False
    is_module = issubclass(type(holder), torch.nn.Module)
    return value is attributes or (is_module and any(value is attributes.get(name) for name in _OF_MODULE))


_Kind = Literal["attribute", "variable", "closure", "class"]


def _kind_and_name(holder: Any, chain: Sequence[Any]) -> tuple[_Kind, str]:
    """`chain` is what lies behind the holder."""
    if issubclass(type(holder), type):
        return "class", ""
    if type(holder) is FunctionType:
        return "closure", _name_in(variables_of(holder), chain) or _name_in(holder.__dict__, chain)
    if type(holder) in (FrameType, GeneratorType):
        frame = holder if type(holder) is FrameType else holder.gi_frame
        may_read = frame is not None and may_read_locals(frame.f_code)
        return "variable", _name_in(locals_of(frame), chain) if may_read else ""
    return "attribute", _attribute(holder, chain)


def _attribute(holder: Any, chain: Sequence[Any]) -> str:
    if issubclass(type(holder), BaseException):
        for name in _OF_ERROR:
            if getattr(BaseException, name).__get__(holder) is chain[0]:
                return name
    attributes = dict(attributes_of(holder))
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
        if type(value) is CellType and is_filled(value):
            value = value.cell_contents
        for name, named in names.items():
            if named is value:
                return str(name)
    return ""
