"""Tells modules that train themselves in their own call from those whose call is a forward pass."""

from collections.abc import Callable
from weakref import ref

import torch


class Hosts:
    """Classes of modules within whose call an optimizer steps their own parameters.

    So does a trainer that is a module, and what a framework wraps a whole step in; but not a model that fits something
    else on its way, as in meta-learning.
    """

    def __init__(self) -> None:
        self.found: list[Callable[[type[torch.nn.Module]], None]] = []
        """Told of each."""
        self._kinds: set[type[torch.nn.Module]] = set()
        self._others: set[type[torch.nn.Module]] = set()
        self._called: ref[torch.nn.Module] | None = None

    def __contains__(self, module: object) -> bool:
        return type(module) in self._kinds

    def called(self, module: torch.nn.Module | None) -> None:
        """It is outermost, and its call is taken for a forward pass."""
        self._called = None if module is None else ref(module)

    def has_found(self, optimizer: torch.optim.Optimizer) -> bool:
        """This one steps within that call: whether it was none. That is asked once of each class: it takes long."""
        module = None if self._called is None else self._called()
        if module is None or type(module) in self._others:
            return False
        updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if not any(id(parameter) in updated for parameter in module.parameters()):
            self._others.add(type(module))
            return False
        self._kinds.add(type(module))
        for listener in self.found:
            listener(type(module))
        return True
