"""CUDA's caching allocator without the CUDA: where each block would lie, and what would be asked of the driver.

The functions follow those of c10/cuda/CUDACachingAllocator.cpp (torch 2.1 to 2.15), and keep its known bug: after
memory was released the pools are not searched again (pytorch/pytorch#189504).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

from efprof.artifacts.snapshot import DEFAULT_POOL, PoolId
from efprof.facts.allocator.blocks import Block, Pool, PoolKey, Range, cut_off, merge, part_of, split
from efprof.facts.allocator.settings import (
    MIN_BLOCK_BYTES,
    SMALL_BYTES,
    AllocatorSettings,
    is_small,
    page_bytes,
    rounded_bytes,
    segment_bytes,
)

NewRange = Callable[[int], int]
"""Where the driver puts a new range of so many bytes."""

RANGE_BYTES = 1 << 40
"""The addresses that an expandable segment has: more than any device has memory, so that it never needs a second one.

Torch reserves an eighth more than the device has; they can only run out on a full device whose memory lies in pieces.
"""


@dataclass(kw_only=True, slots=True)
class Calls:
    """What was asked of the driver: segments or mapped ranges, and what went back to it; and retries."""

    num_taken: int = 0
    num_returned: int = 0
    num_retries: int = 0


class CachingAllocator:
    """`capacity` is what the device has for it, in bytes; None where nobody knows."""

    def __init__(self, settings: AllocatorSettings, new_range: NewRange, *, capacity: int | None = None) -> None:
        self.settings = settings
        self.reserved = self.allocated = self.peak_reserved = 0
        self.calls = Calls()
        self.on_growth: Callable[[int, int], None] | None = None
        """Called with the address and bytes of a new segment, or of what an expandable one maps."""
        self._new_range = new_range
        self._capacity = math.inf if capacity is None else capacity
        self._pools: dict[PoolKey, Pool] = {}
        self._rounded = cache(partial(rounded_bytes, settings=settings))
        """Of a size that is asked for: a program asks for few, and for each many times."""
        fraction = settings.memory_fraction
        self._allowed = int(fraction * capacity) if fraction and fraction < 1 and capacity else math.inf
        self._collects_garbage = self._allowed < math.inf and settings.garbage_collection_threshold > 0

    def pool(self, private_id: PoolId, *, is_small_pool: bool) -> Pool:
        key = private_id, is_small_pool
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = Pool(private_id, is_small=is_small_pool)
        return pool

    @property
    def pools(self) -> list[Pool]:
        return list(self._pools.values())

    @property
    def free_blocks(self) -> list[Block]:
        return [block for pool in self.pools for block in pool.free_blocks()]

    def malloc(
        self, requested: int, stream: int, private_id: PoolId = DEFAULT_POOL, *, has_searched: bool = False
    ) -> Block | None:
        """None where memory is short; `has_searched` where the free ones were looked through before the latest came."""
        size = self._rounded(requested)
        pool = self.pool(private_id, is_small_pool=is_small(size))
        block = None if has_searched else self._free_block(pool, size, stream)
        block = block or self._new_block(pool, size, stream)
        return block and self.hand_out(block, size, requested)

    def hand_out(self, block: Block, size: int, requested: int) -> Block:
        """The whole of a block that left its pool, or its lower part."""
        if self._should_split(block, size):
            block = split(block, size)
        block.is_allocated, block.requested = True, requested
        self.allocated += block.size
        return block

    def free(self, block: Block) -> None:
        block.is_allocated = False
        self.allocated -= block.size
        merge(block)
        block.pool.add(block)

    def release_cached(self) -> None:
        """What `torch.cuda.empty_cache()` does, and what is tried before a request fails."""
        for pool in self.pools:
            if pool.private_id != DEFAULT_POOL:  # of a CUDA graph, which may be replayed
                continue
            expandable = []
            for block in pool.free_blocks():
                if block.range.is_expandable:
                    expandable.append(block)
                elif block.is_whole_range:
                    self.release(block)
            for block in expandable:
                self.unmap(block, block.address, block.size)

    def release(self, block: Block) -> None:
        """Give a free block that is a whole segment back to the driver."""
        block.pool.remove(block)
        self.reserved -= block.size
        self.calls.num_returned += 1

    def unmap(self, block: Block, address: int, num_bytes: int) -> None:
        """Give back the whole pages of a free block that lie within these addresses."""
        pool, start, page = block.pool, block.range.address, block.range.page_bytes
        begin = start + -(-(address - start) // page) * page
        end = start + (address + num_bytes - start) // page * page
        if begin >= end:
            return
        pool.remove(block)
        if begin > block.address:
            pool.add(cut_off(block, begin - block.address))
        if end < block.address + block.size:
            after = part_of(block, end, block.address + block.size - end)
            after.place_after(block)
            pool.add(after)
        block.address, block.size, block.is_mapped = begin, end - begin, False
        self.reserved -= block.size
        self.calls.num_returned += 1
        merge(block)
        if not block.is_whole_range:  # else torch gives the addresses back as well
            pool.add(block)

    def map(self, block: Block, num_bytes: int) -> Block | None:
        """Put memory behind the beginning of an unmapped block, and merge it; None where there is no more."""
        pool, page = block.pool, block.range.page_bytes
        mapped = min(-(-num_bytes // page) * page, block.size)
        if not self._has_room(mapped):
            return None
        pool.remove(block)
        block.is_mapped = True
        if mapped < block.size:
            rest = part_of(block, block.address + mapped, block.size - mapped)
            rest.is_mapped = False
            rest.place_after(block)
            pool.add(rest)
            block.size = mapped
        address = block.address
        merge(block)
        pool.add(block)
        self._grew(address, mapped)
        return block

    # Finding a block.

    def _free_block(self, pool: Pool, size: int, stream: int) -> Block | None:
        """The best fit, if it is not too large to be handed out."""
        pool.num_lookups += self._collects_garbage
        index = pool.first_of(stream, size)
        block = pool.at(index, stream)
        if block is None:
            return None
        if block.range.is_expandable:
            # One at the growing end of its segment counts as large as it can grow.
            while (following := pool.at(index + 1, stream)) is not None and _room(following) < _room(block):
                index, block = index + 1, following
        limit = self.settings.max_split_bytes
        if limit is not None:
            if size < limit <= block.size:
                return None
            if size >= limit and block.size >= size + self.settings.oversize_slack_bytes:
                return None
        pool.remove(block)
        return block

    def _new_block(self, pool: Pool, size: int, stream: int) -> Block | None:
        """Ask the driver; where it has no more, release what nobody uses and ask again."""
        if self._collects_garbage:
            _collect_garbage(self, self._allowed)
        block = self._ask_driver(pool, size, stream)
        if block is None and _release_oversize(self, pool, size, stream):
            block = self._ask_driver(pool, size, stream)
        if block is None:
            self.release_cached()
            self.calls.num_retries += 1
            block = self._ask_driver(pool, size, stream)
        return block

    def _ask_driver(self, pool: Pool, size: int, stream: int) -> Block | None:
        num_bytes = segment_bytes(size, self.settings)
        if self.reserved + num_bytes > self._allowed:
            return None
        if self.settings.expandable_segments:
            return self._grow(pool, size, stream)
        if not self._has_room(num_bytes):
            return None
        address = self._new_range(num_bytes)
        self._grew(address, num_bytes)
        return Block(address, num_bytes, stream, pool, Range(address))

    def _grow(self, pool: Pool, size: int, stream: int) -> Block | None:
        """Map the first stretch of free and unmapped blocks that is long enough."""
        if size > RANGE_BYTES:
            return None
        block = self._growable(pool, size, stream)
        if not block.is_mapped and self.map(block, min(block.size, size)) is None:
            return None
        while block.size < size:
            following = block.following
            assert following is not None
            if self.map(following, min(size - block.size, following.size)) is None:
                return None
            block = following
        pool.remove(block)
        return block

    def _growable(self, pool: Pool, size: int, stream: int) -> Block:
        for block in pool.unmapped_of(stream):
            first = block
            if block.previous is not None and not block.previous.is_allocated:
                first = block.previous
            num_bytes = 0
            part: Block | None = first
            while part is not None and not part.is_allocated and num_bytes < size:
                num_bytes += part.size
                part = part.following
            if num_bytes >= size:
                return first
        page = page_bytes(self.settings, is_small_pool=pool.is_small)
        num_bytes = -(-RANGE_BYTES // page) * page
        address = self._new_range(num_bytes)
        block = Block(address, num_bytes, stream, pool, Range(address, page_bytes=page))
        block.is_mapped = False
        pool.add(block)
        return block

    def _should_split(self, block: Block, size: int) -> bool:
        """Whether what a request leaves of a block goes back to the pool."""
        remaining = block.size - size
        if block.pool.is_small or self.settings.expandable_segments:
            return remaining >= MIN_BLOCK_BYTES
        limit = self.settings.max_split_bytes
        return (limit is None or size < limit) and remaining > SMALL_BYTES

    # The device.

    def _has_room(self, num_bytes: int) -> bool:
        return self.reserved + num_bytes <= self._capacity

    def reserve(self, num_bytes: int) -> None:
        self.reserved += num_bytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _grew(self, address: int, num_bytes: int) -> None:
        self.reserve(num_bytes)
        self.calls.num_taken += 1
        if self.on_growth is not None:
            self.on_growth(address, num_bytes)


def _room(block: Block) -> int:
    """How large it can grow in place."""
    following = block.following
    return block.size + (following.size if following is not None and not following.is_mapped else 0)


def _release_oversize(allocator: CachingAllocator, pool: Pool, size: int, stream: int) -> bool:
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


def _collect_garbage(allocator: CachingAllocator, allowed_bytes: float) -> None:
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
