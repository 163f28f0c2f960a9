"""Puts a model of the allocator right where a recording shows that it was wrong."""

from efprof.artifacts.snapshot import DEFAULT_POOL
from efprof.facts.allocator.blocks import Block, part_of, split
from efprof.facts.allocator.caching_allocator import CachingAllocator
from efprof.facts.allocator.rules import is_small, rounded_bytes


def place(
    allocator: CachingAllocator, address: int, requested: int, stream: int, private_id: tuple[int, int] = DEFAULT_POOL
) -> Block | None:
    """Serve a request at this address, if that is free; None where it is not."""
    size = rounded_bytes(requested, allocator.settings)
    pool = allocator.pool(private_id, is_small_pool=is_small(size))
    block = next(
        (
            block for block in pool.free_blocks()
            if block.stream == stream and block.address <= address <= block.address + block.size - size
        ), None,
    )  # fmt: skip
    if block is None:
        return None
    pool.remove(block)
    if block.address < address:
        front = part_of(block, block.address, address - block.address)
        front.place_before(block)
        pool.add(front)
        block.address, block.size = address, block.size - front.size
    if allocator.should_split(block, pool, size):
        block = split(block, size)
    block.is_allocated, block.requested = True, requested
    allocator.allocated += block.size
    return block


def widen(allocator: CachingAllocator, block: Block, num_bytes: int) -> None:
    """Move the end of a block into the free one behind it."""
    gap = block.following
    assert gap is not None
    assert not gap.is_allocated
    assert gap.size > num_bytes
    gap.pool.remove(gap)
    gap.address += num_bytes
    gap.size -= num_bytes
    gap.pool.add(gap)
    block.size += num_bytes
    allocator.allocated += num_bytes
