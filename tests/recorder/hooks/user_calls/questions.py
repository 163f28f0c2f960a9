"""What programs, debuggers and other libraries ask of torch's functions and types."""

import gc
import inspect
import typing
import warnings
from typing import Any

import torch
from torch.utils.data import DataLoader

from tests.recorder.hooks.user_calls.calls import Calls, attempt, scalar, vector

METHODS = (
    "item", "tolist", "cpu", "nonzero", "backward", "add", "numpy", "requires_grad_", "__bool__", "__float__",
    "__int__", "__index__", "__complex__", "__add__", "__radd__", "__iadd__", "__eq__", "register_hook",
    "__getitem__", "__neg__", "__len__", "__iter__", "__contains__", "__array__", "__torch_function__", "__hash__",
    "__reduce_ex__", "__deepcopy__", "__format__", "__matmul__", "__rpow__", "__floordiv__",
)  # fmt: skip

FUNCTIONS = (
    torch.autograd.backward, torch.autograd.grad, torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad_value_,
    torch.compile, torch.set_num_threads, torch.save, torch.add,
)  # fmt: skip
"""As a program has them that imported them before the recording."""


def named() -> dict[str, Any]:
    """The same functions, asked for now."""
    return {
        "backward": torch.autograd.backward,
        "grad": torch.autograd.grad,
        "clip_grad_norm_": torch.nn.utils.clip_grad_norm_,
        "clip_grad_value_": torch.nn.utils.clip_grad_value_,
        "compile": torch.compile,
        "set_num_threads": torch.set_num_threads,
        "collect": gc.collect,
        "step": torch.optim.lr_scheduler.StepLR.step,
        "plateau": torch.optim.lr_scheduler.ReduceLROnPlateau.step,
        "adam": torch.optim.Adam.step,
        "scale": torch.amp.GradScaler.scale,
        "scaler": torch.amp.GradScaler.step,
        "update": torch.amp.GradScaler.update,
        "eval": torch.nn.Module.eval,
        "loader": DataLoader.__init__,
        "iterate": DataLoader.__iter__,
        "profile": torch.autograd.profiler.profile.__init__,
        "synchronize": torch.cuda.synchronize,
        "empty_cache": torch.cuda.empty_cache,
        "accelerator": torch.accelerator.synchronize,
        "optimized": torch._dynamo.eval_frame.OptimizedModule.__call__,
    }


def _signature(function: Any) -> str:
    try:
        return str(inspect.signature(function))
    except ValueError as error:
        return str(error).partition(" at 0x")[0]


def _caches_forgotten() -> None:
    """What torch looks up once, it looks up again."""
    for one in vars(torch.overrides).values():
        if hasattr(one, "cache_clear"):
            one.cache_clear()


def overridable() -> Any:
    """As a library asks that goes through all that a tensor's subclass can override."""
    _caches_forgotten()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torch.overrides.get_overridable_functions()
        names = {
            getattr(owner, "__name__", str(owner)): sorted(
                torch.overrides.resolve_name(one) or str(one) for one in all_
            )
            for owner, all_ in found.items()
        }
        ignored = sorted(getattr(one, "__qualname__", str(one)) for one in torch.overrides.get_ignored_functions())
        tested = sorted(getattr(one, "__qualname__", str(one)) for one in torch.overrides.get_testing_overrides())
    return names, ignored, tested


def overridable_still() -> Any:
    """The same from the tables that torch has made before."""
    found = torch.overrides.get_overridable_functions()
    return {getattr(owner, "__name__", str(owner)): len(all_) for owner, all_ in found.items()}


def is_tensor_method() -> Any:
    found = {}
    for name in METHODS:
        method = getattr(torch.Tensor, name, None)
        found[name] = method is not None and torch.overrides.is_tensor_method_or_property(method)
    return found


class Described(torch.Tensor):
    """Says what it is, as a library's class does."""

    def item(self) -> str:  # type: ignore[override]
        return f"described {super().item()}"

    def __bool__(self) -> bool:
        return not super().__bool__()

    def __add__(self, other: Any) -> Any:
        return "added", super().__add__(other)

    def __eq__(self, other: object) -> Any:
        return "equal", super().__eq__(other)

    __hash__ = torch.Tensor.__hash__


def described() -> Any:
    it = scalar().as_subclass(Described)
    return it.item(), bool(it), it + 1, it == 1.5, 1 + it, it - 1


