"""The loop around a line, and whether what the line computes may go into its next round: then no batch replaces it."""

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from efprof.facts.source.sources import Sources, name_of, split_site
from efprof.model import SourceLine, called_name, frozen_dataclass, nodes_on, spans

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
NO_MODULES = frozenset({"F", "functional", "np", "torch"})
"""What is called by these names takes results together, as `torch.cat([outputs, model(x)])`: no module is called so."""
JOINS = frozenset({"cat", "concat", "concatenate", "hstack", "stack", "vstack"})

Loop = ast.For | ast.AsyncFor | ast.While


@frozen_dataclass
class LoopAround:
    """The innermost loop around a line; where that is a comprehension, or a `map`, the line that it begins at."""

    line: int
    is_chained: bool
    """Whether a call on the line may be given what it, or something made of it, gave in the round before."""
    is_recurrent: bool
    """The same of any function but those that only join results, as of a module."""


@frozen_dataclass
class RepeatedLine:
    """A line, and the one that its loop begins at."""

    line: SourceLine
    loop: SourceLine
    is_chained: bool


def repeated_line(sites: Iterable[str], sources: Sources) -> RepeatedLine | None:
    """Of the line of a call and of the calls that led to it, the innermost that a loop is around."""
    for site in sites:
        file, line, function = split_site(site)
        found = loop_around(sources.tree(file), line)
        if found is not None:
            loop = sources.line(f"{file}:{found.line}:{function}")
            return RepeatedLine(line=sources.line(site), loop=loop, is_chained=found.is_chained)
    return None


@lru_cache(maxsize=256)
def loop_around(tree: ast.Module, line: int) -> LoopAround | None:
    """The loop in the same function that repeats what is called on `line`; None where there is none."""
    around = nodes_on(tree, line)
    scopes = [place for place, node in enumerate(around) if isinstance(node, SCOPES)]
    inside = around[scopes[-1] + 1 :] if scopes else around
    every = (one for one in inside if isinstance(one, LOOPS))
    loops = [one for one in every if isinstance(one, ast.While) or line >= one.body[0].lineno]
    begins = [node.lineno for node in inside if isinstance(node, COMPREHENSIONS) or called_name(node) == "map"]
    if not begins and not loops:
        return None
    statement = [node for node in inside if isinstance(node, ast.stmt)][-1]
    lasting = set[str]().union(*(_lasting(loop, line) for loop in loops))
    return LoopAround(
        line=begins[-1] if begins else loops[-1].lineno,
        is_chained=bool(_given(statement, lambda call: _root(call.func) in NO_MODULES) & lasting),
        is_recurrent=bool(_given(statement, lambda call: called_name(call) in JOINS) & lasting),
    )


def is_of_step(tree: ast.Module, line: int) -> bool:
    """Whether the line uses what its function, or the loop around it, was given or stored: what may differ by step.

    To look something up by it is no use of it: `rows[index]`, or the items of a data set.
    """
    around = nodes_on(tree, line)
    functions = [node for node in around if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    scopes = functions[-1:] or [node for node in around if isinstance(node, LOOPS)][:1]
    within = [node for scope in scopes for node in ast.walk(scope)]
    changing = _stored(scopes) | {node.arg for node in within if isinstance(node, ast.arg)}
    used = list(ast.walk([node for node in around if isinstance(node, ast.stmt)][-1]))
    keys = {node for one in used if isinstance(one, ast.Subscript) for node in ast.walk(one.slice)}
    names = {
        node.id for node in used if isinstance(node, ast.Name) and node not in keys and isinstance(node.ctx, ast.Load)
    }
    is_item = any(one.name == "__getitem__" for one in functions[-1:])
    return not is_item and bool(names & changing - {"self", "cls"})


def _lasting(loop: Loop, line: int) -> set[str]:
    """Names that the loop stores, without those that each round makes anew of what no round stores."""
    lasting = _stored([loop])
    lasting -= set() if isinstance(loop, ast.While) else _stored([loop.target])
    for one in _before(loop.body, line):
        lasting -= _made_anew(one, line, lasting)
    return lasting


def _made_anew(one: ast.stmt, line: int, lasting: set[str]) -> set[str]:
    """Names that the statement gives a value, in whichever branch, that no round stores."""
    match one:
        case ast.Assign(targets=made, value=value) if not _names(value) & lasting:
            return _stored(made)
        case ast.For(target=target, iter=value) if spans(one, line) and not _names(value) & lasting:
            return _stored([target])
        case ast.If(body=body, orelse=other) if not spans(one, line):
            return set.intersection(
                *(set().union(*(_made_anew(each, line, lasting) for each in block)) for block in (body, other))
            )
    return set()


def _before(body: Sequence[ast.stmt], line: int) -> Iterator[ast.stmt]:
    """What each round comes to before the line, and the statements around that."""
    for one in body:
        if one.lineno >= line:
            return
        if spans(one, line) or not isinstance(one, ast.For):  # another loop may have no round
            yield one
        for _, part in ast.iter_fields(one):
            is_block = isinstance(part, list) and all(isinstance(each, ast.stmt) for each in part)
            if is_block and (isinstance(one, ast.With) or any(spans(each, line) for each in part)):
                yield from _before(part, line)


def _given(statement: ast.stmt, is_left_out: Callable[[ast.Call], bool]) -> set[str]:
    """What may be called with in a statement: arguments of calls, and what comprehensions go through."""
    found = set[str]()
    for node in ast.walk(statement):
        match node:
            case ast.Call(args=arguments, keywords=keywords) if not is_left_out(node):
                found |= _names(*arguments, *(keyword.value for keyword in keywords))
            case ast.comprehension(iter=value):
                found |= _names(value)
    return found


def _root(expression: ast.expr) -> str | None:
    while isinstance(expression, ast.Attribute):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else None


def _names(*expressions: ast.expr) -> set[str]:
    nodes = (node for expression in expressions for node in ast.walk(expression))
    return {str(name_of(node)) for node in nodes if isinstance(node, ast.Name | ast.Attribute)}


def _stored(nodes: Iterable[ast.AST]) -> set[str]:
    """All names given a value below these; a call of a method may put what it is given into its object."""
    within = [node for one in nodes for node in ast.walk(one)]
    found, own = set[str | None](), set[str | None]()
    for node in within:
        match node:
            case ast.Name(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                found.add(name_of(node))
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=keeper), args=[_, *_])):
                found.add(name_of(keeper))
            case ast.comprehension(target=target):
                own |= _stored([target])
    return {name for name in found - own if name}
