"""Whether a statement gives a holder an empty container whenever the program comes to it: `self.history = []`."""

import ast
from collections.abc import Iterable

from efprof.facts.holder_conditions import block_of, spans
from efprof.facts.holder_lines import QUEUES
from efprof.facts.syntax import PlacedNode, called_name

CHOICES = (ast.If, ast.IfExp, ast.Match, ast.ExceptHandler)
MADE_EMPTY = frozenset({"list", "dict", "set", "tuple", "deque", "OrderedDict", "Counter", *QUEUES})


def is_empty(value: ast.expr) -> bool:
    """`[]`, `{}`, `deque()`, `defaultdict(list)`, `None`."""
    match value:
        case ast.List(elts=[]) | ast.Tuple(elts=[]) | ast.Dict(keys=[]) | ast.Constant(value=None):
            return True
        case ast.Call(args=[], keywords=[]) | ast.Call(args=[ast.Name()], keywords=[]):
            maker = called_name(value)
            return maker == "defaultdict" if value.args else maker in MADE_EMPTY
    return False


def is_by_choice(placed: PlacedNode, grown_at: Iterable[int]) -> bool:
    """Whether a condition may keep the program from running it, other than one of every so many steps.

    `grown_at` are lines of its file: a condition that they depend on in the same way is none.
    """
    assert isinstance(placed.node, ast.stmt)
    line, grown = placed.node.lineno, list(grown_at)
    functions = [above for above in placed.ancestors if isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef)]
    within = placed.ancestors[placed.ancestors.index(functions[-1]) :] if functions else placed.ancestors
    return any(
        not _holds_all(block_of(above, line), grown)
        for above in within
        if isinstance(above, CHOICES) and not (isinstance(above, ast.If) and _is_every_so_often(above.test))
    )


def _holds_all(block: list[ast.stmt], lines: list[int]) -> bool:
    return bool(lines) and all(any(spans(part, line) for part in block) for line in lines)


def _is_every_so_often(test: ast.expr) -> bool:
    """`step % 100 == 0`."""
    return any(isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) for node in ast.walk(test))
