"""How many entries a statement that bounds a container leaves in it, as the text says."""

import ast
from collections.abc import Iterator

from efprof.facts.holder_lines import QUEUES
from efprof.facts.syntax import mentions


def limits_in(node: ast.AST, name: str) -> list[ast.expr]:
    """The expressions of that number, of a container of that name; none where only some entries are taken out."""
    match node:
        case ast.Assign(targets=[ast.Subscript(slice=ast.BinOp(op=ast.Mod(), right=limit))]):
            return [limit]
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            made = [limit for one in ast.walk(value) if isinstance(one, ast.Call) for limit in limits_of_made(one)]
            return made or (_of_kept(value) if isinstance(value, ast.Subscript) else [])
        case ast.Delete(targets=targets):
            return [limit for target in targets if isinstance(target, ast.Subscript) for limit in _of_deleted(target)]
        case ast.Call(args=[ast.BinOp(op=ast.Sub(), right=lag), *_]):
            return [lag]  # `pool.pop(step - 9)`
        case ast.If(test=test) | ast.While(test=test):
            return [limit for measured, limit, _ in compared_lengths(test) if mentions(measured, name)]
    return []


def limits_of_made(made: ast.Call) -> list[ast.expr]:
    """`9` of `deque(maxlen=9)` and of `Queue(9)`."""
    match made:
        case ast.Call(func=ast.Name(id="deque") | ast.Attribute(attr="deque"), args=[_, limit]):
            return [limit]
        case ast.Call(func=ast.Name(id=maker) | ast.Attribute(attr=maker), args=[limit]) if maker in QUEUES:
            return [limit]
    return [keyword.value for keyword in made.keywords if keyword.arg in {"maxlen", "maxsize"}]


def compared_lengths(test: ast.expr) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """`history` and `9` of each `len(history) > 9` of a condition, and whether that is true of a long one."""
    for part in test.values if isinstance(test, ast.BoolOp) else [test]:
        match part:
            case ast.Compare(
                left=ast.Call(func=ast.Name(id="len"), args=[measured]), ops=[operator], comparators=[limit]
            ):
                yield measured, limit, isinstance(operator, ast.Gt | ast.GtE | ast.Eq)
            case ast.Compare(
                left=limit, ops=[operator], comparators=[ast.Call(func=ast.Name(id="len"), args=[measured])]
            ):
                yield measured, limit, isinstance(operator, ast.Lt | ast.LtE | ast.Eq)


def drops(index: ast.expr) -> bool:
    """Whether a slice leaves anything out: `[:]`, `[0:]` and `[::-1]` do not."""
    match index:
        case ast.Slice(lower=None | ast.Constant(value=0 | None), upper=None | ast.Constant(value=None), step=step):
            return step is not None and ast.unparse(step) not in {"None", "1", "-1"}
    return isinstance(index, ast.Slice)


def leaves_some(entry: ast.expr) -> bool:
    """`history[:-9]`, `pool[step - 9]`: taking that out leaves so many, however many there were."""
    return isinstance(entry, ast.Subscript) and (
        isinstance(entry.slice, ast.Slice)
        or (isinstance(entry.slice, ast.BinOp) and isinstance(entry.slice.op, ast.Sub))
    )


def is_ring(target: ast.Subscript) -> bool:
    """`history[step % 9]`."""
    return isinstance(target.slice, ast.BinOp) and isinstance(target.slice.op, ast.Mod)


def _of_kept(value: ast.Subscript) -> list[ast.expr]:
    """`9` of `history[-9:]` and of `history[:9]`."""
    match value.slice:
        case ast.Slice(lower=ast.UnaryOp(op=ast.USub(), operand=limit)):
            return [limit]
        case ast.Slice(lower=None | ast.Constant(value=0), upper=ast.expr() as limit):
            return [] if isinstance(limit, ast.UnaryOp) else [limit]
    return []


def _of_deleted(target: ast.Subscript) -> list[ast.expr]:
    """`9` of `del history[:-9]`, of `del history[9:]` and of `del pool[step - 9]`."""
    match target.slice:
        case ast.Slice(upper=ast.UnaryOp(op=ast.USub(), operand=limit)):
            return [limit]
        case ast.Slice(lower=ast.expr() as limit, upper=None):
            return [limit]
        case ast.BinOp(op=ast.Sub(), right=lag):
            return [lag]
    return []
