"""Subclasses of a tensor and modes, with what they are told of each call."""

from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.recorder.hooks.user_calls.calls import Calls, scalar, vector


class Told(torch.Tensor):
    """Notes each function that torch asks it about; where there are no keywords torch gives None or an empty dict."""

    seen: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(
            (torch.overrides.resolve_name(func) or getattr(func, "__name__", str(func)), len(args), kwargs or {})
        )
        return super().__torch_function__(func, types, args, kwargs or {})


class Untold(torch.Tensor):
    """Overrides nothing and is told of nothing."""

    __torch_function__ = torch._C._disabled_torch_function_impl


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


class Raising(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise LookupError(getattr(func, "__name__", ""))


class Wrapping:
    """No tensor, and answers as one."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [one.value if isinstance(one, cls) else one for one in args]
        return "wrapped", func.__name__, func(*given, **(kwargs or {}))


class Table(torch.Tensor):
    """Has functions of its own for some, found by what they are."""

    own: ClassVar[dict[Any, str]] = {
        getattr(torch.Tensor, name): name
        for name in ("__add__", "__radd__", "__mul__", "__eq__", "__bool__", "__float__", "item", "tolist", "cpu",
                     "nonzero", "__int__", "__index__", "__getitem__", "__setitem__", "__iadd__", "__pow__")
    }  # fmt: skip

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in cls.own and not cls.own[func].startswith(("__bool", "__float", "__int", "__index")):
            return "own", cls.own[func]
        return super().__torch_function__(func, types, args, kwargs or {})


class Inner(torch.Tensor):
    """A wrapper subclass, which computes by another tensor."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype)
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = torch.utils._pytree.tree_map(lambda one: one.inner if isinstance(one, cls) else one, args)
        made = func(*given, **(kwargs or {}))
        return cls(made) if isinstance(made, torch.Tensor) else made


def use(it: Any) -> Any:
    """What programs do most."""
    made = [it + 1, 1 + it, it * it, it - 2, it / 2, it**2, it @ it, -it, abs(it), it == it, it > 0, it[0], it[1:]]
    plain = [bool(it[0]), float(it[0]), int(it[0]), it[0].item(), it.tolist(), len(it), it.cpu(), it.sum()]
    changed = it.clone()
    changed += 1
    changed[0] = 5
    return made, plain, changed, list(it), repr(it)


def told() -> Any:
    Told.seen.clear()
    made = use(vector().as_subclass(Told))
    return made, list(Told.seen)


def told_of_gradients() -> Any:
    Told.seen.clear()
    weight = vector().as_subclass(Told).requires_grad_()
    (weight * 2).sum().backward()
    given = torch.autograd.grad((weight**2).sum(), weight)
    torch.nn.utils.clip_grad_norm_([weight], 1.0)
    return weight.grad, given, list(Told.seen)


def each(kind: Any) -> Any:
    made = []
    for name, call in EACH.items():
        try:
            made.append((name, call(vector().as_subclass(kind))))
        except Exception as error:
            made.append((name, type(error), str(error)))
    return made


EACH: dict[str, Any] = {
    "add": lambda it: it + 1, "radd": lambda it: 1 + it, "eq": lambda it: it == 1, "item": lambda it: it[0].item(),
    "bool": lambda it: bool(it), "float": lambda it: float(it), "int": lambda it: int(it), "cpu": lambda it: it.cpu(),
    "tolist": lambda it: it.tolist(), "nonzero": lambda it: it.nonzero(), "len": lambda it: len(it),
    "iter": lambda it: list(it), "in": lambda it: 1.0 in it, "neg": lambda it: -it, "matmul": lambda it: it @ it,
    "iadd": lambda it: it.__iadd__(1), "getitem": lambda it: it[0], "repr": repr, "pow": lambda it: it**2,
    "backward": lambda it: it.sum().backward(), "index": lambda it: [1, 2][it], "with": lambda it: it + vector(),
    "plain": lambda it: vector() + it, "format": lambda it: f"{it}", "deepcopy": lambda it: it.__deepcopy__({}),
}  # fmt: skip


class Listening(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(torch.overrides.resolve_name(func) or getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Changing(TorchFunctionMode):
    """Gives another answer, as one that rewrites calls."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.add or func is torch.Tensor.__add__:
            return "changed"
        if func is torch.Tensor.item:
            return 42
        return func(*args, **(kwargs or {}))


def listened(kind: Any) -> Any:
    with kind() as mode:
        use(vector())
        weight = vector(requires_grad=True)
        (weight * 2).sum().backward()
        torch.autograd.grad((weight**2).sum(), weight)
        torch.nn.utils.clip_grad_norm_([weight], 1.0)
        torch.nn.utils.clip_grad_value_([weight], 1.0)
    return mode.seen


def listened_to_a_step(kind: Any) -> Any:
    """A module, an optimizer, a schedule and a scaler under a mode."""
    torch.manual_seed(1)
    made = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1, foreach=False)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with kind() as mode:
        made(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return mode.seen


def changed() -> Any:
    with Changing():
        return vector() + 1, scalar().item(), vector().add(1)


def stacked() -> Any:
    with Listening() as outer, Dispatched() as dispatched, Listening() as inner:
        vector() + 1
        bool(scalar() > 1)
    return outer.seen, inner.seen, dispatched.seen


def without_functions() -> Any:
    Told.seen.clear()
    with torch._C.DisableTorchFunctionSubclass():
        it = vector().as_subclass(Told) + 1
    with torch._C.DisableTorchFunction():
        other = vector().as_subclass(Told) + 1
    return type(it), type(other), list(Told.seen)


SUBCLASSES: Calls = {
    "a subclass that is told": told,
    "a subclass that is told of gradients": told_of_gradients,
    "a subclass that is told of nothing": lambda: use(vector().as_subclass(Untold)),
    "a subclass that refuses": lambda: each(Refusing),
    "a subclass that raises": lambda: each(Raising),
    "a subclass with a table": lambda: each(Table),
    "a subclass that is told, each": lambda: each(Told),
    "a wrapper subclass": lambda: (
        [(it + 1).inner, (it == it).inner, it[0].inner, it.sum().item()]
        if (it := Inner(vector())) is not None
        else None
    ),
    "a wrapper subclass's bool": lambda: (bool(Inner(scalar())), float(Inner(scalar())), int(Inner(scalar()))),
    "no tensor that answers as one": lambda: [torch.add(Wrapping(vector()), 1), torch.sum(Wrapping(vector()))],
    "a tensor and no tensor that answers as one": lambda: (
        vector() + Wrapping(vector()),
        vector() == Wrapping(vector()),
    ),
    "a function mode": lambda: listened(Listening),
    "a dispatch mode": lambda: listened(Dispatched),
    "a function mode around a step": lambda: listened_to_a_step(Listening),
    "a dispatch mode around a step": lambda: listened_to_a_step(Dispatched),
    "a function mode that changes": changed,
    "modes within modes": stacked,
    "functions disabled": without_functions,
    "depth of modes": lambda: (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
    "has_torch_function": lambda: torch.overrides.has_torch_function((vector().as_subclass(Told), 1)),
    "fake tensors": lambda: _fake(),
}


def _fake() -> Any:
    with torch._subclasses.FakeTensorMode() as mode:
        it = mode.from_tensor(vector()) + 1
        made = [type(it).__name__, it.shape, repr(it)]
        try:
            bool(it[0])
        except Exception as error:
            made.append((type(error), str(error)))
    return made
