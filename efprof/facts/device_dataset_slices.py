"""The slices `data[i:j]` by which a data set is taken, where nothing else reads it once it lies on the device."""

import ast
from collections.abc import Sequence

from efprof.facts.step_code import LOOPS
from efprof.facts.syntax import PlacedNode

SAME_ANYWHERE = frozenset({"shape", "size", "dtype", "ndim", "dim", "numel", "element_size"})
"""Attributes and methods of a tensor that are the same on the host and on a device."""

Mention = tuple[str, PlacedNode]
"""The file, and the node there that stands for the data."""


def only_slices(moved: Mention, mentions: Sequence[Mention], uses: Sequence[Mention]) -> tuple[ast.Subscript, ...]:
    """The slices among the uses, all in the function of the statement that moves the data.

    None where the data is mentioned in another way, which may need it on the device: `model(data)`, `data.mean(0)`.
    """
    slices = []
    for mention in mentions:
        node, above = mention[1].node, mention[1].ancestors[-1]
        if _is_stored(node) or _is_harmless(mention[1]) or _is_before(moved, mention):
            continue
        is_slice = isinstance(above, ast.Subscript) and above.value is node and isinstance(above.slice, ast.Slice)
        if not is_slice or not _is_in_one_function(moved, mention) or mention not in uses:
            return ()
        assert isinstance(above, ast.Subscript)
        slices.append(above)
    return tuple(slices)


def _is_in_one_function(moved: Mention, mention: Mention) -> bool:
    return (moved[0], moved[1].function) == (mention[0], mention[1].function)


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and not isinstance(node.ctx, ast.Load)


def _is_harmless(placed: PlacedNode) -> bool:
    """Whether only its length, shape or type is asked for."""
    match placed.ancestors[-1]:
        case ast.Call(func=ast.Name(id="len")):
            return True
        case ast.Attribute(attr=name):
            return name in SAME_ANYWHERE
    return False


def _is_before(moved: Mention, mention: Mention) -> bool:
    """Whether it is read for the last time by the statement that moves it, or above that, on the host in any case."""
    move, read = moved[1], mention[1]
    assert isinstance(move.node, ast.stmt)
    assert isinstance(read.node, ast.expr)
    is_once = not any(isinstance(above, LOOPS) for above in move.ancestors)
    is_above = is_once and read.node.lineno < move.node.lineno
    is_within = any(above is move.node for above in read.ancestors)
    return _is_in_one_function(moved, mention) and (is_within or is_above)
