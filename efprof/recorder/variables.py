"""What an object, a function or a frame keeps, read without running any code of the user's."""

import sys
from collections import deque
from contextlib import suppress
from inspect import CO_OPTIMIZED
from types import CellType, CodeType, FrameType, FunctionType, MemberDescriptorType
from typing import Any
from weakref import WeakKeyDictionary

COLLECTIONS: tuple[type[Any], ...] = (list, tuple, deque, set, frozenset)

_READS_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec"})

_SLOTS: WeakKeyDictionary[type[Any], dict[str, Any]] = WeakKeyDictionary()


def slots_of(kind: type[Any]) -> dict[str, Any]:
    """The attributes that lie in an object and not in its `__dict__`, by their descriptors."""
    slots = _SLOTS.get(kind)
    if slots is None:
        found = ((name, slot) for base in kind.__mro__ for name, slot in vars(base).items())
        slots = _SLOTS[kind] = {name: slot for name, slot in found if type(slot) is MemberDescriptorType}
    return slots


def attributes_of(value: Any) -> list[tuple[str, Any]]:
    """Those in its slots, and those in its `__dict__`."""
    attributes = {}
    for name, slot in slots_of(type(value)).items():
        with suppress(AttributeError):  # not set yet
            attributes[name] = slot.__get__(value)
    if type(value).__dictoffset__:
        attributes |= object.__getattribute__(value, "__dict__")
    return list(attributes.items())


def is_filled(cell: CellType) -> bool:
    """Whether a closure's variable has been given a value yet."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def elements_of(value: Any) -> list[Any]:
    """Its elements as they lie in memory: a subclass may have its own `__iter__`."""
    kind = next(kind for kind in COLLECTIONS if issubclass(type(value), kind))
    return list(kind.__iter__(value))


def may_read_locals(code: CodeType) -> bool:
    """Not of a module, whose names are its globals; and not where the program may hold the snapshot itself.

    Until Python 3.13 `locals()` returns the very dict that reading a frame's locals refreshes.
    """
    is_function = bool(code.co_flags & CO_OPTIMIZED)
    return is_function and (sys.version_info >= (3, 13) or not _READS_LOCALS.intersection(code.co_names))


def locals_of(frame: FrameType) -> dict[str, Any]:
    """The variables of a function that runs, or of a generator that waits."""
    values = frame.f_locals
    names = dict(values)
    if sys.version_info < (3, 13):
        values.clear()  # the frame keeps this snapshot, and with it tensors that the program lets go
    return names


def variables_of(function: FunctionType) -> dict[str, Any]:
    """The variables of a closure, and the arguments with defaults."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    defaults = function.__defaults__ or ()
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    names: dict[str, Any] = {name: cell.cell_contents for name, cell in cells if is_filled(cell)}
    return names | dict(zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True))
