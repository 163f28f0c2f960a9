"""What a statement, or a library, keeps, and how to keep less: no graph, a copy, only so many, weakly."""

import ast
from collections.abc import Iterator, Sequence

from efprof.fixes.source_edit import as_receiver, replace_expression, text_of
from efprof.model import Fix, SourceFile, frozen_dataclass, nodes_on, spans

DETACHED, CLONED = ".detach()", ".detach().clone()"
"""The second where what is kept is a view of a larger storage, as `F.mse_loss` gives on a CPU: detaching keeps it."""
HOW = {
    **dict.fromkeys(("list", "set"), "make it `collections.deque(maxlen={most})`"),
    "deque": "give it `maxlen={most}`",
    **dict.fromkeys(("dict", "defaultdict", "OrderedDict"), "drop the oldest entries beyond {most:,}"),
    **dict.fromkeys(("Queue", "LifoQueue", "PriorityQueue"), "give it `maxsize={most}`, so that `put` waits"),
    "lru_cache": "give it a limit (`@lru_cache(maxsize={most})`)",
}
"""To bound a container, by its type."""
WAYS_TO_BOUND = (
    "(a list: `collections.deque(maxlen=...)`; a dictionary: drop the oldest keys; a queue: `maxsize=...`), or write "
    "it to a file every so often"
)
"""The same where the type is one of many."""

VALUE_PLACE = {
    "append": 0, "appendleft": 0, "add": 0, "extend": 0, "extendleft": 0, "update": 0, "insert": 1, "setdefault": 1,
    "put": 0, "put_nowait": 0,
}  # fmt: skip
"""The methods that make a container longer, and which argument it keeps."""
JOINING = frozenset({"cat", "stack", "concat", "concatenate", "hstack", "vstack", "maximum", "minimum", "add"})
"""Calls that put the old value and a new one together; any other call carries the old value through a model."""
EMPTY = frozenset({"[]", "{}", "set()", "list()", "dict()", "deque()"})

ADVICE = (
    (
        (" cycle ", "cycle("),
        "Iterate the loader again (`while True: yield from loader`) instead of by `itertools.cycle`, which keeps every "
        "batch.",
    ),
    (
        ("lru_cache", "cache_info"),
        "Give it a limit (`@lru_cache(maxsize=N)`), or call it with arguments that come again: each new one, a tensor "
        "above all, is kept with its result.",
    ),
    (("ContextVar",), "Reset `{path}` at the end of the step by the token that `set` gave."),
    (
        ("Handler", "Logger", "records"),
        "Log a number (`.item()`) or a finished text (an f-string) instead of the tensor, or give the handler that "
        "keeps its records a limit.",
    ),
    (
        ("_hooks",),
        "Register the hook once, before the loop, or keep its handle and call `handle.remove()` at the end of the "
        "step.",
    ),
    (
        ("_buffers",),
        "Register the buffer once, and write into it (`self.name.copy_(value)`), or keep the value elsewhere.",
    ),
    (("figure(", "subplots("), "Close each figure (`plt.close(figure)`) once it is saved."),
)
"""By a part of the holder's path or type, or of the line that feeds it."""
OTHERWISE = (
    "Take this call out of the loop, and use again what it was given once; where each step needs its own, make what "
    "has `{path}` again as well."
)


@frozen_dataclass
class KeptValue:
    """The expression; `carried` is the argument through which the old value enters a call that makes the new one.

    `is_whole` where it is no entry of what keeps it, but has such entries, or is all that keeps them.
    """

    value: ast.expr
    carried: ast.expr | None = None
    is_whole: bool = False


