"""Finds the program's optimizers, those too that have not stepped yet, and holds none of them."""

import gc
from collections.abc import Iterator

import torch


def living_optimizers() -> Iterator[torch.optim.Optimizer]:
    """Every one there is; a search of the whole heap, which takes tens of milliseconds."""
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.optim.Optimizer):  # isinstance would wake lazy objects
            yield thing
