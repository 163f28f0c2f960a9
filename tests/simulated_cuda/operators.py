"""What the simulation has to know of torch's operators: which make views, and for which the host has to wait."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

CPU = torch.device("cpu")
DEVICE, IS_CPU, IS_META = (vars(torch._C.TensorBase)[name].__get__ for name in ("device", "is_cpu", "is_meta"))
"""Torch's own, which see where a tensor is on the host."""
GARBAGE = -7.0
"""What is in memory that nothing has been written to yet."""
NEEDS_A_VALUE = frozenset(
    {
        "aten::_linalg_check_errors",
        "aten::_local_scalar_dense",
        "aten::_unique",
        "aten::_unique2",
        "aten::bincount",
        "aten::equal",
        "aten::masked_select",
        "aten::multinomial",
        "aten::nonzero",
        "aten::unique_consecutive",
        "aten::unique_dim",
        "aten::unique_dim_consecutive",
    }
)
"""Operators that return a value to the host, or a tensor whose size the device has to compute first."""
READ_BY_A_MASK = frozenset({"aten::index"})
WRITTEN_BY_A_MASK = frozenset({"aten::index_put", "aten::index_put_", "aten::_index_put_impl_"})
MASKS = (torch.bool, torch.uint8)


def is_waited_for(name: str, args: Any, kwargs: Any) -> bool:
    """True if the host waits for the device within this operator, as far as it gets there with tensors on one."""
    if name in NEEDS_A_VALUE:
        return True
    if name == "aten::repeat_interleave":
        return kwargs.get("output_size") is None
    if name in READ_BY_A_MASK:
        return _has_mask(args)
    return name in WRITTEN_BY_A_MASK and _has_mask(args) and not _is_filled(args)


def tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Of an operator's arguments or results, which are such, or lists of such."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def written_by(operator: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The arguments that it changes in place."""
    declared = operator._schema.arguments
    values = [*args, *(kwargs.get(argument.name) for argument in declared[len(args) :])]
    pairs = zip(declared, values, strict=False)
    return list(tensors_in(value for argument, value in pairs if argument.alias_info and argument.alias_info.is_write))


def is_view(operator: Any) -> bool:
    """Whether it gives another look at what it is given, for which nothing runs on a device."""
    returned = [value.alias_info for value in operator._schema.returns]
    return bool(returned) and all(alias is not None and not alias.is_write for alias in returned)


def readable(value: Any) -> Any:
    """What the host reads of it: where only shapes are computed, zeros."""
    return torch.zeros_like(value, device=CPU) if isinstance(value, torch.Tensor) and IS_META(value) else value


def garbage_like(value: Any) -> Any:
    """What is read where nothing has been written yet."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.fill_(GARBAGE)
    return GARBAGE if isinstance(value, float) else value


def _has_mask(args: Any) -> bool:
    return any(index.dtype in MASKS for index in tensors_in(args[1]))


def _is_filled(args: Any) -> bool:
    """Whether one number of the host's is written everywhere, which needs no count: `x[mask] = 0.0`."""
    return bool(args[2].numel() == 1 and args[2].is_cpu)
