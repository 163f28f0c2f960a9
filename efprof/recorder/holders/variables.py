"""What an object, a function or a frame keeps, read without running any code of the user's."""

import ctypes
import dis
import functools
import gc
import queue
import sys
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from inspect import CO_OPTIMIZED
from itertools import pairwise
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
    NoneType,
)
from typing import Any
from weakref import WeakKeyDictionary

COLLECTIONS: tuple[type[Any], ...] = (list, tuple, deque, set, frozenset)
CONTAINERS: tuple[type[Any], ...] = (dict, *COLLECTIONS)

FEW = 64
"""Up to so many elements of a collection are looked at one by one, of more the first and the last."""

PLAIN = frozenset({str, bytes, int, float, bool, complex, NoneType})
"""What can hold nothing, and is told at a glance."""

PROGRAM = (ModuleType, type, FunctionType, BuiltinFunctionType, MethodType, CodeType, FrameType)
"""The program's code, which is none of its data."""

NOT_DATA = (*PROGRAM, str, bytes, int, float, complex)

CODE = (FunctionType, MethodType, GeneratorType, type)
"""What may keep variables of its own: a closure's cells and defaults, a suspended frame, a class's attributes."""

LRU_CACHE = functools._lru_cache_wrapper
"""Has attributes of no interest, and contents that are no attribute."""

_INNER: dict[type[Any], str] = {
    queue.Queue: "queue",
    UserList: "data",
    UserDict: "data",
    WeakKeyDictionary: "data",
    ChainMap: "maps",
}
"""Containers written in Python, and the attribute in which they have what they contain."""

STORES = frozenset(
    {"STORE_FAST", "STORE_DEREF", "STORE_NAME", "STORE_GLOBAL", "STORE_FAST_STORE_FAST", "STORE_FAST_LOAD_FAST"}
)

LIGHT = frozenset({list, tuple, dict, OrderedDict, set, frozenset})
"""A module of torch has ten tables of hooks, in most of which there is nothing."""

_TAKES_LOCALS = frozenset({"locals", "eval", "exec"})

_TAKES_LOCALS_ALONE = frozenset({"vars", "dir"})

MAX_LAYERS = 5
"""Containers within one another; what goes deeper is visited one by one."""

MAX_OBJECTS = 100_000
"""In one layer, all of which are in a list at a time: a few megabytes, some milliseconds."""

_PLAIN_CONTAINERS: frozenset[type[Any]] = frozenset({list, tuple, dict, set, frozenset})

_SLOTS: WeakKeyDictionary[type[Any], dict[str, Any]] = WeakKeyDictionary()


def slots_of(kind: type[Any]) -> dict[str, Any]:
    slots = _SLOTS.get(kind)
    if slots is None:
        found = ((name, slot) for base in kind.__mro__ for name, slot in vars(base).items())
        slots = _SLOTS[kind] = {
            name: slot for name, slot in found if type(slot) is MemberDescriptorType and name != "__dict__"
        }
    return slots


def attributes_of(value: Any) -> list[tuple[str, Any]]:
    attributes = {}
    for name, slot in slots_of(type(value)).items():
        with suppress(AttributeError):  # not set yet
            attributes[name] = slot.__get__(value)
    return list((attributes | (namespace_of(value) or {})).items())


def namespace_of(value: Any) -> dict[str, Any] | None:
    """The dict that its attributes lie in; of an asyncio `Future`, and since Python 3.12 a `TypeVar`, it is hidden."""
    if type(value).__dictoffset__:
        with suppress(AttributeError):
            return object.__getattribute__(value, "__dict__")  # type: ignore[no-any-return]
    return None


def inner_name(kind: type[Any]) -> str | None:
    """The attribute of Python's own containers that has their contents; None for what is none of them."""
    return next((name for container, name in _INNER.items() if issubclass(kind, container)), None)


def cache_table(cache: Any) -> dict[Any, Any]:
    attributes = namespace_of(cache)
    return next((one for one in gc.get_referents(cache) if type(one) is dict and one is not attributes), {})


def is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def base_of(value: Any) -> Any:
    """The built-in class whose methods tell of a container without running code of the user's; None of what is none."""
    return next((base for base in CONTAINERS if issubclass(type(value), base)), None)


def may_read_locals(code: CodeType) -> bool:
    """Not of a module, whose names are its globals; and not where the program may hold the snapshot itself.

    Until Python 3.13 `locals()` returns the very dict that reading a frame's locals refreshes.
    """
    is_function = bool(code.co_flags & CO_OPTIMIZED)
    return is_function and (sys.version_info >= (3, 13) or not _takes_locals(code))


