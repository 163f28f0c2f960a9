"""The numbers of a tensor that a tracer sees: whether some are NaN or Inf, what lies where, in words for a report."""

import math
from collections.abc import Iterator

import torch
from torch.utils._pytree import tree_leaves

from efprof.artifacts.hunts import Operand


def plain(tensor: object) -> torch.Tensor | None:
    """A tensor whose numbers are here; of a DTensor, its own shard."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        tensor = getattr(tensor, "_local_tensor", None)
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        return None
    return tensor if tensor.untyped_storage().nbytes() or not tensor.numel() else None


def is_bad(tensor: torch.Tensor) -> bool:
    """Whether some of its numbers are NaN or Inf: their sum is, then, and of few others."""
    if not (tensor.numel() and (tensor.is_floating_point() or tensor.is_complex())):
        return False
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    real = real.to(torch.float32) if real.element_size() == 1 else real
    total = real.sum(dtype=torch.float64 if real.dtype == torch.float64 else torch.float32)
    return not math.isfinite(total.item()) and not bool(torch.isfinite(real).all())


def described(tensor: torch.Tensor) -> Operand:
    """Its name is where it lies, until somebody finds one."""
    told = Operand(
        name=f"@{key_of(tensor)}",
        shape=list(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        num_elements=tensor.numel(),
    )
    if not tensor.is_complex():
        real = tensor.detach().to(torch.float64)
        finite = real[torch.isfinite(real)]
        if finite.numel():
            told.low, told.high = float(finite.min()), float(finite.max())
        told.num_zero, told.num_nan, told.num_inf = (int(one.sum()) for one in (real == 0, real.isnan(), real.isinf()))
    return told


def key_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def is_whole(tensor: torch.Tensor) -> bool:
    return tensor.nbytes >= tensor.untyped_storage().nbytes()


def plain_in(value: object) -> Iterator[torch.Tensor]:
    leaves = tree_leaves(value) if isinstance(value, list | tuple | dict) else (value,)
    return (found for one in leaves if (found := plain(one)) is not None)


def is_zero_where_bad(given: torch.Tensor, made: torch.Tensor) -> bool:
    return given.shape == made.shape and bool((given[~torch.isfinite(made)] == 0).all())