def kept_at(file: SourceFile, line: int, name: str) -> KeptValue | None:
    """By the one statement there that can do it, that of the holder's `name` first; None where none or several can.

    The holder may be known there by another name, as `store` of `store = self.outputs[key]`.
    """
    last = name.partition("[")[0].rpartition(".")[2]
    found = [
        pair
        for statement in nodes_on(file.tree, line)
        if isinstance(statement, ast.stmt) and not hasattr(statement, "body")
        for node in ast.walk(statement)
        for pair in _kept_by(node, last)
    ]
    of_name = [kept for receiver, kept in found if receiver == last]
    candidates = of_name or [kept for _, kept in found]
    return candidates[0] if len(candidates) == 1 else None


def tensor_in(kept: KeptValue, entry: Sequence[str]) -> ast.expr | None:
    """The one expression in it that gives a tensor, by the types of such entries, as the count saw them."""
    value: ast.expr | None = kept.value
    if kept.is_whole:  # `losses += [loss]`
        value = kept.value.elts[0] if isinstance(kept.value, ast.List) and len(kept.value.elts) == 1 else None
    if value is None or not entry or isinstance(value, ast.Starred):
        return None
    if entry[0] == "Tensor":
        return value
    parts, places = _parts_of(value), [place for place, kind in enumerate(entry[1:]) if kind == "Tensor"]
    is_alike = len(parts) == len(entry) - 1 and not any(isinstance(part, ast.Starred) for part in parts)
    return parts[places[0]] if is_alike and len(places) == 1 else None


def keep_without_graph(
    file: SourceFile, kept: KeptValue | None, *, name: str, kind: str, entry: Sequence[str], how: str
) -> Fix:
    """Detach what a statement puts into the holder `name` of type `kind` with such entries; a person reviews it.

    What was not counted to be a tensor is left to a person, and so is a statement that is not known.
    """
    if kept is not None and kept.carried is not None:
        text = text_of(file, kept.carried)
        parts = f"{kind}(part.detach() for part in {text})"
        new = parts if kind in ("tuple", "list") else f"{as_receiver(file, kept.carried)}{DETACHED}"
        return Fix.by(
            replace_expression(file, kept.carried, new),
            "review",
            f"Cut `{name}` off from the step before where it enters the call; where the loop runs over the time steps "
            "of one sequence, cut once per optimizer step instead.",
        )
    # What is added to a tensor is one, too.
    value = None if kept is None else kept.value if kind == "Tensor" else tensor_in(kept, entry)
    if value is None:
        return Fix.by_hand(f"Detach each tensor that is put into `{name}`: `{how}`, or `.item()` for a number.")
    return Fix.by(
        replace_expression(file, value, f"{as_receiver(file, value)}{how}"),
        "review",
        f"Keep the value without its graph; check that nothing calls backward on what is in `{name}`.",
    )


def keep_copies(file: SourceFile, value: ast.expr | None, name: str) -> Fix:
    """Copy what is kept of storages that were counted to be larger: a view of a tensor shares all of its memory.

    By hand where no single `value` is kept.
    """
    edit = None if value is None else replace_expression(file, value, f"{as_receiver(file, value)}.clone()")
    return Fix.by(
        edit,
        "safe",
        f"Keep copies (`.clone()`): what `{name}` keeps are small parts of tensors whose whole memory stays with them "
        f"(or `.item()`, where one is a number). If the copies are still too many, bound `{name}`.",
    )


def keep_fewer(names: Sequence[str], kind: str, most: int, unit: str, *, are_numbers: bool, is_device: bool) -> Fix:
    """`most` of its `unit` (entries, tensors, steps) take 1 % of memory; the line feeds what has the other names, too.

    Only of tensors that `are_numbers` can Python's numbers be kept instead.
    """
    ways = [HOW[kind].format(most=most)] if kind in HOW and unit == "entries" else []
    ways += ["keep numbers instead of tensors (`.item()`)" if are_numbers else "don't keep these tensors"]
    take = f"What {most:,} steps add takes" if unit == "steps" else f"{most:,} {unit} take"
    likewise = f" Likewise {', '.join(f'`{other}`' for other in names[1:])}." if names[1:] else ""
    elsewhere = "move what is kept off the device (`.cpu()`)" if is_device else "write it to disk now and then"
    return Fix.by_hand(f"Bound `{names[0]}`: {', '.join(ways)}, or {elsewhere}. {take} 1 % of memory.{likewise}")


