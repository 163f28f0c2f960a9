"""The conditions under which a statement of the user's code is run: those above it, and early ways out before it."""

import ast
from collections.abc import Iterator

from efprof.facts.syntax import PlacedNode

Guard = tuple[ast.expr, bool]
"""A condition, and what it must be for the statement to be run."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def guards_in_function(placed: PlacedNode) -> list[Guard]:
    """All of its function, or of the module where it lies in none."""
    functions = [place for place, above in enumerate(placed.ancestors) if isinstance(above, FUNCTIONS)]
    return guards_below(placed, functions[-1] if functions else 0)


def guards_below(placed: PlacedNode, start: int) -> list[Guard]:
    """Those from this place among the nodes above it on."""
    within = placed.ancestors[start:]
    below = (*within[1:], placed.node)
    return [guard for above, inside in zip(within, below, strict=True) for guard in _guards_between(above, inside)]


def _guards_between(above: ast.AST, inside: ast.AST) -> Iterator[Guard]:
    """What one node asks of the next one within it."""
    if isinstance(above, ast.If | ast.IfExp | ast.While) and inside is not above.test:
        is_body = inside is above.body if isinstance(above, ast.IfExp) else inside in above.body
        yield above.test, is_body
    if isinstance(inside, ast.stmt):
        for earlier in block_of(above, inside.lineno):
            is_way_out = isinstance(earlier, ast.If) and not earlier.orelse and isinstance(earlier.body[-1], LEAVING)
            if earlier.lineno < inside.lineno and is_way_out:
                assert isinstance(earlier, ast.If)
                yield earlier.test, False


def block_of(above: ast.AST, line: int) -> list[ast.stmt]:
    """The block of a statement that a line lies in."""
    match above:
        case ast.Match(cases=cases):
            blocks = [case.body for case in cases]
        case _:
            found = [getattr(above, field, []) for field in ("body", "orelse", "finalbody")]
            blocks = [block for block in found if isinstance(block, list)]
    return next((block for block in blocks if any(spans(part, line) for part in block)), [])


def spans(block: ast.stmt, line: int) -> bool:
    """Whether a statement has that line."""
    return block.lineno <= line <= (block.end_lineno or block.lineno)
