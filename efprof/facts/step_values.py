"""Whether what an expression of the step stands for is made anew by each step, as far as the text tells."""

import ast
from collections.abc import Iterator

from efprof.facts.step_code import LOOPS, StepCode
from efprof.facts.syntax import called_name

OF_A_MODULE = frozenset(
    {"parameters", "named_parameters", "buffers", "modules", "named_modules", "children", "getattr"}
)
"""What these give is the same in every step."""
RETURNING_THEIR_OWN = frozenset({"to", "cuda", "cpu", "float", "half", "train", "eval", "requires_grad_", "view"})
"""Methods that may return what they are called on, or a view of it."""
PASSING_CALLS = frozenset({"enumerate", "zip", "iter", "list", "tuple", "reversed", "tqdm", "chain", "next"})
"""What they give is new where their arguments are."""


class StepValues:
    """Follows variables back to the expressions that they are bound to, through the arguments of the user's calls."""

    def __init__(self, code: StepCode) -> None:
        self._code = code
        self._in_step = [
            (file, placed)
            for file in code.trees
            for placed in code.nodes(file)
            if code.is_in_step(placed) or code.is_step_loop(placed.node)
        ]
        self._calls = [(file, one, called_name(one.node)) for file, one in self._in_step if called_name(one.node)]

    def is_made_anew(self, file: str, function: str, value: ast.expr) -> bool:
        """Whether the value, in that function, is another one in each step."""
        return self._is_new(file, function, value, set())

    def _is_new(self, file: str, function: str, value: ast.expr, seen: set[tuple[str, str, str]]) -> bool:
        """`seen` is of the whole search: every part of it must be new, so a name is followed once."""
        match value:
            case ast.Name() | ast.Attribute():
                key = (file, function, ast.unparse(value))
                if key in seen:
                    return True  # `x = x + 1`: its other binding decides
                seen.add(key)
                return self._is_bound_anew(key, value, seen)
            case ast.Subscript(value=inner) | ast.Starred(value=inner):
                return self._is_new(file, function, inner, seen)
            case ast.Call(func=callee, args=given):
                name = called_name(value)
                is_entry = name == "get" and bool(given)  # of a dictionary; a queue is asked for no key
                if isinstance(callee, ast.Attribute) and (is_entry or name in RETURNING_THEIR_OWN):
                    return self._is_new(file, function, callee.value, seen)
                if name == "next" and given and isinstance(given[0], ast.Name | ast.Attribute):
                    return True  # an iterator that is kept gives another one each time
                if name in PASSING_CALLS and given:
                    return all(self._is_new(file, function, one, seen) for one in given)
                return name not in OF_A_MODULE
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return all(self._is_new(file, function, part, seen) for part in parts)
            case ast.IfExp(body=one, orelse=other):
                return all(self._is_new(file, function, part, seen) for part in (one, other))
        return not isinstance(value, ast.Constant)

    def _is_bound_anew(self, key: tuple[str, str, str], value: ast.expr, seen: set[tuple[str, str, str]]) -> bool:
        file, function, text = key
        bindings = [
            (placed, bound)
            for where, placed in self._in_step
            if (where, placed.function) == (file, function)
            for target, bound in _bindings(placed.node)
            if target == text
        ]
        if bindings:
            return all(
                (isinstance(placed.node, LOOPS) and self._code.is_step_loop(placed.node))
                or self._is_new(file, function, bound, seen)
                for placed, bound in bindings
            )
        if isinstance(value, ast.Attribute):
            return text.partition(".")[0] != "self" and self._is_new(file, function, value.value, seen)
        given = list(self._arguments(file, function, text))
        return bool(given) and all(self._is_new(*one, seen) for one in given)

    def _arguments(self, file: str, function: str, name: str) -> Iterator[tuple[str, str, ast.expr]]:
        """What the steps give the function for this parameter: the file and function of each call, and the argument."""
        for placed in self._code.nodes(file):
            node = placed.node
            if not isinstance(node, ast.FunctionDef) or placed.qualified_name(node.name) != function:
                continue
            names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
            place = names.index(name) - isinstance(placed.ancestors[-1], ast.ClassDef) if name in names else None
            for where, call, called in self._calls:
                assert isinstance(call.node, ast.Call)
                if called == node.name:
                    by_place = call.node.args[place : place + 1] if place is not None and place >= 0 else []
                    by_name = [one.value for one in call.node.keywords if one.arg == name]
                    yield from ((where, call.function, one) for one in (*by_place, *by_name))


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The text of each variable or attribute that a node binds, and what it takes that from."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from ((text, value) for text in _texts(target))
        case (
            ast.AnnAssign(target=target, value=ast.expr() as value)
            | ast.NamedExpr(target=target, value=value)
            | ast.For(target=target, iter=value)
            | ast.AsyncFor(target=target, iter=value)
            | ast.comprehension(target=target, iter=value)
        ):
            yield from ((text, value) for text in _texts(target))


def _texts(target: ast.expr) -> Iterator[str]:
    match target:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                yield from _texts(part)
        case ast.Starred(value=inner):
            yield from _texts(inner)
        case ast.Name() | ast.Attribute():
            yield ast.unparse(target)