def end_feeding(path: str, kind: str, line: str) -> Fix:
    """By what it is, and what the line that feeds it says."""
    advice = known_advice(f"{path} {kind} {line}") or OTHERWISE
    return Fix.by_hand(advice.format(path=path))


def known_advice(told: str) -> str | None:
    """By a part of what is told: of a line alone, where nothing is known of what it feeds."""
    return next((advice for parts, advice in ADVICE if any(part in told for part in parts)), None)


def without_traceback(file: SourceFile, name: str, error: ast.expr) -> Fix:
    """The edit of a statement that keeps a caught error in `name`."""
    return Fix.by(
        replace_expression(file, error, f"{text_of(file, error)}.with_traceback(None)"),
        "review",
        f"Keep the error in `{name}` without its traceback, which keeps the variables of all its functions. Printed "
        "later, it shows its message alone.",
    )


def caught_error(value: ast.expr | None, tree: ast.Module) -> ast.Name | None:
    """The name of an error in the handler that caught it: `error`, or that of `(step, error)`."""
    parts = value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
    handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
    errors = [
        part
        for part in parts
        if isinstance(part, ast.Name)
        if any(one.name == part.id and spans(one, part.lineno) for one in handlers)
    ]
    return errors[0] if len(errors) == 1 else None


def _kept_by(node: ast.AST, name: str) -> Iterator[tuple[str, KeptValue]]:
    """What a node keeps, and the last name of what it keeps it in."""
    match node:
        case ast.Call(func=ast.Attribute(value=receiver, attr=method), args=args) if method in VALUE_PLACE:
            kept = args[VALUE_PLACE[method] : VALUE_PLACE[method] + 1]
            if kept and ast.unparse(kept[0]) not in EMPTY:  # of `losses.setdefault(key, []).append(loss)`
                is_whole = method in ("extend", "extendleft", "update")
                yield _last_name(receiver), KeptValue(value=kept[0], is_whole=is_whole)
        case ast.AugAssign(target=target, op=ast.Add(), value=value):
            yield _last_name(target), KeptValue(value=value, is_whole=True)
        case ast.Assign(targets=[ast.Subscript(value=inner)], value=value):
            yield _last_name(inner), KeptValue(value=value)
        case ast.Assign(targets=[ast.Tuple(elts=parts)], value=value) if name in map(_last_name, parts):
            yield name, _renewal(value, name)
        case ast.Assign(targets=[target], value=value) if not isinstance(target, ast.Tuple):
            yield _last_name(target), _renewal(value, _last_name(target))


def _renewal(value: ast.expr, name: str) -> KeptValue:
    """Of `name = <something with name>`: a sum, a joining of tensors, or a call that carries it."""
    match value:
        case ast.BinOp(left=left, op=ast.Add(), right=right) if name in map(_last_name, (left, right)):
            return KeptValue(value=right if _last_name(left) == name else left, is_whole=True)
        case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called), args=args) if called not in JOINING:
            carried = next((argument for argument in args if _last_name(argument) == name), None)
            return KeptValue(value=value, carried=carried, is_whole=True)
    return KeptValue(value=value, is_whole=True)


def _last_name(expression: ast.expr) -> str:
    """`history` of `history`, `self.history[key]`, `history.setdefault(key, [])`; empty of anything else."""
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=inner) | ast.Call(func=ast.Attribute(value=inner, attr="setdefault" | "get")):
            return _last_name(inner)
    return ""


def _parts_of(value: ast.expr) -> list[ast.expr]:
    match value:
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Dict(values=parts):
            return parts
        case ast.Call(args=parts, keywords=[]):  # a record that is a tuple
            return parts
    return []
