"""Which lines of a function, and of those within it, bind one of its variables; its bytecode tells."""

import dis
from collections.abc import Iterator
from types import CodeType

_STORES = frozenset({"STORE_FAST", "STORE_DEREF", "STORE_NAME", "STORE_GLOBAL"})


def binding_lines(code: CodeType, name: str) -> set[tuple[CodeType, int]]:
    """Code and line of each statement that binds the name, loops and `with` among them."""
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
