"""Arithmetic and comparison, with every kind of operand on either side, in place too."""

import functools
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from tests.recorder.hooks.user_calls.calls import Calls, attempt, grid, scalar, vector

ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
BITS = ("and_", "or_", "xor", "lshift", "rshift")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
BINARY = (*ARITHMETIC, "matmul", *BITS, *COMPARISONS)
IN_PLACE = ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor",
            "ilshift", "irshift")  # fmt: skip
UNARY = ("neg", "pos", "abs", "invert", "not_", "truth", "index")


class Refuses:
    """An operand that no tensor knows."""


class Answers:
    """One that has an answer to all."""

    def _answer(self, *_: object) -> str:
        return "its own answer"

    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = __rmatmul__ = _answer
    __rand__ = __ror__ = __rxor__ = __rlshift__ = __rrshift__ = _answer
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _answer  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


OPERANDS: dict[str, Callable[[], Any]] = {
    "a tensor": lambda: torch.tensor([2.0, 3.0, 4.0]),
    "a 0-d tensor": lambda: torch.tensor(2.0),
    "a tensor of integers": lambda: torch.tensor([1, 2, 3]),
    "a tensor of bools": lambda: torch.tensor([True, False, True]),
    "a tensor of a wrong shape": lambda: torch.ones(2),
    "a complex tensor": lambda: torch.tensor([1j, 2j, 3j]),
    "a parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "an integer": lambda: 2,
    "a float": lambda: 0.5,
    "a bool": lambda: True,
    "a complex number": lambda: 2j,
    "none": lambda: None,
    "text": lambda: "a",
    "a list": lambda: [1.0, 2.0, 3.0],
    "a tuple": lambda: (1.0, 2.0, 3.0),
    "a dict": lambda: {},
    "a fraction": lambda: Fraction(1, 2),
    "numpy's float": lambda: np.float64(2),
    "numpy's integer": lambda: np.int64(2),
    "an array": lambda: np.array([1.0, 2.0, 3.0], dtype=np.float32),
    "what no tensor knows": Refuses,
    "what has an answer": Answers,
}


def with_all(operand: Callable[[], Any], left: Callable[[], torch.Tensor]) -> Any:
    """Every operator with this operand on the right, then on the left, then in place."""
    right = {name: attempt(lambda name=name: getattr(operator, name)(left(), operand())) for name in BINARY}
    reflected = {name: attempt(lambda name=name: getattr(operator, name)(operand(), left())) for name in BINARY}
    in_place = {name: attempt(lambda name=name: getattr(operator, name)(left(), operand())) for name in IN_PLACE}
    return right, reflected, in_place


def by_name(left: Callable[[], torch.Tensor], operand: Any) -> Any:
    """Every operator as the method that it is, on the tensor and on the type."""
    names = [f"__{prefix}{name.strip('_')}__" for name in BINARY for prefix in ("", "r", "i")]
    present = [name for name in names if hasattr(torch.Tensor, name)]
    bound = {name: attempt(lambda name=name: getattr(left(), name)(operand)) for name in present}
    return bound, {name: attempt(lambda name=name: getattr(torch.Tensor, name)(left(), operand)) for name in present}


def kept_identity() -> Any:
    """An operator in place gives the tensor itself."""
    it = same = vector()
    it += 1
    it *= 2
    it -= scalar()
    it /= 2
    it **= 2
    return it is same, it, it._version


def in_place_on_leaf() -> Any:
    weight = vector(requires_grad=True)
    weight += 1
    return weight


def in_place_spoils_the_graph() -> Any:
    weight = vector(requires_grad=True)
    it = weight * 2
    squared = it**2
    it += 1
    squared.sum().backward()


def in_place_on_integers() -> Any:
    it = torch.tensor([1, 2])
    it /= 2
    return it


def graph_of_operators() -> Any:
    weight = vector(requires_grad=True)
    made = [weight + 1, 1 - weight, weight * weight, 2 / weight, weight**2, 2**weight, -weight, abs(weight), weight % 2]
    total = sum(one.sum() for one in made) + grid()[:, :3] @ weight @ torch.ones(3)
    total.backward()
    return [one.grad_fn for one in made], weight.grad


