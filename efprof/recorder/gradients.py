"""What is asked of losses and gradients: their values and norms, and whether they can be read."""

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeGuard

import torch
from torch._subclasses.fake_tensor import FakeTensor

# Before the waiting_calls collector wraps them: our own reads are not the user's.
read_value = torch.Tensor.item
read_values = torch.Tensor.tolist


def weighted_losses(tensors: object, gradients: object) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """Of what `torch.autograd.backward` is called with: the losses of one number, each with what multiplies it."""
    losses = tensors if isinstance(tensors, list | tuple) else (tensors,)
    given = gradients if isinstance(gradients, list | tuple) else (gradients,)
    if gradients is None:
        given = (None,) * len(losses)
    pairs = zip(losses, given, strict=False)  # torch complains where there are more of one
    return [
        (loss, gradient) for loss, gradient in pairs if _is_number(loss) and (gradient is None or _is_number(gradient))
    ]


def _is_number(value: object) -> TypeGuard[torch.Tensor]:
    return (
        isinstance(value, torch.Tensor)
        and not isinstance(value, FakeTensor)  # it has no value
        and value.numel() == 1
        and not value.is_complex()
    )


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


def answers_late(tensor: torch.Tensor) -> bool:
    """Whether it lies on a device whose values can be copied without waiting; those of others are left alone."""
    return tensor.is_cuda


def global_norm(gradients: list[torch.Tensor]) -> float:
    """The global L2 norm of gradients on the CPU."""
    with torch.no_grad():
        return root_of_squares(read_value(norm) for norm in _norms(gradients))


def device_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """The same as a scalar on the device, so that nobody waits for it."""
    with torch.no_grad():
        device = gradients[0].device
        norms = [norm.to(device, torch.float32) for norm in _norms(gradients) if norm.device == device]
        norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return norm


def _norms(gradients: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Each gradient's own; in float32 where one is of half precision, whose norm would overflow it."""
    dtypes = {gradient.dtype for gradient in gradients}
    if torch.float64 in dtypes:
        return [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in gradients]
    return torch._foreach_norm(gradients, 2, dtype=None if dtypes == {torch.float32} else torch.float32)


def root_of_squares(values: Iterable[float]) -> float:
    """NaN where one of them is NaN, which `math.hypot` would hide behind an Inf."""
    return math.sqrt(sum(value * value for value in values))
