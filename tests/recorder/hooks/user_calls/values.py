"""Tensors from every kind of value, and values from tensors."""

import array
import decimal
import fractions
import math
import random
import struct
from typing import Any

import numpy as np
import torch

from tests.recorder.hooks.user_calls.calls import Calls, attempt, scalar, vector

WHOLE, HALF = 3, 0.5


def scalars() -> list[torch.Tensor]:
    return [scalar(1.5), scalar(2.5), scalar(-1.0)]


class Sequence:
    """Has a length and items, and is no list."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> float:
        return [1.0, 2.0][index]


class Array:
    """What NumPy takes for an array."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.arange(3.0)


class Tensorlike:
    def __tensor__(self) -> torch.Tensor:
        return vector()


class Number:
    def __index__(self) -> int:
        return 7

    def __float__(self) -> float:
        return 7.5


CONSTRUCTORS: Calls = {
    "a list of 0-d tensors": lambda: torch.tensor(scalars()),
    "a tuple of 0-d tensors": lambda: torch.tensor(tuple(scalars())),
    "nested lists of 0-d tensors": lambda: torch.tensor([scalars(), scalars()]),
    "0-d tensors beside numbers": lambda: torch.tensor([scalar(), 2, 3.5]),
    "numbers beside 0-d tensors": lambda: torch.tensor([2, scalar(), 3.5]),
    "integers and bools as 0-d tensors": lambda: torch.tensor([torch.tensor(1), torch.tensor(True)]),
    "complex 0-d tensors": lambda: torch.tensor([torch.tensor(1j), torch.tensor(2.0)]),
    "a list of 1-element tensors": lambda: torch.tensor([torch.ones(1), torch.zeros(1)]),
    "a list of vectors": lambda: torch.tensor([vector(), vector()]),
    "nested lists of vectors": lambda: torch.tensor([[vector()], [vector()]]),
    "a vector beside a list": lambda: torch.tensor([vector(), [1.0, 2.0, 3.0]]),
    "vectors of two lengths": lambda: torch.tensor([vector(), torch.ones(2)]),
    "0-d tensors that require a gradient": lambda: torch.tensor([scalar(requires_grad=True)]),
    "parameters without a dimension": lambda: torch.tensor([torch.nn.Parameter(scalar())]),
    "a tensor": lambda: torch.tensor(vector()),
    "a 0-d tensor": lambda: torch.tensor(scalar()),
    "nothing": lambda: torch.tensor([]),
    "empty lists": lambda: torch.tensor([[], []]),
    "ragged lists": lambda: torch.tensor([[1, 2], [3]]),
    "a range": lambda: torch.tensor(range(4)),
    "a generator": lambda: torch.tensor(one for one in scalars()),
    "a set": lambda: torch.tensor({1, 2}),
    "a dict": lambda: torch.tensor({0: 1.0}),
    "text": lambda: torch.tensor("12"),
    "bytes": lambda: torch.tensor(b"12"),
    "a bytearray": lambda: torch.tensor(bytearray(b"12")),
    "an array": lambda: torch.tensor(array.array("d", [1.0, 2.0])),
    "a sequence of its own": lambda: torch.tensor(Sequence()),
    "an array-like": lambda: torch.tensor(Array()),
    "an array-like, taken as it is": lambda: torch.as_tensor(Array()),
    "a tensor-like": lambda: torch.tensor(Tensorlike()),
    "a number-like": lambda: torch.tensor(Number()),
    "number-likes": lambda: torch.tensor([Number(), Number()]),
    "none": lambda: torch.tensor(None),
    "nones": lambda: torch.tensor([None]),
    "objects": lambda: torch.tensor([object()]),
    "a decimal": lambda: torch.tensor(decimal.Decimal("1.5")),
    "a fraction": lambda: torch.tensor(fractions.Fraction(1, 2)),
    "an integer that is too large": lambda: torch.tensor(2**70),
    "infinities": lambda: torch.tensor([math.inf, -math.inf, math.nan]),
    "numpy's scalars": lambda: torch.tensor([np.float32(1), np.int64(2), np.float64(3)]),
    "numpy's bools": lambda: torch.tensor([np.bool_(True), np.bool_(False)]),
    "numpy's scalars beside 0-d tensors": lambda: torch.tensor([np.float32(1), scalar()]),
    "a 0-d array": lambda: torch.tensor(np.array(2.0)),
    "0-d arrays": lambda: torch.tensor([np.array(2.0), np.array(3.0)]),
    "an array of objects": lambda: torch.tensor(np.array([1, "a"], dtype=object)),
    "half precision": lambda: torch.tensor(scalars(), dtype=torch.float16),
    "integers of scalars": lambda: torch.tensor(scalars(), dtype=torch.int64),
    "as_tensor of 0-d tensors": lambda: torch.as_tensor(scalars()),
    "as_tensor of 0-d tensors in another dtype": lambda: torch.as_tensor(scalars(), dtype=torch.float64),
    "as_tensor of a tensor is it": lambda: (lambda it: torch.as_tensor(it) is it)(vector()),
    "asarray of 0-d tensors": lambda: torch.asarray(scalars()),
    "asarray of numpy": lambda: torch.asarray(np.arange(3)),
    "new_tensor of 0-d tensors": lambda: vector().new_tensor(scalars()),
    "new_tensor of nested 0-d tensors": lambda: vector().new_tensor([scalars()]),
    "new_full with a 0-d tensor": lambda: vector().new_full((2,), scalar()),
    "full with a 0-d tensor": lambda: torch.full((2,), scalar()),
    "full of a size of 0-d tensors": lambda: torch.full((torch.tensor(2), torch.tensor(3)), 1.0),
    "zeros of a size of tensors": lambda: torch.zeros(torch.tensor(2), torch.tensor(3)),
    "zeros of a tensor as the size": lambda: torch.zeros(torch.tensor([2, 3])),
    "ones of floats as the size": lambda: torch.ones(scalar()),
    "a legacy constructor of 0-d tensors": lambda: torch.FloatTensor(scalars()),
    "the legacy constructor of a list": lambda: torch.Tensor([1.0, 2.0]),
    "the legacy constructor of a tensor": lambda: torch.Tensor(vector()),
    "a legacy constructor of integers": lambda: torch.LongTensor([torch.tensor(1), torch.tensor(2)]),
    "a sparse tensor": lambda: torch.sparse_coo_tensor([[0, 1]], scalars()[:2], (3,)).to_dense(),
    "a quantized tensor": lambda: torch.quantize_per_tensor(vector(), 0.1, 0, torch.qint8).int_repr(),
    "arange of 0-d tensors": lambda: torch.arange(torch.tensor(1), torch.tensor(4)),
    "linspace of 0-d tensors": lambda: torch.linspace(scalar(), scalar(3.0), 3),
    "from_numpy": lambda: torch.from_numpy(np.arange(3.0)),
    "frombuffer": lambda: torch.frombuffer(bytearray(struct.pack("3f", 1, 2, 3)), dtype=torch.float32),
    "from_dlpack": lambda: torch.from_dlpack(np.arange(3.0)),
    "stack of a list": lambda: torch.stack(scalars()),
    "cat of 0-d tensors": lambda: torch.cat(scalars()),
    "stack of a tensor": lambda: torch.stack(torch.ones(2, 2)),
    "cat of a tensor": lambda: torch.cat(torch.ones(2, 2)),
    "a size of tensors": lambda: torch.Size([torch.tensor(2), torch.tensor(3)]),
    "a device of an index": lambda: torch.device("cpu", 0),
    "a generator seeded by a tensor": lambda: torch.Generator().manual_seed(int(torch.tensor(7))).initial_seed(),
    "a random permutation": lambda: torch.randperm(5, generator=torch.Generator().manual_seed(1)),
    "normal of a seed": lambda: (torch.manual_seed(3), torch.randn(3), torch.rand(2))[1:],
    "a parameter of a tensor": lambda: torch.nn.Parameter(vector()),
    "a parameter of integers": lambda: torch.nn.Parameter(torch.tensor([1])),
    "a buffer": lambda: torch.nn.Buffer(vector()),
    "nested tensors": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).unbind(),
}