def chained() -> Any:
    return (1 < torch.tensor(2) < 3, 1 < torch.tensor(5) < 3)


def chained_on_several() -> Any:
    return 1 < vector() < 3


OPERATORS: Calls = {
    **{
        f"a tensor and {name}": (lambda operand=operand: with_all(operand, vector))
        for name, operand in OPERANDS.items()
    },
    **{
        f"a tensor of integers and {name}": (lambda operand=operand: with_all(operand, lambda: torch.tensor([4, 5, 6])))
        for name, operand in OPERANDS.items()
    },
    **{
        f"{name} of tensors": (
            lambda name=name: [
                attempt(lambda one=one: getattr(operator, name)(one))
                for one in (vector(), scalar(), torch.tensor([True]), torch.tensor(3), torch.tensor(1j))
            ]
        )
        for name in UNARY
    },
    "operators by name": lambda: by_name(vector, 2),
    "operators by name on integers": lambda: by_name(lambda: torch.tensor([4, 5, 6]), torch.tensor([1, 2, 3])),
    "operators by name with what no tensor knows": lambda: by_name(vector, None),
    "operators with too few operands": lambda: vector().__add__(),
    "operators with too many operands": lambda: vector().__add__(1, 2, 3),
    "operators with a keyword": lambda: (vector().__add__(other=1), vector().__eq__(other=1)),
    "operators with alpha": lambda: vector().__add__(torch.ones(3), alpha=2),
    "sub with a keyword": lambda: vector().__rsub__(other=1),
    "operators with out": lambda: torch.add(vector(), 1, out=torch.zeros(3)),
    "in place the tensor stays": kept_identity,
    "in place on a leaf": in_place_on_leaf,
    "in place in a graph that needs it": in_place_spoils_the_graph,
    "in place true division of integers": in_place_on_integers,
    "graphs of operators": graph_of_operators,
    "chained comparison": chained,
    "chained comparison of several": chained_on_several,
    "comparison with itself": lambda: (lambda it: (it == it, it is it, it != it))(vector()),
    "comparison with other types": lambda: (vector() == None, vector() == "a", vector() != [], vector() == {}),  # noqa: E711
    "comparison of lists": lambda: [scalar()] == [scalar()],
    "comparison of lists of several": lambda: [vector()] == [vector()],
    "and, or": lambda: (scalar() and 2, scalar(0.0) or 3),
    "broadcasting": lambda: (grid() + torch.ones(4), grid() * torch.ones(3, 1)),
    "matmul": lambda: (grid() @ torch.ones(4), vector() @ vector(), grid() @ grid().T),
    "matmul of wrong shapes": lambda: grid() @ grid(),
    "two devices": lambda: vector() + torch.ones(3, device="meta"),
    "type promotion": lambda: [
        (torch.ones(1, dtype=one) + torch.ones(1, dtype=other)).dtype
        for one in (torch.int8, torch.float16, torch.bfloat16)
        for other in (torch.uint8, torch.float32, torch.complex64)
    ],
    "overflowing integers": lambda: torch.tensor([250], dtype=torch.uint8) + 10,
    "integers by zero": lambda: torch.tensor([1]) // 0,
    "negative integers to a power": lambda: torch.tensor([2]) ** -1,
    "shifts of floats": lambda: vector() << 1,
    "in a reduction": lambda: functools.reduce(operator.mul, vector()),
    "attrgetter and methodcaller": lambda: (
        operator.attrgetter("T.shape")(grid()),
        operator.methodcaller("item")(scalar()),
    ),
    "inference mode": lambda: _in(torch.inference_mode, lambda: (vector() + 1).is_inference()),
    "autocast": lambda: _in(lambda: torch.autocast("cpu", torch.bfloat16), lambda: grid() @ grid().T),
    "no gradient": lambda: _in(torch.no_grad, lambda: (vector(requires_grad=True) * 2).requires_grad),
    "deterministic algorithms": lambda: _in(lambda: torch.random.fork_rng([]), lambda: torch.rand(1)),
    "a default device": lambda: _in(lambda: torch.device("meta"), lambda: (torch.ones(2) + 1).device),
}


def _in(context: Callable[[], Any], call: Callable[[], Any]) -> Any:
    torch.manual_seed(1)
    with context():
        return call()
