"""What the syntax tree of a user's file says about names: which function a node lies in, what is above it."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

MODULE = "<module>"
"""What Python calls the code of a module that is in no function."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedNode:
    """A node, the qualified name of the function it lies in, as Python spells it, and the nodes above it.

    `prefix` is what Python puts before the name of a function or class that is defined here.
    """

    node: ast.AST
    function: str
    prefix: str
    ancestors: tuple[ast.AST, ...]

    def qualified_name(self, name: str) -> str:
        """The qualified name of what this node defines."""
        return self.prefix + name


def placed_nodes(tree: ast.AST) -> Iterator[PlacedNode]:
    """Every node below `tree`, a parent before its children."""
    return _below(tree, MODULE, "", ())


def name_of(expression: ast.AST) -> str | None:
    """The last name of `history`, `self.history`, `history[key]`: what a holder of that name is called by."""
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=inner):
            return name_of(inner)
    return None


def mentions(expression: ast.AST, name: str) -> bool:
    """Whether a variable or attribute of that name is read anywhere in the expression."""
    return any(name_of(node) == name for node in ast.walk(expression) if isinstance(node, ast.Name | ast.Attribute))


def called_name(node: ast.AST) -> str:
    """The last name of what is called; empty where the node is no call."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
    return ""


def _below(node: ast.AST, function: str, prefix: str, ancestors: tuple[ast.AST, ...]) -> Iterator[PlacedNode]:
    inside = (*ancestors, node)
    for child in ast.iter_child_nodes(node):
        yield PlacedNode(node=child, function=function, prefix=prefix, ancestors=inside)
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from _below(child, prefix + name, f"{prefix}{name}.<locals>.", inside)
            case ast.ClassDef(name=name):
                yield from _below(child, function, f"{prefix}{name}.", inside)
            case _:
                yield from _below(child, function, prefix, inside)