CONVERSIONS: Calls = {
    "bool": lambda: (bool(scalar()), bool(torch.zeros(1)), bool(torch.tensor(False))),
    "bool of several": lambda: bool(vector()),
    "bool of none": lambda: bool(torch.zeros(0)),
    "bool of nan": lambda: bool(torch.tensor(math.nan)),
    "not": lambda: not scalar(),
    "if": lambda: 1 if torch.ones(1, 1) else 2,
    "if with a parameter": lambda: 1 if torch.nn.Parameter(torch.ones(1)) else 2,
    "int": lambda: (int(scalar(2.7)), int(torch.tensor([-3]))),
    "int of several": lambda: int(vector()),
    "int of infinity": lambda: int(torch.tensor(math.inf)),
    "int of nan": lambda: int(torch.tensor(math.nan)),
    "float": lambda: (float(scalar()), float(torch.tensor([3]))),
    "float of several": lambda: float(vector()),
    "float of a complex one": lambda: float(torch.tensor(1 + 1j)),
    "complex": lambda: (complex(scalar()), complex(torch.tensor(1 + 2j))),
    "complex of several": lambda: complex(vector()),
    "item": lambda: [torch.tensor(one).item() for one in (1, 1.5, True, 1j)],
    "item of several": lambda: vector().item(),
    "item of none": lambda: torch.zeros(0).item(),
    "item with an argument": lambda: scalar().item(1),
    "item of what requires a gradient": lambda: scalar(requires_grad=True).item(),
    "item on the meta device": lambda: torch.ones(1, device="meta").item(),
    "bool on the meta device": lambda: bool(torch.ones(1, device="meta")),
    "tolist": lambda: (torch.arange(6).view(2, 3).tolist(), scalar().tolist(), torch.zeros(0).tolist()),
    "tolist on the meta device": lambda: torch.ones(1, device="meta").tolist(),
    "tolist of a sparse one": lambda: torch.eye(2).to_sparse().tolist(),
    "cpu": lambda: (vector().cpu(), torch.ones(1, device="meta").device),
    "cpu is the tensor": lambda: (lambda it: it.cpu() is it)(vector()),
    "cpu with a memory format": lambda: torch.ones(1, 2, 2, 2).cpu(memory_format=torch.channels_last).stride(),
    "nonzero": lambda: (vector().nonzero(), torch.eye(2).nonzero(as_tuple=True), torch.nonzero(vector())),
    "nonzero with a wrong argument": lambda: vector().nonzero(wrong=True),
    "index": lambda: (list(range(10))[torch.tensor(3)], [0] * torch.tensor(2), hex(torch.tensor(255))),
    "index of a float": lambda: [1, 2][scalar()],
    "index of several": lambda: [1, 2][torch.tensor([0, 1])],
    "index of a bool": lambda: [1, 2][torch.tensor(True)],
    "a slice of a list": lambda: list(range(9))[torch.tensor(2) : torch.tensor(8) : torch.tensor(3)],
    "range of a tensor": lambda: list(range(torch.tensor(3))),
    "text times a tensor": lambda: "ab" * torch.tensor(2),
    "round": lambda: round(scalar(2.567), 1),
    "math": lambda: [
        attempt(lambda one=one: one(scalar()))
        for one in (math.sqrt, math.floor, math.ceil, math.trunc, math.exp, math.gcd)
    ],
    "math of several": lambda: math.sqrt(vector()),
    "math.isclose": lambda: math.isclose(scalar(1.0), 1.0),
    "math.factorial": lambda: math.factorial(torch.tensor(5)),
    "sum, min and max": lambda: (sum(scalars()), min(scalars()), max(scalars()), sorted(scalars())),
    "any and all": lambda: (any(vector() > 0), all(torch.ones(3))),
    "divmod": lambda: divmod(torch.tensor(7), 2),
    "divmod, reflected": lambda: divmod(7, torch.tensor(2)),
    "pow with a modulus": lambda: pow(torch.tensor(7), 2, 3),
    "a format": lambda: (f"{scalar():.3f}", f"{scalar()}", f"{vector()}", f"{torch.tensor(7):05d}"),
    "a wrong format": lambda: f"{vector():.3f}",
    "percent": lambda: ("%.2f" % scalar(), "%d" % torch.tensor(3), "%s" % vector()),  # noqa: UP031
    "str and repr": lambda: (str(vector()), repr(scalar()), repr(torch.nn.Parameter(vector())), str(torch.zeros(0))),
    "repr of what has a graph": lambda: repr(scalar(requires_grad=True) * 2),
    "repr of odd ones": lambda: [repr(it) for it in (torch.ones(1, device="meta"), torch.eye(2).to_sparse())],
    "print options": lambda: _with_precision(2, lambda: repr(torch.tensor([1.23456]))),
    "struct": lambda: struct.pack("f", scalar()),
    "random choices by tensors": lambda: random.Random(1).choices("abc", weights=list(vector().abs())),
    "a dict's key": lambda: (lambda it: {it: 1}[it])(scalar()),
    "a set of tensors": lambda: len({scalar(), scalar()}),
    "hash is the id": lambda: (lambda it: hash(it) == id(it))(scalar()),
    "isinstance of numbers": lambda: [isinstance(scalar(), kind) for kind in (int, float, complex)],
    "is_nonzero": lambda: (torch.is_nonzero(scalar()), scalar().is_nonzero()),
    "equal and allclose": lambda: (torch.equal(vector(), vector()), torch.allclose(vector(), vector() + 1e-9)),
    "assert_close": lambda: torch.testing.assert_close(vector(), vector() + 1),
}

