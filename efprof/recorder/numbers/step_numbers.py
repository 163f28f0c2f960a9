"""The numbers of an open step: how losses and gradients are read, and that nobody waits for those on a device."""

import contextlib
import gc
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves
from torch.utils.weak import TensorWeakRef

from efprof.artifacts.steps import StepRecord, spelled
from efprof.recorder.numbers.late_values import OnDevice
from efprof.recorder.session.foreign import is_of_torch, is_tensor

# Before the waiting_calls collector wraps it: our own reads are not the user's.
read_value = torch.Tensor.item


Kind = TypeVar("Kind")

_names: dict[tuple[str, str], list[str]] = {}
"""By the name of a kind of node."""


@dataclass(slots=True)
class StepNumbers:
    loss: float | None = None
    gradient_norm: float | None = None
    num_gradients: int = 0
    gradient_bytes: int = 0
    num_nan: int | None = None
    num_inf: int | None = None
    learning_rate: float | None = None
    scale: torch.Tensor | OnDevice | None = None
    is_guarded: bool = False
    device_losses: tuple[OnDevice, ...] = ()
    device_norms: tuple[OnDevice, ...] = ()
    may_be_bad: tuple[bool, ...] = ()
    """Of each of these norms, whether nothing is to be told of it that is not finite."""

    def add_norm(self, norm: float) -> None:
        self.gradient_norm = norm if self.gradient_norm is None else root_of_squares((self.gradient_norm, norm))


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def tensors_in(value: object) -> list[torch.Tensor]:
    """Those of lists, dicts and whatever else torch takes apart, at any depth."""
    return [one for one in tree_leaves(value) if is_tensor(one)]


def nodes_of(tensors: Any) -> list[Any]:
    """The nodes of autograd's graph that these come from, one tensor or several."""
    given = tensors if isinstance(tensors, list | tuple) else [tensors]
    return [one.grad_fn for one in given if is_tensor(one) and one.grad_fn is not None]


def feeders_of(node: Any) -> list[Any]:
    return [feeder for feeder, _ in node.next_functions if feeder is not None]


def saved_names(node: Any, prefix: str) -> list[str]:
    """The attributes of such nodes by which they tell what they saved."""
    key = node.name(), prefix
    if key not in _names:
        _names[key] = [name for name in dir(node) if name.startswith(prefix)]
    return _names[key]


def nodes_behind(nodes: Iterable[Any], most: int) -> Iterator[Any]:
    """These and those that feed them, nearer ones first, each once; no further once so many were met."""
    waiting = list(dict.fromkeys(nodes))
    seen = set(waiting)
    for node in waiting:
        yield node
        new = [one for one in dict.fromkeys(feeders_of(node)) if one not in seen] if len(seen) < most else []
        seen.update(new)
        waiting += new


def living(kind: type[Kind]) -> Iterator[Kind]:
    """Every object of a class that there is; a search of the whole heap, which takes tens of milliseconds.

    All others are let go at once: of a tensor that C++ frees while Python has it, torch before 2.10 warns.
    """
    yield from [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]  # isinstance wakes lazy objects


def learning_rate_of(optimizer: torch.optim.Optimizer) -> float | None:
    """The first group's; where that is 0, the largest, so that 0 says that none learns.

    Returns None if one that matters is a tensor on a device, which is left alone.
    """
    first, *others = (group.get("lr") for group in optimizer.param_groups)
    rate = _number_in(first)
    if rate != 0.0:
        return rate
    rates = [_number_in(one) for one in others]
    return None if None in rates else max([rate, *filter(None, rates)])


def _number_in(rate: object) -> float | None:
    if type(rate) is torch.Tensor and rate.is_cpu and rate.numel() == 1:
        return float(read_value(rate))
    return float(rate) if isinstance(rate, int | float) else None


def fill_norm(record: StepRecord, numbers: StepNumbers, norm: float | None) -> None:
    """An optimizer that guards itself skips a step whose norm is not finite."""
    is_bad = norm is not None and not math.isfinite(norm)
    record.gradient_norm = spelled(norm)
    record.is_skipped |= numbers.is_guarded and is_bad


def weighted_losses(tensors: object, gradients: object) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """Of what `torch.autograd.backward` is called with: the losses of one number, each with what multiplies it.

    None if one of them has its parts on several ranks: its value takes a collective.
    """
    losses = tensors if isinstance(tensors, list | tuple) else (tensors,)
    given = gradients if isinstance(gradients, list | tuple) else (gradients,)
    if gradients is None:
        given = (None,) * len(losses)
    pairs = zip(losses, given, strict=False)  # torch complains where there are more of one
    if first_in_parts(losses) is not None:
        return []
    return [
        (loss, None if gradient is None else local_part(gradient))
        for loss, gradient in pairs
        if _is_number(loss) and (gradient is None or _is_number(gradient))
    ]


def first_in_parts(losses: object) -> torch.Tensor | None:
    """Returns the first of these tensors whose parts lie on several ranks."""
    given = losses if isinstance(losses, list | tuple) else (losses,)
    return next((one for one in given if is_tensor(one) and not is_whole(one)), None)


def _is_number(value: object) -> TypeGuard[torch.Tensor]:
    return (
        is_tensor(value)
        and (type(value).__torch_dispatch__ is torch.Tensor.__torch_dispatch__ or is_of_torch(value))  # as DTensor
        and not isinstance(value, FakeTensor)  # it has no value
        and value.numel() == 1
        and not value.is_complex()
        and is_whole(value)
    )


