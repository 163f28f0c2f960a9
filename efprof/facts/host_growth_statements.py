"""Statements that every step runs and that put something into a container which outlives the step, never emptied."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from efprof.facts.growing_statements import VALUE_PLACE, GrowingStatement, growing_statements
from efprof.facts.step_code import PlacedStatement, StepCode
from efprof.facts.syntax import MODULE, PlacedNode, name_of

MAKERS = frozenset({"list", "dict", "set", "defaultdict", "OrderedDict", "Counter", "deque"})
EMPTYING = frozenset({"clear", "pop", "popleft", "popitem", "remove", "discard"})
SCALAR_FUNCTIONS = frozenset({"float", "int", "len", "bool", "round", "time", "perf_counter"})
DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Made:
    """Where a container of a name is made."""

    file: str
    placed: PlacedNode
    is_attribute: bool


def keeping_statements(code: StepCode) -> list[GrowingStatement]:
    """In the order of the files; one that adds a single number per step is none, since nothing grows by it for long."""
    made = dict[str, list[_Made]]()
    emptied: set[tuple[str, bool]] = set()
    for file in code.trees:
        for placed in code.nodes(file):
            for name, is_attribute in _made_by(placed.node):
                made.setdefault(name, []).append(_Made(file=file, placed=placed, is_attribute=is_attribute))
            emptied |= set(_emptied_by(placed.node))
    return [
        statement
        for file, tree in code.trees.items()
        for name in sorted(_grown_names(code, file) & made.keys())
        for statement in growing_statements(tree, file, name)
        if (name, statement.is_attribute) not in emptied
        and _is_growth(statement, code)
        and any(_outlives_steps(one, statement, code) for one in made[name])
        and not any(_is_made_anew(one, statement, code) for one in made[name])
    ]


def _is_growth(statement: GrowingStatement, code: StepCode) -> bool:
    """Whether it runs in every step, and adds more than one number."""
    place = code.place_of(statement.file, statement.line)
    if place is None or statement.kind in {"= +", "= f()"} or _has_constant_key(place):
        return False
    return place.is_in_inner_loop or not _is_scalar(statement.value)


def _outlives_steps(made: _Made, statement: GrowingStatement, code: StepCode) -> bool:
    """Whether what is made there is still the same container in the next step."""
    if made.is_attribute or statement.is_attribute:
        return made.is_attribute and statement.is_attribute and not code.is_in_step(made.placed)
    if made.file != statement.file or code.is_in_step(made.placed):
        return False
    owner = made.placed.function
    return owner in (MODULE, statement.function) or statement.function.startswith(f"{owner}.")


def _is_made_anew(made: _Made, statement: GrowingStatement, code: StepCode) -> bool:
    if made.is_attribute != statement.is_attribute or not code.is_in_step(made.placed):
        return False
    return made.is_attribute or (made.file == statement.file and made.placed.function == statement.function)


def _made_by(node: ast.AST) -> Iterator[tuple[str, bool]]:
    pairs: list[tuple[ast.expr, ast.expr]] = []
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            pairs = list(zip(targets, values, strict=False))
        case ast.Assign(targets=targets, value=value):
            pairs = [(target, value) for target in targets]
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            pairs = [(target, value)]
    for made, content in pairs:
        name = _plain_name(made)
        if name and _is_container(content):
            yield name, isinstance(made, ast.Attribute) or _is_field(content)


def _is_container(value: ast.expr) -> bool:
    match value:
        case ast.Call(func=ast.Name(id=maker) | ast.Attribute(attr=maker), keywords=keywords) if maker in MAKERS:
            return all(keyword.arg != "maxlen" for keyword in keywords) and not (
                maker == "deque" and len(value.args) > 1
            )
    return isinstance(value, DISPLAYS) or _is_field(value)


def _is_field(value: ast.expr) -> bool:
    """`field(default_factory=list)` of a dataclass."""
    match value:
        case ast.Call(func=ast.Name(id="field") | ast.Attribute(attr="field"), keywords=keywords):
            return any(one.arg == "default_factory" and name_of(one.value) in MAKERS for one in keywords)
    return False


def _emptied_by(node: ast.AST) -> Iterator[tuple[str, bool]]:
    """`x.clear()`, `x.pop()`, `del x[...]`, `x = x[...]`, `x[...] = []` of a slice, `x = None`."""
    match node:
        case ast.Call(func=ast.Attribute(value=receiver, attr=method)) if method in EMPTYING:
            yield from _named(receiver)
        case ast.Delete(targets=targets):
            for target in targets:
                yield from _named(target)
        case ast.Assign(targets=[ast.Subscript(value=inner, slice=ast.Slice())]):
            yield from _named(inner)
        case ast.Assign(targets=[target], value=ast.Subscript(value=inner)) if _plain_name(target) == name_of(inner):
            yield from _named(inner)
        case ast.Assign(targets=[target], value=ast.Constant(value=None)):
            yield from _named(target)


def _named(expression: ast.expr) -> Iterator[tuple[str, bool]]:
    if isinstance(expression, ast.Subscript):
        yield from _named(expression.value)
    elif name := name_of(expression):
        yield name, isinstance(expression, ast.Attribute)


def _plain_name(expression: ast.expr) -> str | None:
    return None if isinstance(expression, ast.Subscript) else name_of(expression)


def _grown_names(code: StepCode, file: str) -> set[str]:
    """The names of all that something is put into."""
    names: set[str | None] = set()
    for placed in code.nodes(file):
        match placed.node:
            case ast.Call(func=ast.Attribute(value=receiver, attr=method)) if method in VALUE_PLACE:
                is_default = isinstance(receiver, ast.Call) and isinstance(receiver.func, ast.Attribute)
                names.add(name_of(receiver.func.value if is_default else receiver))  # type: ignore[attr-defined]
            case ast.Assign(targets=[ast.Subscript(value=inner)]):
                names.add(name_of(inner))
            case ast.AugAssign(target=target, op=ast.Add()):
                names.add(name_of(target))
    return {name for name in names if name}


def _has_constant_key(place: PlacedStatement) -> bool:
    """`metrics["loss"] = value` puts the next value into the same place."""
    match place.statement:
        case ast.Assign(targets=[ast.Subscript(slice=ast.Constant() | ast.Slice() | ast.UnaryOp())]):
            return True
    return False


def _is_scalar(value: ast.expr) -> bool:
    match value:
        case ast.Constant() | ast.Compare():
            return True
        case ast.Call(func=ast.Attribute(attr="item")):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in SCALAR_FUNCTIONS
        case ast.BinOp(left=left, right=right):
            return _is_scalar(left) and _is_scalar(right)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Dict(values=parts):
            return all(_is_scalar(part) for part in parts)
    return False
