"""Items and parts of tensors, and what is asked of a container."""

import collections.abc
import operator
from typing import Any

import torch

from tests.recorder.hooks.user_calls.calls import Calls, grid, scalar, vector

INDICES: dict[str, Any] = {
    "an integer": 1,
    "a negative integer": -1,
    "too large an integer": 9,
    "a bool": True,
    "a float": 1.5,
    "text": "a",
    "none": None,
    "an ellipsis": ...,
    "a slice": slice(0, 2),
    "a slice with a step": slice(0, 3, 2),
    "a slice backwards": slice(None, None, -1),
    "a slice of tensors": slice(torch.tensor(0), torch.tensor(2)),
    "a slice of a float": slice(0.5, 2),
    "nothing": (),
    "two integers": (1, 2),
    "too many integers": (0, 0, 0),
    "an integer and a slice": (1, slice(1, 3)),
    "an ellipsis and an integer": (..., 1),
    "none and a slice": (None, slice(None), None),
    "a list": [0, 2],
    "a list of bools": [True, False, True],
    "lists": ([0, 1], [1, 2]),
    "nested lists": [[0, 1], [1, 2]],
    "a range": range(2),
    "a 0-d tensor": torch.tensor(1),
    "a list of 0-d tensors": [torch.tensor(0), torch.tensor(2)],
    "a tuple of 0-d tensors": (torch.tensor(0), torch.tensor(2)),
    "a tensor": torch.tensor([0, 2]),
    "a tensor out of range": torch.tensor([7]),
    "a tensor of floats": torch.tensor([0.0]),
    "a tensor of bytes": torch.tensor([1, 0, 1], dtype=torch.uint8),
    "a mask": torch.tensor([True, False, True]),
    "a whole mask": torch.ones(3, 4, dtype=torch.bool),
    "a mask of a wrong shape": torch.ones(2, dtype=torch.bool),
    "a 0-d mask": torch.tensor(True),
    "tensors": (torch.tensor([0, 1]), torch.tensor([1, 2])),
    "tensors of two lengths": (torch.tensor([0, 1]), torch.tensor([1, 2, 3])),
    "a tensor and a slice": (slice(None), torch.tensor([0, 3])),
    "a parameter": torch.nn.Parameter(torch.tensor([0]), requires_grad=False),
}


def taken(index: Any) -> Any:
    return grid()[index]


def set_(index: Any) -> Any:
    it = grid()
    it[index] = 9.0
    return it


def deleted() -> Any:
    it = grid()
    del it[0]
    return it


def added_to() -> Any:
    it = grid()
    it[0] += 1
    it[:, 1] *= 2
    it[it > 5] -= 3
    return it


def set_with(value: Any) -> Any:
    it = grid()
    it[1] = value
    return it


def set_in_graph() -> Any:
    weight = vector(requires_grad=True)
    it = torch.zeros(3)
    it[0] = weight[2]
    it[1:] = weight[:2] * 2
    it.sum().backward()
    return it, weight.grad


def set_in_leaf() -> Any:
    weight = vector(requires_grad=True)
    weight[0] = 1.0
    return weight


def unpacked() -> Any:
    first, *rest = vector()
    (one, other), _ = torch.ones(2, 2)
    return first, rest, one, other


def iterated_over_changing() -> Any:
    it, seen = vector(), []
    for one in it:
        it += 1
        seen.append(one)
    return seen


def matched(it: Any) -> str:
    match it:
        case [_, *_]:
            return "a sequence"
        case {}:
            return "a mapping"
        case _:
            return "neither"


ABSTRACT = ("Sequence", "MutableSequence", "Iterable", "Iterator", "Sized", "Container", "Collection", "Reversible",
            "Mapping", "Hashable", "Callable", "Set", "ByteString", "Buffer", "Awaitable", "Generator")  # fmt: skip

