"""What a profiler's window tells of memory."""

from typing import Any

from efprof.artifacts.allocations import AllocationEvent


def allocation(at_ns: int, address: int, num_bytes: int, *stack: str, **fields: Any) -> AllocationEvent:
    """By these lines in the forward pass; negative bytes are given back."""
    defaults = {"operation": "aten::addmm", "forward_stack": (), "modules": (), "is_backward": False}
    times = {"time_ns": at_ns, "address": address, "num_bytes": num_bytes}
    return AllocationEvent(**{**times, "stack": stack, **defaults, **fields})