NUMPY: Calls = {
    "numpy": lambda: vector().numpy(),
    "numpy of what requires a gradient": lambda: vector(requires_grad=True).numpy(),
    "numpy of what requires a gradient, by force": lambda: vector(requires_grad=True).numpy(force=True),
    "array": lambda: np.array(vector()),
    "array of 0-d tensors": lambda: np.array(scalars()),
    "array of vectors": lambda: np.array([vector(), vector()]),
    "array of objects": lambda: np.array([scalar(), None], dtype=object).shape,
    "asarray": lambda: np.asarray(vector(), dtype=np.float64),
    "asarray of what requires a gradient": lambda: np.asarray(vector(requires_grad=True)),
    "stack": lambda: np.stack([vector(), vector()]),
    "mean": lambda: np.mean(scalars()),
    "a ufunc": lambda: np.sin(vector()),
    "a ufunc of two": lambda: np.add(vector(), np.ones(3, dtype=np.float32)),
    "a scalar": lambda: np.float64(scalar()),
    "an array plus a tensor": lambda: np.ones(3, dtype=np.float32) + vector(),
    "a tensor plus an array": lambda: vector() + np.ones(3, dtype=np.float32),
    "a scalar times a tensor": lambda: np.float32(2) * vector(),
    "a tensor times a scalar": lambda: vector() * np.float64(2),
    "a 64-bit scalar times a tensor": lambda: np.float64(2) * vector(),
    "an integer times a tensor": lambda: np.int64(2) * vector(),
    "a tensor compared with a scalar": lambda: (vector() > np.float32(0), np.float32(0) < vector()),
    "a bool and a tensor": lambda: torch.tensor([True]) & np.bool_(True),
    "indexed by numpy": lambda: (vector()[np.int64(1)], vector()[np.array([0, 2])], vector()[np.array([True] * 3)]),
    "assigned from numpy": lambda: _assigned(vector(), 0, np.float64(9)),
    "an array assigned from a tensor": lambda: _assigned(np.zeros(3), slice(None), vector()),
    "an array assigned from a 0-d tensor": lambda: _assigned(np.zeros(3), 0, scalar()),
    "an array indexed by a tensor": lambda: np.arange(5)[torch.tensor([1, 3])],
    "an array indexed by a 0-d tensor": lambda: np.arange(5)[torch.tensor(3)],
    "isscalar": lambda: (np.isscalar(scalar()), np.ndim(vector()), np.shape(torch.ones(2, 3)), np.size(vector())),
    "testing": lambda: np.testing.assert_allclose(vector(), vector().numpy()),
    "the array interface": lambda: vector().__array__(np.float64),
    "array priority": lambda: (vector().__array_priority__, hasattr(vector(), "__array_wrap__")),
    "dlpack": lambda: np.from_dlpack(vector()),
    "dlpack's device": lambda: vector().__dlpack_device__(),
    "a cuda array interface": lambda: vector().__cuda_array_interface__,
}


def _assigned(it: Any, index: Any, value: Any) -> Any:
    it[index] = value
    return it


def _with_precision(digits: int, call: Any) -> Any:
    torch.set_printoptions(precision=digits)
    try:
        return call()
    finally:
        torch.set_printoptions(profile="default")


VALUES: Calls = {
    **{f"made of {name}": call for name, call in CONSTRUCTORS.items()},
    **{f"converted: {name}": call for name, call in CONVERSIONS.items()},
    **{f"numpy: {name}": call for name, call in NUMPY.items()},
}
