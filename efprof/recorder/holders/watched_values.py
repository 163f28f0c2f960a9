"""What is compared after each line of a watch: lengths of containers, and what has a name, by handles taken once;
and which lines bind a variable.
"""

import dis
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FrameType
from typing import Any, Literal, NamedTuple

import torch

from efprof.recorder.holders.paths import Handles
from efprof.recorder.holders.variables import CONTAINERS, base_of, locals_of, may_read_locals, value_of

MAX_HANDLES = 8
"""Of one path: of ten layers alike, some tell the line of all."""

_STORES = frozenset({"STORE_FAST", "STORE_DEREF", "STORE_NAME", "STORE_GLOBAL"})

_TENSORS = (torch.Tensor, torch.nn.Parameter)

How = Literal["grew", "shrank", "bound"]


class Line(NamedTuple):
    """Where a thread is; `is_within_call` while a library runs that this line called."""

    code: CodeType
    number: int
    is_within_call: bool


@dataclass(slots=True)
class Seen:
    times: int = 0
    entries: int = 0


@dataclass(slots=True)
class WatchedValue:
    path: str
    scope: str
    file: str | None
    number: int | None
    changes: dict[tuple[Line, How], Seen] = field(default_factory=dict)
    variables: list["Variable"] = field(default_factory=list)

    @property
    def num_seen(self) -> int:
        seen = sum(one.times for (_, how), one in self.changes.items() if how != "shrank")
        return max([seen, *(variable.times for variable in self.variables)])

    def note(self, line: Line, how: How, entries: int) -> None:
        seen = self.changes.setdefault((line, how), Seen())
        seen.times += 1
        seen.entries += entries


@dataclass(slots=True)
class Variable:
    """A local variable of a function that runs, looked at once per step: to read it in a trace callback would harm."""

    frame: FrameType
    name: str
    times: int = 0
    _last: Any = None

    def look(self, names: dict[str, Any]) -> None:
        now = _identity(names.get(self.name))
        self.times += self._last is not None and now != self._last
        self._last = now


class State(NamedTuple):
    """One comparison: `measure` gives what is compared, `note` is told of a line that changed it."""

    measure: Callable[[], Any]
    note: Callable[[Line, Any, Any], None]


def states_of(thing: WatchedValue, handles: Handles) -> list[State]:
    """All that is compared for one thing; its local variables become `thing.variables` instead."""
    states, named = [], set()
    for owner, name in handles.names[-MAX_HANDLES:]:
        if type(owner) is FrameType:
            thing.variables.append(Variable(owner, name))
        else:
            states.append(State(partial(_named, owner, name), partial(_note_named, thing)))
            named.add(id(value_of(owner, name)))
    for container in handles.containers[-MAX_HANDLES:]:
        if id(container) not in named:
            states.append(State(partial(base_of(container).__len__, container), partial(_note_length, thing)))
    return states


def look_at_variables(things: list[WatchedValue]) -> None:
    variables = [variable for thing in things for variable in thing.variables]
    for frame in {variable.frame for variable in variables}:
        if may_read_locals(frame.f_code):
            names = locals_of(frame)
            for variable in variables:
                if variable.frame is frame:
                    variable.look(names)


def _note_length(thing: WatchedValue, line: Line, before: int, now: int) -> None:
    thing.note(line, "grew" if now > before else "shrank", abs(now - before))


def _named(owner: Any, name: str) -> tuple[int, int, int | None]:
    value = value_of(owner, name)
    address, version = _identity(value)
    return address, version, len(value) if type(value) in CONTAINERS else None


def _note_named(
    thing: WatchedValue, line: Line, before: tuple[int, int, int | None], now: tuple[int, int, int | None]
) -> None:
    """Its value is another one, or the same tensor written in place; a container may have got longer or shorter."""
    if before[2] is None or now[2] is None or before[2] == now[2]:
        thing.note(line, "bound", 0)
    else:
        _note_length(thing, line, before[2], now[2])


def _identity(value: Any) -> tuple[int, int]:
    """By which a value is told from the one before; a tensor that was written in place is another one."""
    if type(value) not in _TENSORS:
        return id(value), 0
    try:
        return id(value), value._version
    except RuntimeError:  # made in inference mode
        return id(value), 0


def binding_lines(code: CodeType, name: str) -> set[tuple[CodeType, int]]:
    """Code and line of each statement of a function, and of those within it, that binds the name, by its bytecode."""
    found = set()
    for one in [code, *_within(code, name)]:
        line = 0
        for instruction in dis.get_instructions(one):
            if instruction.positions is not None and instruction.positions.lineno is not None:
                line = instruction.positions.lineno
            if name in _bound_by(instruction):
                found.add((one, line))
    return found


def _within(code: CodeType, name: str) -> Iterator[CodeType]:
    """Functions in it that know its variable as theirs: `nonlocal`."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and name in constant.co_freevars:
            yield constant
            yield from _within(constant, name)


def _bound_by(instruction: dis.Instruction) -> tuple[str, ...]:
    """From Python 3.13 on one instruction may bind two names, or bind one and load another."""
    bound = instruction.argval
    if instruction.opname in _STORES:
        return (bound,)
    if instruction.opname == "STORE_FAST_STORE_FAST":
        return tuple(bound)
    return (bound[0],) if instruction.opname == "STORE_FAST_LOAD_FAST" else ()
