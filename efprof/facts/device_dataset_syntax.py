"""How the text of a program moves data to a device, and by which indices it takes samples of it."""

import ast
from collections.abc import Iterable, Iterator

from efprof.facts.syntax import PlacedNode, called_name, name_of

MAKERS = frozenset({"tensor", "as_tensor", "asarray", "load", "randn", "rand", "randint", "normal"})
"""Calls that put on a device, by `device=` or `map_location=`, what a data set may begin as; zeros and ones may be a
workspace, which steps write into."""
DATA_TYPES = frozenset(
    {
        "float", "float16", "float32", "float64", "half", "bfloat16", "double", "int", "int8", "int16", "int32",
        "int64", "long", "short", "uint8", "bool", "complex64", "complex128",
    }
)  # fmt: skip
"""`.to(torch.float32)` moves nothing."""
DRAWING_CALLS = frozenset(
    {
        "randperm", "randint", "randrange", "permutation", "integers", "choice", "choices", "range", "arange",
        "BatchSampler", "RandomSampler", "SequentialSampler",
    }
)  # fmt: skip
"""What they give is a number of a sample, or many."""
PASSING_CALLS = frozenset({"enumerate", "zip", "iter", "cycle", "tqdm", "reversed", "list", "sample", "islice", "int"})
"""Iterating over what they give is iterating over their arguments."""
PARTING_METHODS = frozenset({"split", "chunk", "unbind"})


def moves_in(statement: ast.AST) -> list[ast.Call]:
    """The calls that put something on a device: `x.to(device)`, `x.cuda()`, `torch.tensor(x, device=device)`."""
    return [node for node in ast.walk(statement) if isinstance(node, ast.Call) and _is_move(node)]


def is_for_many(statement: ast.AST, ancestors: Iterable[ast.AST]) -> bool:
    """Whether a statement keeps many things, one at a time: in a loop, or in a list comprehension of its own."""
    match statement:
        case ast.Assign(targets=[ast.Tuple()]):  # each thing has a name
            return False
    parts = (ast.ListComp, ast.SetComp, ast.GeneratorExp)
    is_in_loop = any(isinstance(above, ast.For | ast.AsyncFor | ast.While) for above in ancestors)
    return is_in_loop or any(isinstance(node, parts) and moves_in(node) for node in ast.walk(statement))


class DrawnNames:
    """Which names of one function stand for numbers of samples, whatever the samples are."""

    def __init__(self, nodes: Iterable[PlacedNode]) -> None:
        """`nodes` are those of the function."""
        bindings = [binding for placed in nodes for binding in _bindings(placed.node)]
        self._names = {target for target, value in bindings if value is None}
        while True:
            found = {target for target, value in bindings if value is not None and self._is_drawn(value)}
            if found <= self._names:
                return
            self._names |= found

    def selects(self, index: ast.expr) -> bool:
        """Whether an index takes samples: a stretch from somewhere on, or numbers that were drawn or counted.

        `cos[:length]` and `table[tokens]` do not: the one is cut to fit, the other looks something up.
        """
        match index:
            case ast.Slice(lower=lower):
                return lower is not None and not isinstance(lower, ast.Constant | ast.UnaryOp)
            case ast.Tuple(elts=[first, *_]):
                return self.selects(first)
        return self._is_drawn(index)

    def _is_drawn(self, value: ast.expr) -> bool:
        match value:
            case ast.Name(id=name):
                return name in self._names
            case ast.Subscript(value=inner):
                return self._is_drawn(inner)
            case ast.BinOp(left=left, right=right):
                return self._is_drawn(left) or self._is_drawn(right)
            case ast.Call(args=arguments):
                name = called_name(value)
                passed = arguments if name in PASSING_CALLS else []
                receiver = [value.func.value] if isinstance(value.func, ast.Attribute) else []
                return name in DRAWING_CALLS or any(self._is_drawn(one) for one in (*passed, *receiver))
        return False


def _is_move(call: ast.Call) -> bool:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    match call.func:
        case ast.Attribute(attr="cuda"):
            return True
        case ast.Attribute(attr="to"):
            places = [given["device"]] if "device" in given else call.args[:1]
            return any(_may_be_device(place) for place in places)
        case ast.Attribute(attr=name) | ast.Name(id=name) if name in MAKERS:
            place = given.get("device", given.get("map_location"))
            return place is not None and _may_be_device(place)
    return False


def _may_be_device(place: ast.expr) -> bool:
    match place:
        case ast.Constant(value=value):
            return isinstance(value, int) or (isinstance(value, str) and value.startswith("cuda"))
        case ast.Call(func=ast.Attribute(attr="device"), args=[first, *_]):
            return _may_be_device(first)
    return name_of(place) not in DATA_TYPES


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Each name that a node binds, with the value; None where it only counts on, which samples are numbered by."""
    match node:
        case ast.AugAssign(target=ast.Name(id=name), op=ast.Add()):
            yield name, None
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield name, value
        case ast.For(target=target, iter=iterated) | ast.comprehension(target=target, iter=iterated):
            yield from _loop_bindings(target, iterated)


def _loop_bindings(target: ast.expr, iterated: ast.expr) -> Iterator[tuple[str, ast.expr | None]]:
    match target:
        case ast.Name(id=name):
            yield name, iterated
        case ast.Tuple(elts=[ast.Name(id=name), *_]) if called_name(iterated) == "enumerate":
            yield name, None  # what it counts by; the rest is whatever is iterated over
