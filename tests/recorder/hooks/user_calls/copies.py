"""Copies, pickles and references of tensors, modules, optimizers and functions."""

import copy
import copyreg
import functools
import gc
import io
import pickle
import sys
import weakref
from typing import Any

import torch

from tests.recorder.hooks.user_calls.calls import Calls, grid, scalar, vector
from tests.recorder.hooks.user_calls.questions import FUNCTIONS, named


def model() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301


def saved(value: Any, **how: Any) -> Any:
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    return torch.load(stream, **how)


def stepped() -> torch.optim.Optimizer:
    made = model()
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.1)
    made[0](torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return optimizer


def names_in_pickle(value: Any) -> list[str]:
    """Modules that must be there where it is read."""
    found = []

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            found.append(f"{module}.{name}")
            return super().find_class(module, name)

    Reader(io.BytesIO(pickle.dumps(value))).load()
    return found


def swapped() -> Any:
    one, other = model(), model()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.utils.swap_tensors(a, b)
    return list(one.parameters()), list(other.parameters())


def swapped_by_loading() -> Any:
    made = model()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        made.load_state_dict({name: value + 1 for name, value in model().state_dict().items()})
        return list(made.to(torch.float64).parameters())
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def swapped_after_a_step() -> Any:
    """Nothing may refer weakly to what was trained."""
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    made(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    for parameter in made.parameters():
        torch.utils.swap_tensors(parameter, torch.nn.Parameter(torch.zeros_like(parameter)))
    return list(made.parameters())


def swapped_with_a_weak_reference() -> Any:
    one = vector()
    reference = weakref.ref(one)
    torch.utils.swap_tensors(one, torch.ones(2))
    return reference


def forgotten() -> Any:
    """What is used up lives no longer."""
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    loss = made(torch.ones(2, 3)).sum()
    loss.backward()
    optimizer.step()
    references = [weakref.ref(one) for one in (made, optimizer, loss, made[0].weight, made[0].weight.grad)]
    del made, optimizer, loss
    gc.collect()
    return [one() is None for one in references]


def forgotten_without_a_collection() -> Any:
    it = vector()
    made = it + 1
    reference = weakref.ref(made)
    made.item if made.numel() == 1 else made.tolist()
    float(made.sum())
    del made
    return reference()


def called_back() -> Any:
    seen: list[str] = []
    it = vector()
    weakref.finalize(it, seen.append, "gone")
    del it
    return seen


def counted_references() -> Any:
    it = vector()
    before = sys.getrefcount(it)
    it + 1
    bool(it[0])
    it[0].item()
    it == it  # noqa: B015
    return sys.getrefcount(it) - before


def resurrected() -> Any:
    """A tensor that only C++ keeps comes back as the object it was."""
    weight = vector(requires_grad=True)
    weight.mine = "mine"
    made = (weight * 2).sum()
    node = made.grad_fn.next_functions[0][0].next_functions[0][0]
    del weight
    return node.variable.mine


def kept_by_view() -> Any:
    it = grid()
    part = it[0]
    del it
    return part._base.shape


class Tagged(torch.Tensor):
    """Has an attribute of its own."""

    tag: Any

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def tagged() -> Tagged:
    it = vector().as_subclass(Tagged)
    it.tag = {"a": 1}
    return it


COPIES: Calls = {
    "copy of a tensor": lambda: copy.copy(vector()),
    "deepcopy of a tensor": lambda: (copy.deepcopy(vector(requires_grad=True)), copy.deepcopy(scalar())),
    "deepcopy of what has a graph": lambda: copy.deepcopy(vector(requires_grad=True) * 2),
    "deepcopy of a subclass": lambda: (lambda it: (it, it.tag))(copy.deepcopy(tagged())),
    "deepcopy of a model": lambda: list(copy.deepcopy(model()).parameters()),
    "deepcopy of an optimizer": lambda: copy.deepcopy(stepped()).state_dict(),
    "deepcopy of a bound method": lambda: copy.deepcopy(scalar().item)(),
    "deepcopy of shared tensors": lambda: (lambda it: it[0] is it[1])(copy.deepcopy([scalar()] * 2)),
    "pickle of a tensor": lambda: pickled(vector()),
    "pickle of a 0-d tensor": lambda: pickled([scalar(), scalar()]),
    "pickle of a parameter": lambda: pickled(torch.nn.Parameter(vector())),
    "pickle of a subclass": lambda: (lambda it: (it, it.tag))(pickled(tagged())),
    "pickle of a model": lambda: pickled(model()).state_dict(),
    "pickle of an optimizer": lambda: pickled(stepped()).state_dict(),
    "pickle of a bound method": lambda: [pickled(getattr(scalar(), name))() for name in ("item", "tolist", "__bool__")],
    "pickle of a bound operator": lambda: [pickled(getattr(vector(), name))(2) for name in ("__add__", "__eq__")],
    "pickle of a method": lambda: [
        pickled(getattr(torch.Tensor, name)) for name in ("item", "cpu", "__bool__", "__add__")
    ],
    "pickle of functions": lambda: [pickled(one) is one for one in named().values()],
    "pickle of a partial function": lambda: pickled(functools.partial(torch.autograd.grad, retain_graph=True)).keywords,
    "pickle of a module's method": lambda: pickled(model().eval)().training,
    "pickle of a schedule's step": lambda: pickled(torch.optim.lr_scheduler.StepLR.step).__qualname__,
    "pickle of a device and a dtype": lambda: pickled([torch.device("cpu"), torch.float32, torch.Size([1])]),
    "pickle of a generator": lambda: pickled(torch.Generator().manual_seed(3)).initial_seed(),
    "names in pickles": lambda: [names_in_pickle(one) for one in (vector(), model(), stepped(), scalar().item)],
    "reduction": lambda: (copyreg.dispatch_table.get(torch.Tensor), scalar().item.__reduce__()[1][1]),
    "save and load": lambda: saved({"model": model().state_dict(), "loss": scalar(), "steps": [1, 2]}),
    "save and load all": lambda: saved(model(), weights_only=False).state_dict(),
    "save and load an optimizer": lambda: saved(stepped().state_dict()),
    "save of what cannot be": lambda: saved({"function": lambda: None}),
    "load of weights only": lambda: saved(model(), weights_only=True),
    "state_dict": lambda: model().state_dict(),
    "load_state_dict": lambda: model().load_state_dict(model().state_dict()),
    "load_state_dict of a wrong one": lambda: model().load_state_dict({"a": vector()}),
    "load an optimizer's state": lambda: stepped().load_state_dict(stepped().state_dict()),
    "weak reference": lambda: (lambda it: weakref.ref(it)() is it)(vector()),
    "weak reference to nothing": lambda: weakref.ref(vector())(),
    "weak references, counted": lambda: (lambda it: weakref.getweakrefcount(it))(model()[0].weight),
    "weak dictionary": lambda: len(weakref.WeakValueDictionary({1: vector()})),
    "forgotten": forgotten,
    "forgotten without a collection": forgotten_without_a_collection,
    "called back": called_back,
    "references, counted": counted_references,
    "resurrected": resurrected,
    "kept by a view": kept_by_view,
    "functions taken before": lambda: [callable(one) for one in FUNCTIONS],
    "clone, detach, data": lambda: (
        vector().clone(),
        vector(requires_grad=True).detach(),
        vector(requires_grad=True).data,
    ),
    "set_": lambda: vector().set_(torch.ones(2)),
    "share memory": lambda: vector().share_memory_().is_shared(),
    "to": lambda: (vector().to(torch.float64), vector().to("meta"), (lambda it: it.to("cpu") is it)(vector())),
    "type": lambda: (vector().type(), vector().type(torch.IntTensor), vector().double().dtype),
    "module to": lambda: [one.dtype for one in model().double().parameters()],
    "module on meta": lambda: [one.device for one in model().to("meta").parameters()],
}

SWAPS: Calls = {
    "swap of tensors": lambda: (lambda a, b: (torch.utils.swap_tensors(a, b), a, b))(vector(), torch.ones(2)),
    "swap of parameters": swapped,
    "swap by loading": swapped_by_loading,
    "swap after a step": swapped_after_a_step,
    "swap with a weak reference": swapped_with_a_weak_reference,
}
"""They end a window: a profiler that records shapes refers to tensors weakly, and such cannot be exchanged."""