def is_whole(tensor: torch.Tensor) -> bool:
    """True if every rank has all of it; a DTensor may have its parts on several."""
    placements = _placements_of(tensor)
    return all(one.is_replicate() for one in placements) and type(local_part(tensor)).__name__ != WAITING


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Returns what this rank has of a DTensor, without an operation of autograd; other tensors as they are."""
    is_distributed = bool(_placements_of(tensor))
    return tensor._local_tensor if is_distributed else tensor  # type: ignore[attr-defined]


def _placements_of(tensor: torch.Tensor) -> Sequence[Any]:
    return getattr(tensor, "placements", ()) if is_of_torch(tensor) else ()


def is_a_mode_on() -> bool:
    """Whether the program has what torch does in this thread pass through functions of its own."""
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._len_torch_function_stack() > 0


@contextlib.contextmanager
def outside_modes() -> Iterator[None]:
    """Our reading of values is not the program's: its modes, which may count or forbid such, do not see it."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        yield


def is_plain(gradient: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    """A sharded gradient (DTensor) would start a collective, a sparse one has no such norm."""
    if gradient is None:
        return False
    return type(gradient) is torch.Tensor and gradient.layout == torch.strided and gradient.is_floating_point()


def is_set(found_inf: object) -> bool:
    """Whether a scaler has told the optimizer to skip this step; False where only the device knows."""
    return type(found_inf) is torch.Tensor and found_inf.is_cpu and bool(read_value(found_inf))


def is_read_late(tensor: torch.Tensor) -> bool:
    """Whether it lies on a device whose values can be copied without waiting; those of others are left alone."""
    return tensor.is_cuda


def global_norm(gradients: list[torch.Tensor]) -> float:
    with torch.no_grad():
        return root_of_squares(read_value(norm) for norm in _norms(gradients))


def device_norms(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same as a scalar on each of their devices, so that nobody waits for it: together they are of all.

    What it takes there for the moment, some MiB at most, lies in what the backward pass has freed.
    """
    with torch.no_grad():
        by_device = defaultdict[torch.device, list[torch.Tensor]](list)
        for gradient in gradients:
            by_device[gradient.device].append(gradient)
        norms = [[norm.to(torch.float32) for norm in _norms(group)] for group in by_device.values()]
        return [torch.linalg.vector_norm(torch.stack(of_group)) for of_group in norms]


def _norms(gradients: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Each gradient's own; in float32 where one is of half precision, whose norm would overflow it."""
    dtypes = {gradient.dtype for gradient in gradients}
    if torch.float64 in dtypes:
        return [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in gradients]
    return torch._foreach_norm(gradients, 2, dtype=None if dtypes == {torch.float32} else torch.float32)


def root_of_squares(values: Iterable[float]) -> float:
    """NaN where one of them is NaN, which `math.hypot` would hide behind an Inf."""
    return math.sqrt(sum(value * value for value in values))


WAITING = "AsyncCollectiveTensor"
"""A local part whose collective is under way: to read it is to wait for the other ranks."""

MAX_RECENT = 1000
"""Scaled losses of one update whose place in autograd's graph is known."""

MAX_OPERATIONS = 16
"""Between them and what backward is called on, such as a sum and a division."""


class ScaledLosses:
    """Those that are alive, and where the last ones stand in autograd's graph."""

    def __init__(self) -> None:
        self.by_id: dict[int, tuple[TensorWeakRef, torch.Tensor]] = {}
        """By the scaled one's `id`, itself and what it was before."""
        self._recent: deque[int] = deque(maxlen=MAX_RECENT)
        """Autograd's sequence numbers of the multiplications: its nodes would keep the graph alive."""
        self._scale: torch.Tensor | None = None
        self.is_used_up = False
        """Whether the update that they were for is over, and the scale may have changed."""

    def note(self, outputs: object, scaled: object, scale: object) -> None:
        """`GradScaler.scale` was given `outputs`, a tensor or several, and gave `scaled`."""
        if self.is_used_up:
            self._forget_dead()
        if isinstance(outputs, list | tuple) and isinstance(scaled, list | tuple):
            for output, of_it in zip(outputs, scaled, strict=False):
                self.note(output, of_it, scale)
        elif isinstance(outputs, torch.Tensor) and isinstance(scaled, torch.Tensor):
            self._scale = scale if isinstance(scale, torch.Tensor) else None
            if outputs.numel() == 1:
                if len(self.by_id) >= MAX_RECENT:  # nobody calls `update`
                    self._forget_dead()
                self.by_id[id(scaled)] = TensorWeakRef(scaled), outputs.detach()
            if scaled.grad_fn is not None:
                self._recent.append(scaled.grad_fn._sequence_nr())

    def _forget_dead(self) -> None:
        self.is_used_up = False
        self._recent.clear()
        for key, (scaled, _) in list(self.by_id.items()):
            if scaled() is None:
                del self.by_id[key]

    def unscaled(self, given: torch.Tensor) -> torch.Tensor:
        """Its local part as it was before it was scaled; what was made of a scaled one, such as a mean, is divided."""
        known = self.by_id.get(id(given))
        if known is not None and known[0]() is given:
            return local_part(known[1])
        loss = local_part(given)
        if self.is_used_up or not self._recent or self._scale is None or self._scale.device != loss.device:
            return loss
        return loss if set(self._recent).isdisjoint(self._made_of(given)) else loss.detach() / self._scale

    def _made_of(self, loss: torch.Tensor) -> Iterator[int]:
        """The last operations that it was made by, none from before the first of the scaled losses."""
        first, waiting = min(self._recent), deque([loss.grad_fn])
        for _ in range(MAX_OPERATIONS):
            node = waiting.popleft() if waiting else None
            if node is None:
                return
            yield _number_of(node)
            waiting.extend(made for made in feeders_of(node) if _number_of(made) >= first)


def _number_of(node: Any) -> int:
    number: int = node._sequence_nr()
    return number
