"""Tells whether a program updates its parameters by hand, without any torch optimizer."""

import gc
import weakref
from collections.abc import Iterable
from typing import Any

import torch

MAX_NODES = 10_000
"""Of a graph, looked at for its first parameter."""


class ParameterProbe:
    """Watches one parameter from the end of a backward pass to the beginning of what comes next.

    Its value, or its gradient, changes in between only where somebody updates it. Asked only until a torch
    optimizer steps for the first time.
    """

    def __init__(self) -> None:
        self._parameter: weakref.ref[torch.Tensor] | None = None
        self._gradient: weakref.ref[torch.Tensor] | None = None
        self._versions: tuple[int, int] | None = None
        self._is_optimized: bool | None = None

    def watch_loss(self, tensors: Any) -> None:
        """Backward is called on these: watch a parameter that they were made from."""
        if self._alive() is None:
            for tensor in tensors if isinstance(tensors, list | tuple) else [tensors]:
                if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
                    self._watch(_first_leaf(tensor.grad_fn))

    def watch_inputs(self, inputs: Any) -> None:
        """Gradients are computed for these."""
        if self._alive() is None:
            self._watch(next(_leaves(inputs if isinstance(inputs, Iterable) else [inputs]), None))

    def note_backward(self) -> None:
        """The backward pass is over: remember how the parameter stands."""
        parameter = self._alive()
        if parameter is not None:
            gradient = parameter.grad
            self._gradient = None if gradient is None else weakref.ref(gradient)
            self._versions = (parameter._version, -1 if gradient is None else gradient._version)

    def has_updated(self) -> bool:
        """Whether somebody has changed the parameter or its gradient since, and it was no torch optimizer."""
        parameter = self._alive()
        if parameter is None and self._versions is not None:
            return self._is_optimized is False  # it went with the function that trained it
        if parameter is None or self._versions is None:
            return False
        gradient = parameter.grad
        known = self._gradient() if self._gradient is not None else None
        now = (parameter._version, -1 if gradient is None else gradient._version)
        if now == self._versions and gradient is known:
            return False
        self._versions = None
        if self._is_optimized is None:
            self._is_optimized = _has_optimizer(parameter)
        return not self._is_optimized

    def _alive(self) -> torch.Tensor | None:
        return None if self._parameter is None else self._parameter()

    def _watch(self, parameter: torch.Tensor | None) -> None:
        self._parameter = None if parameter is None else weakref.ref(parameter)


def _leaves(tensors: Iterable[Any]) -> Any:
    return (tensor for tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.is_leaf)


def _first_leaf(node: Any) -> torch.Tensor | None:
    """The nearest parameter below a node of the autograd graph."""
    waiting, seen = [node], {node}
    for node in waiting:
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            return variable
        new = [child for child, _ in node.next_functions if child is not None and child not in seen]
        seen.update(new)
        waiting += new
        if len(waiting) > MAX_NODES:
            return None
    return None


def _has_optimizer(parameter: torch.Tensor) -> bool:
    """Whether a torch optimizer that has not stepped yet is in charge of it; asked once in a program."""
    return any(
        mine is parameter
        for thing in gc.get_objects()
        if issubclass(type(thing), torch.optim.Optimizer)  # isinstance would wake lazy objects
        for group in thing.param_groups
        for mine in group["params"]
    )