CONTAINERS: Calls = {
    "deleted": deleted,
    "added to": added_to,
    "set in a graph": set_in_graph,
    "set in a leaf": set_in_leaf,
    "set with a 0-d tensor": lambda: set_with(scalar()),
    "set with a list": lambda: set_with([1.0, 2.0, 3.0, 4.0]),
    "set with a list of 0-d tensors": lambda: set_with([scalar()] * 4),
    "set with too short a list": lambda: set_with([1.0, 2.0]),
    "set with a tensor of integers": lambda: set_with(torch.tensor([1, 2, 3, 4])),
    "set with a wrong shape": lambda: set_with(torch.ones(3)),
    "set with none": lambda: set_with(None),
    "set with text": lambda: set_with("a"),
    "set with what requires a gradient": lambda: set_with(scalar(requires_grad=True)),
    "set with a complex number": lambda: set_with(1j),
    "taken from a 0-d tensor": lambda: scalar()[0],
    "taken by none from a 0-d tensor": lambda: scalar()[None],
    "taken by an ellipsis from a 0-d tensor": lambda: scalar()[...],
    "set in a 0-d tensor": lambda: operator.setitem(scalar(), (), 2.0),
    "set in a 0-d tensor at an integer": lambda: operator.setitem(scalar(), 0, 2.0),
    "a view shares memory": lambda: (lambda it: (it[0].data_ptr() == it.data_ptr(), it[0]._is_view()))(grid()),
    "what an index leaves of a graph": lambda: vector(requires_grad=True)[1].grad_fn,
    "getitem": lambda: (operator.getitem(grid(), 1), grid().__getitem__(1), torch.Tensor.__getitem__(grid(), 1)),
    "setitem": lambda: [grid().__setitem__(0, 1.0), torch.Tensor.__setitem__(grid(), 0, 1.0)],
    "itemgetter": lambda: operator.itemgetter(0, 2)(vector()),
    "length": lambda: (len(vector()), len(grid()), len(torch.zeros(0, 3))),
    "length of a 0-d tensor": lambda: len(scalar()),
    "length of a parameter": lambda: len(torch.nn.Parameter(vector())),
    "length hint": lambda: operator.length_hint(vector()),
    "iteration": lambda: list(vector()),
    "iteration over rows": lambda: [*grid()],
    "iteration over a 0-d tensor": lambda: list(scalar()),
    "iteration over a graph": lambda: [one.grad_fn for one in vector(requires_grad=True)],
    "iteration while it changes": iterated_over_changing,
    "iteration's type": lambda: type(iter(vector())),
    "iter with a sentinel": lambda: list(iter(iter([1, 2, 3]).__next__, torch.tensor(3))),
    "next": lambda: next(iter(vector())),
    "next of a tensor": lambda: next(vector()),
    "reversed": lambda: reversed(vector()),
    "reversed of a 0-d tensor": lambda: reversed(scalar()),
    "unpacked": unpacked,
    "unpacked into too few": lambda: (lambda it: [(a, b) for a, b in [it]])(vector()),
    "spread into a call": lambda: max(*vector()),
    "spread into a dict": lambda: dict(**vector()),
    "a dict of pairs": lambda: dict([torch.tensor([1, 2])]),
    "zip and enumerate": lambda: list(zip(vector(), enumerate(vector()), strict=True)),
    "map and filter": lambda: (list(map(float, vector())), list(filter(None, vector()))),
    "in": lambda: (1.0 in vector(), 7 in vector(), scalar() in [scalar(), 2]),
    "in a 0-d tensor": lambda: 1.5 in scalar(),
    "text in a tensor": lambda: "a" in vector(),
    "none in a tensor": lambda: None in vector(),
    "a tensor in a tensor": lambda: vector() in vector(),
    "a tensor in a list": lambda: vector() in [vector()],
    "a list's index": lambda: [scalar(1.0), scalar(2.0)].index(scalar(2.0)),
    "a list's removal": lambda: [scalar(1.0)].remove(scalar(3.0)),
    "countOf and indexOf": lambda: (operator.countOf(vector(), 3.0), operator.indexOf(vector(), 3.0)),
    "operator.contains": lambda: operator.contains(vector(), 3.0),
    "list plus a tensor": lambda: [1.0, *vector()],
    "a tensor plus a list": lambda: [*vector(), 1.0],
    "operator.concat": lambda: operator.concat(vector(), vector()),
    "operator.iconcat": lambda: operator.iconcat([1], vector()),
    "list extended by a tensor": lambda: (lambda it: it.extend(vector()) or it)([]),
    "join": lambda: "".join(vector()),
    "bytes": lambda: bytes(torch.tensor([1, 2], dtype=torch.uint8)),
    "memoryview": lambda: memoryview(vector()),
    "max of a tensor": lambda: (max(vector()), min(vector()), sum(vector()), sorted(vector())),
    "matched": lambda: [matched(one) for one in (vector(), scalar(), [1], {})],
    "abstract classes": lambda: {
        name: [isinstance(one, getattr(collections.abc, name, ())) for one in (vector(), torch.nn.Parameter(scalar()))]
        for name in ABSTRACT
    },
    "abstract classes of the type": lambda: {
        name: issubclass(torch.Tensor, getattr(collections.abc, name, ())) for name in ABSTRACT
    },
    "split, chunk and unbind": lambda: (vector().split(2), vector().chunk(2), vector().unbind(), grid().unbind(1)),
    "a function's tuple": lambda: (lambda it: (it.values, it[1], type(it).__name__))(grid().max(dim=1)),
    "a size": lambda: (lambda size: (size[0], size[-1:], len(size), 3 in size, list(size)))(grid().shape),
    "tensor_split by a tensor": lambda: torch.tensor_split(vector(), torch.tensor(2)),
    "a nested tensor's items": lambda: list(torch.nested.nested_tensor([torch.ones(2), torch.ones(1)])),
    "a sparse tensor's item": lambda: torch.eye(2).to_sparse()[0].to_dense(),
    "a storage's items": lambda: (lambda it: (it[0], it[-1], len(it), list(it)))(vector().storage()),
    "default collate": lambda: torch.utils.data.default_collate([scalar(), scalar()]),
    "default collate of dicts": lambda: torch.utils.data.default_collate(
        [{"a": vector(), "b": 1}, {"a": vector(), "b": 2}]
    ),
    "pad_sequence": lambda: torch.nn.utils.rnn.pad_sequence([vector(), torch.ones(1)], batch_first=True),
    "a tree of tensors": lambda: torch.utils._pytree.tree_map(lambda it: it * 2, {"a": [scalar(), (vector(),)]}),
}

INDEXING: Calls = {
    **{f"taken by {name}": (lambda index=index: taken(index)) for name, index in INDICES.items()},
    **{f"set by {name}": (lambda index=index: set_(index)) for name, index in INDICES.items()},
    **CONTAINERS,
}
