"""What an edit changes that keeps a data set on the host: the moves on a known line, and the slices of the data."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from efprof.facts.syntax import PlacedNode, placed_nodes

SAME_ANYWHERE = frozenset({"shape", "size", "dtype", "ndim", "dim", "numel", "element_size"})
"""Attributes and methods of a tensor that are the same on the host and on a device."""
LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetEdit:
    """The calls that move the data, and the expressions `data[i:j]` that are all that is done with it afterwards."""

    moves: tuple[ast.Call, ...]
    slices: tuple[ast.Subscript, ...]


def dataset_edit(tree: ast.Module | None, line: int) -> DatasetEdit | None:
    """Of `data = data.to(device)` on this line; None where the names are read in another way, or in another function.

    That may need the data on the device: `model(data)`, `data.mean(0)`.
    """
    nodes = list(placed_nodes(tree)) if tree is not None else []
    moved = next((one for one in nodes if isinstance(one.node, ast.Assign) and one.node.lineno == line), None)
    if moved is None:
        return None
    assert isinstance(moved.node, ast.Assign)
    moves = tuple(node for node in ast.walk(moved.node.value) if isinstance(node, ast.Call) and _is_move(node))
    names = {node.id for target in moved.node.targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    slices = list(_slices(nodes, moved, names))
    found = tuple(one for one in slices if one is not None)
    return DatasetEdit(moves=moves, slices=found) if moves and found and len(found) == len(slices) else None


def _slices(nodes: list[PlacedNode], moved: PlacedNode, names: set[str]) -> Iterator[ast.Subscript | None]:
    """Each slice of the data; None for what else is done with it."""
    is_once = not any(isinstance(above, LOOPS) for above in moved.ancestors)
    assert isinstance(moved.node, ast.stmt)
    for one in nodes:
        if not isinstance(one.node, ast.Name) or one.node.id not in names or not isinstance(one.node.ctx, ast.Load):
            continue
        is_here = one.function == moved.function
        is_before = is_here and is_once and one.node.lineno < moved.node.lineno
        if is_before or any(above is moved.node for above in one.ancestors):
            continue
        match one.ancestors[-1]:
            case ast.Call(func=ast.Name(id="len")):
                continue
            case ast.Attribute(attr=name) if name in SAME_ANYWHERE:
                continue
            case ast.Subscript(value=value, slice=ast.Slice()) as taken if value is one.node and is_here:
                yield taken
            case _:
                yield None


def _is_move(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "cuda")
