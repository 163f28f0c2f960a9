"""The loop around a line, and whether what the line computes goes into its next round: then no batch replaces it."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from efprof.facts.source.sources import mentions, name_of, placed_nodes
from efprof.model import called_name

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
NO_MODULES = frozenset({"F", "functional", "np", "torch"})
"""What is called by these names takes results together, as `torch.cat([outputs, model(x)])`: no module is called so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopAround:
    """The innermost loop around a line; where that is a comprehension, or a `map`, the line that it begins at."""

    line: int
    is_chained: bool
    """Whether a call on the line is given what it, or something made of it, gave in the round before."""


def loop_around(tree: ast.Module, line: int) -> LoopAround | None:
    """The loop in the same function that repeats what is called on `line`; None where there is none.

    All loops of the function around the line are looked at for what they carry from round to round.
    """
    found = [placed for placed in placed_nodes(tree) if isinstance(placed.node, ast.stmt) and _spans(placed.node, line)]
    if not found:
        return None
    innermost = max(found, key=lambda placed: len(placed.ancestors))
    statement, loops = innermost.node, _loops_in_function(innermost.ancestors)
    assert isinstance(statement, ast.stmt)
    if isinstance(statement, ast.While):  # its condition is computed in each round
        loops.insert(0, statement)
    begins = [node.lineno for node in _expressions(statement) if _repeats(node) and _spans(node, line)]
    if not begins and not loops:
        return None
    is_chained = any(_is_chained(loop, statement) for loop in loops)
    return LoopAround(line=begins[-1] if begins else loops[0].lineno, is_chained=is_chained)


def _spans(node: ast.stmt | ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _loops_in_function(ancestors: Sequence[ast.AST]) -> list[ast.For | ast.AsyncFor | ast.While]:
    """Innermost first."""
    found: list[ast.For | ast.AsyncFor | ast.While] = []
    for node in reversed(ancestors):
        if isinstance(node, SCOPES):
            break
        if isinstance(node, LOOPS):
            found.append(node)
    return found


def _expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """All within a statement that are not within statements below it."""
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from (node for node in ast.walk(child) if isinstance(node, ast.expr))


def _repeats(node: ast.expr) -> bool:
    return isinstance(node, COMPREHENSIONS) or (isinstance(node, ast.Call) and called_name(node) == "map")


def _is_chained(loop: ast.For | ast.AsyncFor | ast.While, statement: ast.stmt) -> bool:
    """Follow what the statement gives through the loop's body, until a round adds nothing."""
    arguments = list(_given(statement))
    body = list(_in_order([loop] if loop is statement else loop.body, is_certain=True))
    anew = _names_of([loop.target]) if isinstance(loop, ast.For | ast.AsyncFor) else set()
    carried: set[str] = set()
    while True:
        found = carried - anew
        for one, is_certain in body:
            if one is statement and _mention(arguments, found):
                return True
            stored = _stored(one)
            if one is statement or _mention(_values(one), found):
                found = found | stored
            elif is_certain and not isinstance(one, ast.AugAssign | ast.Expr):
                found = found - stored
        if found <= carried:
            return False
        carried |= found


def _in_order(body: Iterable[ast.stmt], *, is_certain: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """Every statement, and whether each round comes to it; what a function defined here does is not followed."""
    for statement in body:
        yield statement, is_certain
        if isinstance(statement, SCOPES):
            continue
        is_always = is_certain and isinstance(statement, ast.With | ast.AsyncWith)
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.stmt):
                yield from _in_order([child], is_certain=is_always)
            elif isinstance(child, ast.ExceptHandler | ast.match_case):
                yield from _in_order(child.body, is_certain=False)


def _given(statement: ast.stmt) -> Iterator[ast.expr]:
    """What modules may be called with in a statement: arguments of calls, and what comprehensions go through."""
    for node in _expressions(statement):
        match node:
            case ast.Call(func=called, args=arguments, keywords=keywords) if _root(called) not in NO_MODULES:
                yield from arguments
                yield from (keyword.value for keyword in keywords)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                yield from (generator.iter for generator in node.generators)


def _root(expression: ast.expr) -> str | None:
    while isinstance(expression, ast.Attribute):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else None


def _mention(expressions: Iterable[ast.expr], names: set[str]) -> bool:
    return any(mentions(expression, name) for expression in expressions for name in names)


def _values(statement: ast.stmt) -> list[ast.expr]:
    """What a statement reads to store something."""
    match statement:
        case ast.For(iter=value) | ast.AsyncFor(iter=value):
            return [value]
        case ast.Assign(value=value) | ast.AugAssign(value=value) | ast.Expr(value=value):
            return [value]
        case ast.AnnAssign(value=ast.expr() as value):
            return [value]
        case ast.With(items=items) | ast.AsyncWith(items=items):
            return [item.context_expr for item in items]
    return []


def _stored(statement: ast.stmt) -> set[str]:
    """The names that a statement gives a value; a call of a method may put what it is given into its object."""
    names = _names_of([node.target for node in _expressions(statement) if isinstance(node, ast.NamedExpr)])
    match statement:
        case ast.Assign(targets=targets):
            return names | _names_of(targets)
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return names | _names_of([target])
        case ast.For(target=target) | ast.AsyncFor(target=target):
            return names | _names_of([target])
        case ast.With(items=items) | ast.AsyncWith(items=items):
            return names | _names_of([item.optional_vars for item in items if item.optional_vars])
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=keeper))):
            return names | _names_of([keeper])
    return names


def _names_of(targets: Iterable[ast.expr]) -> set[str]:
    found: set[str] = set()
    for target in targets:
        match target:
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                found |= _names_of(parts)
            case ast.Starred(value=part):
                found |= _names_of([part])
            case _:
                found |= {name for name in [name_of(target)] if name}
    return found
