"""Puts a model of the allocator into the state that a recording began with."""

from bisect import bisect_left
from itertools import groupby

from efprof.facts.allocator.blocks import Block, Range
from efprof.facts.allocator.caching_allocator import RANGE_BYTES, CachingAllocator
from efprof.facts.allocator.extents import Extent, Kind
from efprof.facts.allocator.history import History, LiveBlock
from efprof.facts.allocator.settings import page_bytes


def restore(allocator: CachingAllocator, history: History) -> dict[int, Block]:
    """The blocks that somebody had, by address."""
    blocks: dict[int, Block] = {}
    for extent in history.extents:
        if not extent.is_expandable:
            blocks |= _take_over(allocator, Range(extent.address), [extent], history.live, extent.end)
    expandable = sorted((extent for extent in history.extents if extent.is_expandable), key=_kind_of)
    for kind, group in groupby(expandable, _kind_of):
        extents = list(group)
        page = page_bytes(allocator.settings, is_small_pool=extents[0].is_small)
        start = min(extents[0].address, *history.lows.get(kind, ()))
        end = max(start + RANGE_BYTES, extents[-1].end)
        blocks |= _take_over(allocator, Range(start, page_bytes=page), extents, history.live, end)
    return blocks


def _take_over(
    allocator: CachingAllocator, range_: Range, extents: list[Extent], live: list[LiveBlock], end: int
) -> dict[int, Block]:
    """Take over a range, in which these stretches are mapped, and nothing between them nor behind them up to `end`.

    Gives the blocks that somebody has, by address.
    """
    pool = allocator.pool(extents[0].private_id, is_small_pool=extents[0].is_small)
    blocks: dict[int, Block] = {}
    previous, at = None, range_.address

    def take(until: int, *, is_mapped: bool = True) -> Block:
        nonlocal previous, at
        block = Block(at, until - at, extents[0].stream, pool, range_)
        block.place_after(previous)
        block.is_mapped = is_mapped
        allocator.reserve(block.size if is_mapped else 0)
        previous, at = block, until
        return block

    for extent in extents:
        if extent.address > at:
            pool.add_unmapped(take(extent.address, is_mapped=False))
        first, last = (bisect_left(live, edge, key=lambda one: one.address) for edge in (extent.address, extent.end))
        for one in live[first:last]:
            assert one.size is not None
            if one.address < at or one.address + one.size > extent.end:
                continue  # an event that the file lost: what does not fit is left out
            if one.address > at:
                pool.add(take(one.address))
            block = blocks[one.address] = take(one.address + one.size)
            block.is_allocated, block.requested = True, one.requested
            allocator.allocated += block.size
        if at < extent.end:
            pool.add(take(extent.end))
    if at < end:
        pool.add_unmapped(take(end, is_mapped=False))
    return blocks


def _kind_of(extent: Extent) -> Kind:
    return extent.kind
