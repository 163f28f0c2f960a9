"""How CUDA's caching allocator rounds a request, chooses a pool and sizes a segment.

Source: c10/cuda/CUDACachingAllocator.cpp of torch 2.1 to 2.13; proved by replaying what real programs recorded.
"""

from typing import Final

from efprof.facts.allocator.settings import MIB, NUM_INTERVALS, AllocatorSettings

MIN_BLOCK_BYTES: Final = 512
SMALL_BYTES: Final = 1 * MIB
"""The largest block of a small pool, and the least that is split off in a large one."""

SMALL_SEGMENT_BYTES: Final = 2 * MIB
MIN_LARGE_REQUEST_BYTES: Final = 10 * MIB
"""From here on a segment is as large as the request, in units of LARGE_UNIT_BYTES."""

LARGE_UNIT_BYTES: Final = 2 * MIB


def rounded_bytes(requested: int, settings: AllocatorSettings) -> int:
    """The size of the block that a request needs."""
    if requested < MIN_BLOCK_BYTES:
        return MIN_BLOCK_BYTES
    divisions = settings.divisions[min(max(requested.bit_length() - 21, 0), NUM_INTERVALS - 1)]
    if divisions > 1 and requested > MIN_BLOCK_BYTES * divisions:
        floor = 1 << (requested.bit_length() - 1)
        if floor == requested:
            return requested
        step = floor // divisions
        return -(-requested // step) * step if step else 2 * floor
    return -(-requested // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES


def is_small(rounded: int) -> bool:
    """Whether the block comes from the pool of small ones."""
    return rounded <= SMALL_BYTES


def segment_bytes(rounded: int, settings: AllocatorSettings) -> int:
    """What is asked of the driver where no free block serves."""
    if rounded <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded < MIN_LARGE_REQUEST_BYTES:
        return settings.large_segment_bytes
    return -(-rounded // LARGE_UNIT_BYTES) * LARGE_UNIT_BYTES


def page_bytes(settings: AllocatorSettings, *, is_small_pool: bool) -> int:
    """In units of this an expandable segment grows and shrinks."""
    return SMALL_SEGMENT_BYTES if is_small_pool else settings.large_segment_bytes
