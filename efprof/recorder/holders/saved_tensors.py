"""What a node of an autograd graph keeps for the backward pass, read without running any code of the program."""

from typing import Any

import torch
from torch._C._autograd import SavedTensor

Storage = tuple[int, int]
"""Its address and its bytes."""

_Node = tuple[tuple[Storage, ...], tuple[Any, ...]]
"""The storages that a node keeps, and the nodes that it leads to."""

_LEAF = "variable"
_SAVED = "_raw_saved_"
"""To read `_saved_self` instead would call the program's function that unpacks it: a checkpoint's runs the forward pass
once more."""

_names: dict[str, tuple[str, ...]] = {}
"""By the name of a kind of node, which attributes of such nodes keep tensors."""


class Nodes:
    """Remembers every node that was read, since many tensors have a graph in common."""

    def __init__(self) -> None:
        self._known: dict[Any, _Node] = {}

    def of(self, node: Any) -> _Node:
        """The storages that it keeps, and the nodes that it leads to."""
        known = self._known.get(node)
        if known is None:
            following = tuple([one for one, _ in node.next_functions if one is not None])
            known = self._known[node] = (_storages_of(node), following)
        return known

    def forget(self) -> None:
        """Let go of all of them."""
        self._known.clear()


def storage_of(tensor: torch.Tensor) -> Storage | None:
    """None of one that has no storage of its own: a sparse one, one without data, what `torch.func` puts around one."""
    if tensor.layout != torch.strided or tensor.is_meta:
        return None
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except RuntimeError:  # or of a kind derived from it: nothing tells beforehand
        return None


def _storages_of(node: Any) -> tuple[Storage, ...]:
    names = _names.get(node.name())
    if names is None:
        names = tuple(name for name in dir(node) if name.startswith(_SAVED) or name == _LEAF)
        _names[node.name()] = names
    kept: list[Any] = []
    for name in names:
        kept += _leaf_and_gradient(node.variable) if name == _LEAF else _saved(node, name)
    return tuple([storage for one in kept if (storage := storage_of(one)) is not None]) if kept else ()


def _saved(node: Any, name: str) -> list[torch.Tensor]:
    """What was saved, or what a hook of the program packed it into; nothing where a backward pass has freed it."""
    try:
        saved = getattr(node, name)
        if type(saved) is SavedTensor:
            return _tensors_in(_data_of(saved))
        return [tensor for one in saved for tensor in _tensors_in(_data_of(one))]
    except RuntimeError:  # a list of them that is freed; a hook of C++
        return []


def _data_of(saved: SavedTensor) -> Any:
    return getattr(saved, "data", None)  # an older torch does not tell it without calling the program's function


def _tensors_in(data: Any) -> list[torch.Tensor]:
    if isinstance(data, torch.Tensor):
        return [data]
    return [one for one in data if isinstance(one, torch.Tensor)] if type(data) in (list, tuple) else []


def _leaf_and_gradient(leaf: Any) -> list[torch.Tensor]:
    """An input that needs a gradient, and that gradient, live as long as the graph; parameters live anyway."""
    if not isinstance(leaf, torch.Tensor) or isinstance(leaf, torch.nn.Parameter):
        return []
    return [leaf] if leaf.grad is None else [leaf, leaf.grad]