@cache
def _takes_locals(code: CodeType) -> bool:
    """Whether it calls `locals()` or the like; `vars(arguments)` and `model.eval()` are about other objects."""
    if not (_TAKES_LOCALS | _TAKES_LOCALS_ALONE).intersection(code.co_names):
        return False
    steps = [one for one in dis.get_instructions(code) if one.opname not in ("PUSH_NULL", "PRECALL", "CACHE")]
    return any(
        one.argval in _TAKES_LOCALS
        or (one.argval in _TAKES_LOCALS_ALONE and following.opname == "CALL" and not following.arg)
        for one, following in pairwise(steps)
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    )


def locals_of(frame: FrameType) -> dict[str, Any]:
    values = frame.f_locals
    names = dict(values)
    if sys.version_info < (3, 13):
        values.clear()  # the frame keeps this snapshot, and with it tensors that the program lets go
        # Writes nothing back, as nothing is in it: else the next event of a tracer fills it once more.
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), 0)
    return names


def variables_of(function: FunctionType) -> dict[str, Any]:
    defaults = function.__defaults__ or ()
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    names: dict[str, Any] = {name: cell.cell_contents for name, cell in cells_of(function).items() if is_filled(cell)}
    names |= dict(zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True))
    return names | (function.__kwdefaults__ or {})


def cells_of(function: FunctionType) -> dict[str, CellType]:
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def value_of(owner: Any, name: str) -> Any:
    """What has this name in a namespace, a cell, a class or an object now; None where nothing has."""
    if type(owner) is CellType:
        return owner.cell_contents if is_filled(owner) else None
    if issubclass(type(owner), dict):
        return dict.get(owner, name)
    if isinstance(owner, type):
        return vars(owner).get(name)
    namespace = namespace_of(owner)
    if namespace is not None and name in namespace:
        return namespace[name]
    slot = slots_of(type(owner)).get(name)
    with suppress(AttributeError):
        return None if slot is None else slot.__get__(owner)
    return None


def may_hold_tensors(elements: list[Any]) -> bool:
    """Whether any of a few elements, the first or the last of many, can lead to a tensor: numbers are passed over."""
    if len(elements) <= FEW:
        return not PLAIN.issuperset(map(type, elements))
    return any(type(end) in CODE or not issubclass(type(end), NOT_DATA) for end in (elements[0], elements[-1]))


def lone_kinds(elements: Iterable[Any]) -> frozenset[Any]:
    """The kinds of which there is one object among the elements; a bound method stands for its object."""
    things = {id(thing): thing for thing in (one.__self__ if type(one) is MethodType else one for one in elements)}
    counted = Counter(map(kind_of, things.values()))
    return frozenset(kind for kind, number in counted.items() if number == 1)


def kind_of(value: Any) -> Any:
    if type(value) is MethodType:
        return type(value.__self__)
    return value.__code__ if type(value) is FunctionType else type(value)


def is_plain_data(elements: Sequence[Any]) -> bool:
    """Whether there are only numbers and texts in all these elements, which may be containers.

    The collector's own function goes through a layer of objects, fifty times as fast as a loop does.
    """
    layer: Sequence[Any] = elements
    for _ in range(MAX_LAYERS):
        kinds = set(map(type, layer)) - PLAIN
        if not kinds:
            return True
        containers = [one for one in layer if type(one) in _PLAIN_CONTAINERS]
        if kinds - _PLAIN_CONTAINERS or sum(map(len, containers)) > MAX_OBJECTS:
            return False
        layer = gc.get_referents(*containers)
    return False


def binding_lines(code: CodeType, name: str, stores: frozenset[str] = STORES) -> set[tuple[CodeType, int]]:
    """Code and line of each statement of a function, and of those within it, that binds the name, by its bytecode."""
    found = set()
    for one in [code, *_within(code, name)]:
        line = 0
        for instruction in dis.get_instructions(one):
            if instruction.positions is not None and instruction.positions.lineno is not None:
                line = instruction.positions.lineno
            if instruction.opname in stores:
                # From Python 3.13 on one instruction may bind two names, or bind one and load another.
                names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
                if name in (names[:1] if instruction.opname == "STORE_FAST_LOAD_FAST" else names):
                    found.add((one, line))
    return found


def _within(code: CodeType, name: str) -> Iterator[CodeType]:
    """Functions in it that know its variable as theirs: `nonlocal`."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and name in constant.co_freevars:
            yield constant
            yield from _within(constant, name)
