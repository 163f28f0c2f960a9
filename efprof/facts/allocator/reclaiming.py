"""What the allocator gives back to the driver by itself, before it asks for more or when it was refused."""

from typing import TYPE_CHECKING

from efprof.artifacts.snapshot import DEFAULT_POOL
from efprof.facts.allocator.blocks import Pool

if TYPE_CHECKING:
    from efprof.facts.allocator.caching_allocator import CachingAllocator


def release_oversize(allocator: "CachingAllocator", pool: Pool, size: int, stream: int) -> bool:
    """With a limit to splitting: release one block that is large enough, or several from the largest down."""
    limit = allocator.settings.max_split_bytes
    if limit is None:
        return False
    wanted = max(size, limit)
    index = pool.first_of(stream, wanted)
    block = pool.at(index, stream)
    if block is not None and not block.range.is_expandable:
        if not block.is_whole_range:
            return False
        allocator.release(block)
        return True
    released = 0
    while released < wanted:
        index -= 1
        block = pool.at(index, stream)
        if block is None or block.size < limit:
            break
        if not block.range.is_expandable and block.is_whole_range:
            released += block.size
            allocator.release(block)
    return released >= wanted


def collect_garbage(allocator: "CachingAllocator", allowed_bytes: int) -> None:
    """Release whole large segments that were free for longest, until reserved memory is below its threshold."""
    threshold = int(allocator.settings.garbage_collection_threshold * allowed_bytes)
    to_reclaim = allocator.reserved - threshold
    pool = allocator.pool(DEFAULT_POOL, is_small_pool=False)
    ages = {
        block: pool.num_lookups - block.free_since
        for block in pool.free_blocks()
        if block.is_whole_range and not block.range.is_expandable
    }
    while to_reclaim > 0 and ages:
        mean = sum(ages.values()) / len(ages)
        for block in [block for block, age in ages.items() if age >= mean]:
            to_reclaim -= block.size
            del ages[block]
            allocator.release(block)
