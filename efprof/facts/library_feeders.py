"""Which line of the steps gives an object of a library more: `optimizer.add_param_group({"params": [prompt]})`.

Of Python's own objects it is the line that sets a context variable, registers a finalizer, sets a tensor's attribute or
returns what a cache keeps.
"""

import ast
from collections.abc import Iterable

from efprof.artifacts.holders import Holder
from efprof.facts.growing_statements import is_number
from efprof.facts.step_code import StepCode
from efprof.facts.syntax import PlacedNode, called_name, name_of, site_of

FEEDERS = {
    "param_groups": frozenset({"add_param_group"}),
    "_parameters": frozenset({"register_parameter"}),
    "_buffers": frozenset({"register_buffer"}),
    "_modules": frozenset({"add_module", "register_module"}),
    "_forward_hooks": frozenset({"register_forward_hook"}),
    "_forward_pre_hooks": frozenset({"register_forward_pre_hook"}),
    "_backward_hooks": frozenset({"register_hook", "register_full_backward_hook", "register_backward_hook"}),
    "_backward_pre_hooks": frozenset({"register_full_backward_pre_hook"}),
    "_optimizer_step_pre_hooks": frozenset({"register_step_pre_hook"}),
    "_optimizer_step_post_hooks": frozenset({"register_step_post_hook"}),
}
"""By the attribute of torch's classes, the methods that add to it; nothing takes out again what they add."""
CACHING = frozenset({"cache", "lru_cache"})
"""The decorators of functools whose function keeps each result with its arguments."""
LOGGING = frozenset({"debug", "info", "warning", "error", "critical", "exception"})
"""The methods whose arguments a record keeps; a message that is a finished text keeps nothing."""


def feeding_site(holder: Holder, code: StepCode) -> str | None:
    """The first such call that every step runs; else the first in a loop around the steps, as that of epochs."""
    is_of_log = is_log(holder)
    numbers = _number_names(placed.node for file in code.trees for placed in code.nodes(file)) if is_of_log else set()
    feeders = [
        (file, placed)
        for file in code.trees
        for placed in code.nodes(file)
        if _feeds(placed, holder) or (is_of_log and _logs_objects(placed.node, numbers))
    ]
    again = [one for one in feeders if code.is_in_step(one[1])] or [one for one in feeders if _is_around(one[1], code)]
    return site_of(*again[0]) if again else None


def _is_around(placed: PlacedNode, code: StepCode) -> bool:
    """Whether a loop runs it again that the steps' own loop is in."""
    loops = (above for above in placed.ancestors if isinstance(above, ast.For | ast.AsyncFor | ast.While))
    return any(code.is_step_loop(node) for loop in loops for node in ast.walk(loop))


def how_to_end(holder: Holder) -> str:
    """What a person does about such a call."""
    if is_log(holder):
        return (
            "Log a number (`.item()`) or a finished text (an f-string) instead of the tensor, or give the handler that "
            "keeps its records a limit."
        )
    if holder.type == "_lru_cache_wrapper":
        return (
            f"Give it a limit (`@lru_cache(maxsize=N)`), or call `{holder.path}` with arguments that come again; "
            "each new one, a tensor above all, is kept with its result."
        )
    if holder.type == "ContextVar":
        return f"Reset `{holder.path}` at the end of the step by the token that `set` gave."
    if holder.owner == "Tensor" and holder.name not in FEEDERS:
        return f"Delete `.{holder.name}` once the step has used it, or set a detached copy of what it needs."
    return (
        "Take this call out of the loop, and use again what it was given once; where each step needs its own, make "
        f"what has `{holder.path}` anew as well."
    )


def _feeds(placed: PlacedNode, holder: Holder) -> bool:
    if holder.type == "ContextVar":
        return _sets(placed.node, holder.name)
    if holder.type == "_lru_cache_wrapper":
        return isinstance(placed.node, ast.Return) and _is_cached(placed, holder.name)
    if holder.file is not None:
        return False
    if holder.scope == "global":
        return holder.path == "weakref.finalize" and called_name(placed.node) == "finalize"
    if holder.scope == "attribute" and holder.owner == "Tensor" and holder.name not in FEEDERS:
        return _sets_attribute(placed.node, holder.name)
    return holder.scope == "attribute" and called_name(placed.node) in FEEDERS.get(holder.name, frozenset())


def _sets(node: ast.AST, name: str) -> bool:
    """`recent.set((*recent.get(), loss))`."""
    match node:
        case ast.Call(func=ast.Attribute(value=variable, attr="set")):
            return name_of(variable) == name
    return False


def _sets_attribute(node: ast.AST, name: str) -> bool:
    """`loss.previous = last`, and not `loss.previous = None`."""
    match node:
        case ast.Assign(targets=[ast.Attribute(attr=attribute)], value=value):
            return attribute == name and not is_number(value)
    return False


def _is_cached(placed: PlacedNode, name: str) -> bool:
    """Whether it stands in the function of that name, which a decorator of functools keeps the results of."""
    functions = [one for one in placed.ancestors if isinstance(one, ast.FunctionDef | ast.Lambda)]
    match functions[-1:]:
        case [ast.FunctionDef(name=found, decorator_list=decorators)] if found == name:
            return any(called_name(one) in CACHING or name_of(one) in CACHING for one in decorators)
    return False


def is_log(holder: Holder) -> bool:
    """Whether it is what Python's loggers and the handlers of libraries keep records in."""
    is_handler = holder.owner.endswith("Handler") or (holder.owner.endswith("Logger") and holder.name == "handlers")
    return holder.scope == "attribute" and holder.file is None and is_handler


def _logs_objects(node: ast.AST, numbers: set[str]) -> bool:
    """`logger.info("loss %s", loss)`, or `extra={"loss": loss}`: a record keeps what is no number and no text."""
    match node:
        case ast.Call(func=ast.Attribute(attr=method), args=arguments, keywords=named) if method in LOGGING:
            given = [*arguments, *(keyword.value for keyword in named)]
        case ast.Call(func=ast.Attribute(attr="log"), args=[_, ast.Constant(value=str()), *given]):
            pass  # of a level; no `torch.log(x)`
        case _:
            return False
    return not all(is_number(one) or name_of(one) in numbers for one in given)


def _number_names(nodes: Iterable[ast.AST]) -> set[str]:
    """What counts: `step` of `for step in range(9)`, of `for step, x in enumerate(loader)` and of `step += 1`."""
    found: set[str | None] = set()
    for node in nodes:
        match node:
            case ast.For(target=target, iter=ast.Call(func=ast.Name(id="range"))):
                found.add(name_of(target))
            case ast.For(target=ast.Tuple(elts=[target, *_]), iter=ast.Call(func=ast.Name(id="enumerate"))):
                found.add(name_of(target))
            case ast.AugAssign(target=target, value=ast.Constant()):
                found.add(name_of(target))
            case ast.Assign(targets=[target], value=value) if is_number(value) and not _is_missing(value):
                found.add(name_of(target))
    return {name for name in found if name}


def _is_missing(value: ast.expr) -> bool:
    """`best = None` or `total = 0.0`, which may hold a tensor later."""
    return isinstance(value, ast.Constant)
