"""Statements that make a variable or attribute of a given name hold more: `history.append(loss)`, `total += loss`."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from efprof.facts.holder_conditions import Guard, guards_in_function
from efprof.facts.holder_keys import Keys, keys_of
from efprof.facts.syntax import PlacedNode, mentions, name_of, placed_nodes

VALUE_PLACE = {
    "append": 0, "appendleft": 0, "add": 0, "extend": 0, "extendleft": 0, "update": 0, "insert": 1, "setdefault": 1,
    "put": 0, "put_nowait": 0,
}  # fmt: skip
"""The methods that make a container grow, and which argument it keeps."""
NUMBER_FUNCTIONS = frozenset({"float", "int", "len", "str", "bool", "round", "perf_counter", "time", "repr"})
NUMBER_METHODS = frozenset({"item", "tolist", "numpy", "size", "numel", "format", "time", "perf_counter"})
JOINING = frozenset({"cat", "stack", "concat", "concatenate", "hstack", "vstack", "maximum", "minimum", "add"})
"""Calls that put the old value and a new one together; any other call carries the old value through a model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GrowingStatement:
    """One statement; `value` is what it keeps, `kind` the method's name or one of `+=`, `[...] =`, `= +`, `= f()`.

    `carried` is the argument through which the old value enters a call that makes the new one, `keys` lead to the
    entry of the variable that grows; `guards` are the conditions that its function runs it under.
    """

    file: str
    line: int
    function: str
    kind: str
    value: ast.expr
    is_attribute: bool
    carried: ast.expr | None = None
    keys: Keys = ()
    guards: tuple[Guard, ...] = ()

    @property
    def site(self) -> str:
        """`file:line:function`."""
        return f"{self.file}:{self.line}:{self.function}"

    @property
    def keeps_numbers(self) -> bool:
        """Whether what it keeps is plainly no tensor."""
        return is_number(self.value)

    @property
    def keeps_detached(self) -> bool:
        """Whether what it keeps was cut off from its graph."""
        return is_detached(self.value)

    @property
    def keeps_safe_parts(self) -> bool:
        """Whether something of what it keeps is plainly no tensor with its graph."""
        return any(is_number(part) or is_detached(part) for part in _parts(self.value))


def growing_statements(tree: ast.AST, file: str, name: str) -> Iterator[GrowingStatement]:
    """All of them in the order of the file."""
    for placed in placed_nodes(tree):
        found = _of_call(placed.node, name) or _of_assignment(placed, name)
        if found is None:
            continue
        kind, receiver, value, carried = found
        assert isinstance(placed.node, ast.expr | ast.stmt)
        yield GrowingStatement(
            file=file,
            line=placed.node.lineno,
            function=placed.function,
            kind=kind,
            value=value,
            is_attribute=_is_attribute(receiver),
            carried=carried,
            keys=keys_of(receiver),
            guards=tuple(guards_in_function(placed)),
        )


def is_detached(value: ast.expr) -> bool:
    """Whether an expression ends in methods of a tensor that was cut off: `x.detach().mean()`, `x.data`."""
    match value:
        case ast.Call(func=ast.Attribute(attr="detach" | "detach_")) | ast.Attribute(attr="data"):
            return True
        case ast.Call(func=ast.Attribute(value=inner)) | ast.Subscript(value=inner):
            return is_detached(inner)
    return False


def is_number(value: ast.expr) -> bool:
    """Whether an expression is plainly a number or a text, by its form."""
    match value:
        case ast.Constant() | ast.JoinedStr() | ast.Compare():
            return True
        case ast.Call(func=ast.Name(id=function)):
            return function in NUMBER_FUNCTIONS
        case ast.Call(func=ast.Attribute(attr=method)):
            return method in NUMBER_METHODS
        case ast.BinOp(left=left, right=right):
            return is_number(left) and is_number(right)
        case ast.UnaryOp(operand=operand):
            return is_number(operand)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return all(is_number(part) for part in parts)
        case ast.Dict(values=parts):
            return all(is_number(part) for part in parts)
    return False


def _parts(value: ast.expr) -> list[ast.expr]:
    match value:
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Dict(values=parts):
            return parts
    return [value]


_Found = tuple[str, ast.expr, ast.expr, ast.expr | None]
"""Kind, what grows, what it keeps, and the argument that carries the old value."""


def _of_call(node: ast.AST, name: str) -> _Found | None:
    match node:
        case ast.Call(func=ast.Attribute(value=receiver, attr=method), args=args) if method in VALUE_PLACE:
            place = VALUE_PLACE[method]
            is_it = name_of(_behind_setdefault(receiver)) == name
            return (method, receiver, args[place], None) if is_it and place < len(args) else None
    return None


def _behind_setdefault(receiver: ast.expr) -> ast.expr:
    """`losses` of `losses.setdefault(key, []).append(loss)`."""
    match receiver:
        case ast.Call(func=ast.Attribute(value=inner, attr="setdefault" | "get")):
            return inner
    return receiver


def _of_assignment(placed: PlacedNode, name: str) -> _Found | None:
    match placed.node:
        case ast.AugAssign(target=target, op=ast.Add(), value=value) if name_of(target) == name:
            return "+=", target, value, None
        case ast.Assign(targets=[ast.Subscript(value=inner) as target], value=value) if name_of(inner) == name:
            return "[...] =", target, value, None
        case ast.Assign(targets=[target], value=value) if _assigns(target, name) and mentions(value, name):
            return _of_renewal(target, value, name)
    return None


def _assigns(target: ast.expr, name: str) -> bool:
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    return any(name_of(part) == name for part in parts)


def _of_renewal(target: ast.expr, value: ast.expr, name: str) -> _Found | None:
    """`name = <something with name>`: a sum, a joining of tensors, or a call that carries it."""
    part = (
        next((part for part in target.elts if name_of(part) == name), target)
        if isinstance(target, ast.Tuple)
        else target
    )
    match value:
        case ast.BinOp(left=left, op=ast.Add(), right=right) if name_of(left) == name:
            return "= +", part, right, None
        case ast.BinOp(left=left, op=ast.Add(), right=right) if name_of(right) == name:
            return "= +", part, left, None
        case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called), args=args) if called not in JOINING:
            carried = next((argument for argument in args if name_of(argument) == name), None)
            is_itself = isinstance(value.func, ast.Attribute) and name_of(value.func.value) == name
            return None if is_itself else ("= f()", part, value, carried)
    return "= f()", part, value, None


def _is_attribute(receiver: ast.expr) -> bool:
    receiver = _behind_setdefault(receiver)
    while isinstance(receiver, ast.Subscript):
        receiver = receiver.value
    return isinstance(receiver, ast.Attribute)
