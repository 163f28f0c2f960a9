"""What values an expression of the user's code may have, by its text and the command that started the run.

Names are followed by their last names alone, whoever has them: a value is left out only where nothing gives it.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Final, cast

from efprof.facts.possible_values import ANY, UNKNOWN, Value, applied, compared, computed, limited
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.facts.syntax import PlacedNode, called_name, name_of, placed_nodes

ON_OFF: Final = {"store_true": False, "store_false": True}
"""The actions of argparse that take no value, and what they leave where the option is not given."""


class KnownValues:
    """The values of names in all files, looked up when asked for."""

    def __init__(self, trees: Mapping[str, ast.AST], command: Sequence[str], settings: Mapping[str, str]) -> None:
        """`command` is the program with its arguments, `settings` are those of its configuration files."""
        self._arguments = _arguments_of(command)
        self._settings = {key.rpartition(":")[2].rpartition(".")[2]: value for key, value in settings.items()}
        nodes = [placed for tree in trees.values() for placed in placed_nodes(tree)]
        self._given: defaultdict[str, list[ast.expr]] = defaultdict(list)
        self._options: defaultdict[str, list[ast.Call]] = defaultdict(list)
        self._open: set[str] = set()
        self._calls: defaultdict[str, list[ast.Call]] = defaultdict(list)
        for placed in nodes:
            if isinstance(placed.node, ast.Call):
                self._calls[called_name(placed.node)].append(placed.node)
        for placed in nodes:
            self._note(placed)
        self._is_set_by_name = any(map(_sets_by_name, (call for calls in self._calls.values() for call in calls)))

    @classmethod
    def compute(cls, run: Run) -> "KnownValues":
        """Of all recorded files."""
        sources = run.get(Sources)
        trees = {file: tree for file in sources.files if (tree := sources.tree(file)) is not None}
        return cls(trees, run.run_file.command, run.run_file.configuration)

    def of(self, expression: ast.expr) -> frozenset[Value]:
        """All that it may be; `UNKNOWN` among them where it may be something else as well."""
        return self._of(expression, frozenset())

    def may_be(self, test: ast.expr, wanted: bool) -> bool:
        """Whether a condition may come out so."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.may_be(operand, not wanted)
            case ast.BoolOp(op=operator, values=parts):
                needs_all = isinstance(operator, ast.And) == wanted
                return (all if needs_all else any)(self.may_be(part, wanted) for part in parts)
        return any(value is UNKNOWN or bool(value) == wanted for value in self.of(test))

    def _of(self, expression: ast.expr, above: frozenset[str]) -> frozenset[Value]:
        match expression:
            case ast.Constant(value=value):
                return frozenset({value})
            case ast.IfExp(body=body, orelse=orelse):
                return limited((*self._of(body, above), *self._of(orelse, above)))
            case ast.BoolOp(values=parts):
                return limited(value for part in parts for value in self._of(part, above))
            case ast.UnaryOp(operand=operand, op=operator):
                return limited(applied(operator, one) for one in self._of(operand, above))
            case ast.BinOp(left=left, op=operator, right=right):
                pairs = product(self._of(left, above), self._of(right, above))
                return limited(computed(operator, *pair) for pair in pairs)
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                return self._of_comparison(left, operator, right, above)
            case ast.Call(func=ast.Name(id="int" | "bool" | "float"), args=[inner]):
                return self._of(inner, above)
            case ast.Subscript(value=ast.Attribute(attr="argv"), slice=ast.Constant(value=int(place))) if place > 0:
                return frozenset(self._arguments[place - 1 : place]) or ANY
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return self._of_name(name, above)
        return ANY

    def _of_comparison(
        self, left: ast.expr, operator: ast.cmpop, right: ast.expr, above: frozenset[str]
    ) -> frozenset[Value]:
        if name_of(right) == "argv" and isinstance(operator, ast.In | ast.NotIn):
            is_in = isinstance(operator, ast.In)
            return limited(
                one if one is UNKNOWN else (one in self._arguments) == is_in for one in self._of(left, above)
            )
        return limited(compared(operator, *pair) for pair in product(self._of(left, above), self._of(right, above)))

    def _of_name(self, name: str, above: frozenset[str]) -> frozenset[Value]:
        if name in above:
            return frozenset()
        above |= {name}
        found = [value for given in self._given.get(name, ()) for value in self._of(given, above)]
        found += [value for option in self._options.get(name, ()) for value in self._of_option(option, above)]
        found += [UNKNOWN] if name in self._open else []
        found += [_parsed(self._settings[name])] if name in self._settings else []
        is_set_by_name = self._is_set_by_name and name != name.upper()
        return limited(found) if found and not is_set_by_name else ANY

    def _of_option(self, option: ast.Call, above: frozenset[str]) -> Iterator[Value]:
        """What the command gives it, or its default."""
        named = {keyword.arg: keyword.value for keyword in option.keywords}
        flags = [one.value for one in option.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        action = named.get("action")
        kind = action.value if isinstance(action, ast.Constant) else None
        if not any(flag.startswith("-") for flag in flags):
            yield from map(_parsed, (one for one in self._arguments if not one.startswith("-")))
            yield from self._of(named["default"], above) if "default" in named else ()
        elif given := [place for place, one in enumerate(self._arguments) if one.partition("=")[0] in flags]:
            for place in given:
                _, equals, value = self._arguments[place].partition("=")
                if isinstance(kind, str) and kind in ON_OFF:
                    yield not ON_OFF[kind]
                elif action is not None or "nargs" in named:
                    yield UNKNOWN
                else:
                    yield _parsed(value if equals else "".join(self._arguments[place + 1 : place + 2]))
        elif isinstance(kind, str) and kind in ON_OFF and "default" not in named:
            yield ON_OFF[kind]
        elif "set_defaults" in self._calls or (action is not None and kind not in {"store", *ON_OFF}):
            yield UNKNOWN
        else:
            yield from self._of(named["default"], above) if "default" in named else (None,)

    def _note(self, placed: PlacedNode) -> None:
        """What this node gives to names."""
        match placed.node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._note_target(target, value)
            case ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name), value=ast.expr() as value):
                self._given[name].append(value)
                self._note_field(placed, name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                self._note_field(placed, name)
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                self._given[name].append(value)
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=[*flags]) if flags:
                self._options[_destination(placed.node)].append(placed.node)
            case ast.Call(keywords=named):
                for keyword in named:
                    if keyword.arg is not None:
                        self._given[keyword.arg].append(keyword.value)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                self._note_parameters(placed)
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.Attribute(attr=name, ctx=ast.Store() | ast.Del()):
                if not _is_noted(placed):
                    self._open.add(name)  # of a loop, `+=`, `with ... as`
            case ast.alias(name=name, asname=other):
                self._open |= {other} if other else set()

    def _note_target(self, target: ast.expr, value: ast.expr) -> None:
        match target:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                self._given[name].append(value)
            case ast.Tuple():
                for part, given in _pairs(target, value):
                    self._note_target(part, given)

    def _note_field(self, placed: PlacedNode, name: str) -> None:
        """A dataclass may be made with anything where the text does not name it."""
        match placed.ancestors[-1]:
            case ast.ClassDef(name=owner):
                calls = self._calls.get(owner, [])
                if not calls or any(call.args or _has_star(call) for call in calls):
                    self._open.add(name)

    def _note_parameters(self, placed: PlacedNode) -> None:
        assert isinstance(placed.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        given = placed.node.args
        names = [one.arg for one in (*given.posonlyargs, *given.args)]
        for name, default in zip(reversed(names), reversed(given.defaults), strict=False):
            self._given[name].append(default)
        for one, by_name in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            self._given[one.arg].extend([by_name] if by_name else [])
        is_method = isinstance(placed.ancestors[-1], ast.ClassDef)
        called = getattr(placed.node, "name", "")
        if called == "__init__" and is_method:
            called = cast("ast.ClassDef", placed.ancestors[-1]).name
        calls = self._calls.get(called, [])
        positional = names[is_method:]
        for call in calls:
            for name, value in zip(positional, call.args, strict=False):
                self._given[name].append(value)
        if not calls or any(map(_has_star, calls)):
            self._open.update((*names, *(one.arg for one in given.kwonlyargs)))


def _sets_by_name(call: ast.Call) -> bool:
    """`setattr(args, key, value)`, `vars(args).update(settings)`: no text shows which attributes that sets."""
    match call:
        case ast.Call(func=ast.Name(id="setattr")) | ast.Call(func=ast.Attribute(attr="__setattr__")):
            return True
        case ast.Call(func=ast.Attribute(value=table, attr="update")):
            return called_name(table) == "vars" or name_of(table) == "__dict__"
    return False


def _is_noted(placed: PlacedNode) -> bool:
    """Whether what a name is given stands beside it."""
    above = placed.ancestors[-1]
    if isinstance(above, ast.Tuple):
        around = placed.ancestors[-2]
        return isinstance(around, ast.Assign) and bool(_pairs(above, around.value))
    return isinstance(above, ast.Assign | ast.AnnAssign | ast.NamedExpr)


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Of `a, b = 1, 2`; none where one of several values is not known to be a name's."""
    match target, value:
        case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
            is_plain = not any(isinstance(one, ast.Starred) for one in (*targets, *values))
            return list(zip(targets, values, strict=True)) if is_plain else []
    return []


def _arguments_of(command: Sequence[str]) -> list[str]:
    """What comes after the script or the module."""
    for place, one in enumerate(command):
        if one.endswith(".py"):
            return list(command[place + 1 :])
        if one == "-m" and command[place + 1 : place + 2] != ["torch.distributed.run"]:
            return list(command[place + 2 :])
    return list(command[1:])


def _destination(option: ast.Call) -> str:
    """The attribute that argparse puts an option in."""
    for keyword in option.keywords:
        if keyword.arg == "dest" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    flags = [one.value for one in option.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    longest = next((flag for flag in flags if flag.startswith("--")), flags[0] if flags else "")
    return longest.lstrip("-").replace("-", "_")


def _parsed(text: str) -> Value:
    """A number where it is one."""
    try:
        return int(text)
    except ValueError:
        return {"none": None, "null": None, "true": True, "false": False}.get(text.lower(), text)


def _has_star(call: ast.Call) -> bool:
    return any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords)