QUESTIONS: Calls = {
    "hasattr": lambda: [name for name in METHODS if hasattr(vector(), name)],
    "hasattr of the type": lambda: [name for name in METHODS if hasattr(torch.Tensor, name)],
    "hasattr of what there is not": lambda: (hasattr(vector(), "no_such"), hasattr(torch, "no_such")),
    "getattr of what there is not": lambda: vector().no_such,
    "getattr of a property that warns": lambda: (vector(requires_grad=True) * 2).grad,
    "dir of a tensor": lambda: dir(vector()),
    "dir of the type": lambda: dir(torch.Tensor),
    "dir of a parameter": lambda: dir(torch.nn.Parameter(vector())),
    "dir of a module": lambda: dir(torch.nn.Linear(1, 1)),
    "dir of torch": lambda: [one for one in dir(torch.autograd) if not one.startswith("_")],
    "names of methods": lambda: [getattr(vector(), name).__name__ for name in METHODS],
    "qualified names of the type's methods": lambda: [getattr(torch.Tensor, name).__qualname__ for name in METHODS],
    "documentation of methods": lambda: [hash(getattr(vector(), name).__doc__) for name in METHODS],
    "owners of methods": lambda: all(
        (lambda it: getattr(it, name).__self__ is it)(vector()) for name in METHODS if name != "__torch_function__"
    ),
    "the type's methods are what they were": lambda: [getattr(torch.Tensor, name) for name in METHODS],
    "methods are callable": lambda: [callable(getattr(vector(), name)) for name in METHODS],
    "methods are equal": lambda: (lambda it: [getattr(it, name) == getattr(it, name) for name in METHODS])(vector()),
    "signatures of methods": lambda: {name: _signature(getattr(torch.Tensor, name)) for name in METHODS},
    "signatures of functions": lambda: {name: _signature(one) for name, one in named().items()},
    "signatures, followed no further": lambda: [_signature(one) for one in FUNCTIONS],
    "parameters of a function": lambda: list(inspect.signature(torch.autograd.backward).parameters),
    "full argument specification": lambda: inspect.getfullargspec(torch.nn.Module.forward),
    "names of functions": lambda: [(one.__module__, one.__qualname__) for one in named().values()],
    "documentation of functions": lambda: [hash(one.__doc__) for one in named().values()],
    "source of functions": lambda: [attempt(lambda one=one: hash(inspect.getsource(one))) for one in named().values()],
    "files of functions": lambda: [
        attempt(lambda one=one: inspect.getsourcefile(inspect.unwrap(one))) for one in named().values()
    ],
    "type hints": lambda: [attempt(lambda one=one: sorted(typing.get_type_hints(one))) for one in named().values()],
    "annotations": lambda: [getattr(one, "__annotations__", None) for one in named().values()],
    "functions are functions": lambda: [inspect.isfunction(one) for name, one in named().items() if name != "collect"],
    "methods of the type are no functions": lambda: [
        inspect.ismethoddescriptor(getattr(torch.Tensor, name)) for name in METHODS
    ],
    "order of resolution": lambda: (torch.Tensor.__mro__, torch.nn.Parameter.__mro__, torch.Tensor.__bases__),
    "metaclass": lambda: (type(torch.Tensor), type(torch.nn.Parameter)),
    "members of a loader": lambda: sorted(name for name, _ in inspect.getmembers(DataLoader, callable)),
    "overridable functions": overridable,
    "overridable functions, known before": overridable_still,
    "methods of a tensor": is_tensor_method,
    "names of overridable functions": lambda: [
        torch.overrides.resolve_name(getattr(torch.Tensor, name)) for name in METHODS
    ],
    "a subclass's own methods": described,
    "isinstance": lambda: (
        isinstance(vector(), torch.Tensor),
        isinstance(torch.nn.Parameter(vector()), torch.nn.Parameter),
        isinstance(torch.nn.Buffer(vector()), torch.nn.Buffer),
        isinstance(vector(), torch.FloatTensor),
        isinstance(vector(), torch.LongTensor),
    ),
    "is_tensor and is_storage": lambda: (torch.is_tensor(vector()), torch.is_storage(vector().untyped_storage())),
    "attributes of a tensor": lambda: (vars(vector()), vector().__dict__, vector()._backward_hooks),
    "an attribute of its own": lambda: (lambda it: (setattr(it, "mine", 1), it.mine, vars(it)))(vector()),
    "attributes of a module": lambda: sorted(vars(torch.nn.Linear(1, 1))),
    "versions": lambda: (vector()._version, (lambda it: it.add_(1)._version)(vector())),
    "grad mode": lambda: (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")),
    "defaults": lambda: (torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads()),
    "finfo": lambda: (torch.finfo(torch.float32), torch.iinfo(torch.int8)),
    "help": lambda: hash(__import__("pydoc").render_doc(torch.Tensor.item)),
}
