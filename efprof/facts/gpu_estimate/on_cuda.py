"""What torch does on CUDA otherwise than on a CPU, in the same program, and what that does to a window's blocks."""

from collections.abc import Iterable

from efprof.facts.allocator.settings import MIN_BLOCK_BYTES
from efprof.facts.peak.live_memory import LiveWindow
from efprof.units import KIB, MIB

LOOP = "_single_tensor_"
"""In the names of the functions in which torch's optimizers go through parameters one by one. Their default on CUDA
works on lists (`foreach`, torch/optim/optimizer.py): what is made for each parameter is there for all at once."""

PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"})

CUBLAS_BYTES = (2 * 4096 + 8 * 16) * KIB
CUBLAS_HOPPER_BYTES = 32 * MIB
"""Of a workspace of cuBLAS before Hopper and from then on (torch 2.11, aten/src/ATen/cuda/CublasHandlePool.cpp). It
comes from the caching allocator and stays. The thread that trains has one, and autograd's has another."""


def num_cublas_workspaces(windows: Iterable[LiveWindow]) -> int:
    """One for each of the two threads that multiplies matrices."""
    events = (event for window in windows for event in window.events)
    return len({event.is_backward for event in events if event.operation in PRODUCTS})


def released_on_cuda(window: LiveWindow) -> list[int]:
    """As `released_at`, but what an optimizer's loop makes goes when its stage ends, as lists do.

    On a CPU an operation whose operand goes right after it makes another block. On lists it writes its result in place:
    the operand's block is left out.
    """
    events, released_at = window.events, window.released_at.tolist()
    found: list[int] = released_at.copy()
    for stretch in window.stretches:
        blocks = [
            block
            for block in range(stretch.first, stretch.end)
            if events[block].num_bytes >= MIN_BLOCK_BYTES  # smaller ones are numbers, which stay on the host
            and released_at[block] < len(events)
            and any(LOOP in site for site in events[block].stack)
        ]
        for block in blocks:
            found[block] = max(released_at[block], stretch.end - 1)
        for block, result, later in zip(blocks, blocks[1:], [*blocks[2:], stretch.end], strict=False):
            is_last_use = result < released_at[block] < later and events[block].num_bytes == events[result].num_bytes
            if is_last_use and events[block].operation != events[result].operation:
                found[block] = -1
    return found
