"""Where in the user's source a name means a given holder, and not another variable of that name."""

import ast
from collections.abc import Mapping, Sequence

from efprof.artifacts.holders import Holder
from efprof.facts.growing_statements import GrowingStatement
from efprof.facts.holder_lines import is_within
from efprof.facts.syntax import MODULE, PlacedNode, called_name, class_of, placed_nodes


class HolderPlaces:
    """The holder's own scope, where it is seen to grow, and functions that it is given to under its own name."""

    def __init__(self, holder: Holder, grown_at: Sequence[GrowingStatement], trees: Mapping[str, ast.AST]) -> None:
        self.holder = holder
        self._grown_in = {(one.file, one.function, one.is_attribute) for one in grown_at}
        nodes = [(file, placed) for file, tree in trees.items() for placed in placed_nodes(tree)]
        bound = {(file, one.function) for file, one in nodes if _binds(one.node, holder.name)}
        shared = {(file, one.function) for file, one in nodes if _shares(one.node, holder.name)}
        self._hidden_in = bound - shared
        self._family = _family(holder.owner.rpartition(".")[2], [one.node for _, one in nodes])
        self._given_in: set[tuple[str, str]] = set()
        calls = [call for file, one in nodes for call in self._given_to(file, one)]
        takers, givers_back = {name for name, _ in calls}, {name for name, is_kept in calls if is_kept}
        bound_anew = {(file, one.function) for file, one in nodes if _stores(one.node, holder.name)}
        self._given_in = {
            (file, one.function)
            for file, one in nodes
            if isinstance(one.node, ast.arg) and one.node.arg == holder.name
            if (called := one.function.rpartition(".")[2]) in takers
            if called in givers_back or (file, one.function) not in bound_anew
        }

    def is_variable(self, file: str, placed: PlacedNode, variable: ast.expr) -> bool:
        """Whether an expression at or below a node is the variable or attribute that holds."""
        holder, here = self.holder, (file, placed.function)
        match variable:
            case ast.Name(id=name) if name == holder.name and holder.scope == "attribute":
                above = placed.ancestors[-1]
                return (*here, False) in self._grown_in or (
                    isinstance(above, ast.ClassDef) and above.name in self._family
                )
            case ast.Name(id=name) if name == holder.name:
                is_seen = holder.scope == "global" or is_within(placed.function, holder.owner)
                is_hidden = here in self._hidden_in and not self._is_owner(placed.function)
                is_own = file == holder.file and is_seen and not is_hidden
                return is_own or (*here, False) in self._grown_in or here in self._given_in
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if name == holder.name:
                is_own = holder.scope == "attribute" and class_of(placed) in self._family
                return is_own or (*here, True) in self._grown_in
            case ast.Attribute(attr=name) if name == holder.name:
                is_near = holder.scope == "attribute" and file == holder.file
                return is_near or (*here, True) in self._grown_in
        return False

    def is_made_per_run(self, function: str) -> bool:
        """Whether one run of that function has the holder to itself: a local's own, or the module's code."""
        return function == MODULE or (self.holder.scope == "local" and self._is_owner(function))

    def _is_owner(self, function: str) -> bool:
        """Whether it binds the holder itself; a census may know a method by its last name only."""
        return function == MODULE or function == self.holder.owner or function.endswith(f".{self.holder.owner}")

    def _given_to(self, file: str, placed: PlacedNode) -> list[tuple[str, bool]]:
        """The name of what is called here with the holder, and whether what it returns becomes the holder."""
        match placed.node:
            case ast.Call(args=given, keywords=named):
                arguments = (*given, *(keyword.value for keyword in named))
                if any(self.is_variable(file, placed, one) for one in arguments):
                    above = placed.ancestors[-1]
                    targets = above.targets if isinstance(above, ast.Assign) else []
                    return [(called_name(placed.node), any(self.is_variable(file, placed, one) for one in targets))]
        return []


def variable_of(expression: ast.expr) -> ast.expr:
    """`stats` of `stats["train"]` and of `stats.setdefault("train", [])`."""
    match expression:
        case ast.Subscript(value=inner) | ast.Call(func=ast.Attribute(value=inner, attr="setdefault" | "get")):
            return variable_of(inner)
    return expression


def _binds(node: ast.AST, name: str) -> bool:
    return _stores(node, name) or (isinstance(node, ast.arg) and node.arg == name)


def _stores(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)


def _shares(node: ast.AST, name: str) -> bool:
    """`global history`, `nonlocal history`."""
    return isinstance(node, ast.Global | ast.Nonlocal) and name in node.names


def _family(owner: str, nodes: Sequence[ast.AST]) -> set[str]:
    """The owner's class, those it inherits from and those that inherit from it, by their names."""
    pairs = {
        (node.name, base.id if isinstance(base, ast.Name) else base.attr)
        for node in nodes
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if isinstance(base, ast.Name | ast.Attribute)
    }
    above, below = {owner}, {owner}
    while True:
        further_above = {base for name, base in pairs if name in above}
        further_below = {name for name, base in pairs if base in below}
        if further_above <= above and further_below <= below:
            return above | below
        above |= further_above
        below |= further_below
