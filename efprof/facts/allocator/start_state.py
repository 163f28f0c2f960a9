"""Puts a model of the allocator into the state that a recording began with."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from efprof.facts.allocator.blocks import Block, Pool, Range
from efprof.facts.allocator.caching_allocator import RANGE_BYTES, CachingAllocator
from efprof.facts.allocator.extents import Extent, Kind
from efprof.facts.allocator.history import History, LiveBlock
from efprof.facts.allocator.settings import page_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A block of a range, or a stretch of it that is free or unmapped."""

    address: int
    num_bytes: int
    state: Literal["allocated", "free", "unmapped"]
    requested: int = 0


def restore(allocator: CachingAllocator, history: History) -> dict[int, Block]:
    """The blocks that somebody had, by address."""
    blocks: dict[int, Block] = {}
    for extent in history.extents:
        if not extent.is_expandable:
            pool = allocator.pool(extent.private_id, is_small_pool=extent.is_small)
            pieces = _pieces(extent.address, [extent], history.live)
            blocks |= _take_over(allocator, Range(extent.address), pool, extent.stream, pieces)
    expandable = sorted((extent for extent in history.extents if extent.is_expandable), key=_kind_of)
    for (private_id, is_small, stream), group in groupby(expandable, _kind_of):
        pool = allocator.pool(private_id, is_small_pool=is_small)
        page, extents = page_bytes(allocator.settings, is_small_pool=is_small), list(group)
        start = min(extents[0].address, *history.lows.get((private_id, is_small, stream), ()))
        pieces = _pieces(start, extents, history.live, max(start + RANGE_BYTES, extents[-1].end))
        blocks |= _take_over(allocator, Range(start, page_bytes=page), pool, stream, pieces)
    return blocks


def _take_over(
    allocator: CachingAllocator, range_: Range, pool: Pool, stream: int, pieces: Iterable[Found]
) -> dict[int, Block]:
    """Take over a range as it was found, piece by piece; gives the blocks that somebody has, by address."""
    blocks: dict[int, Block] = {}
    previous: Block | None = None
    for piece in pieces:
        block = Block(piece.address, piece.num_bytes, stream, pool, range_)
        block.place_after(previous)
        previous = block
        block.is_mapped = piece.state != "unmapped"
        if not block.is_mapped:
            pool.add_unmapped(block)
            continue
        allocator.reserve(block.size)
        if piece.state == "free":
            pool.add(block)
            continue
        block.is_allocated, block.requested = True, piece.requested
        allocator.allocated += block.size
        blocks[block.address] = block
    return blocks


def _kind_of(extent: Extent) -> Kind:
    return extent.kind


def _pieces(start: int, extents: list[Extent], live: list[LiveBlock], end: int = 0) -> Iterator[Found]:
    """The blocks of these mapped stretches; nothing is mapped between them, nor behind them up to `end`."""
    at = start
    for extent in extents:
        if extent.address > at:
            yield Found(address=at, num_bytes=extent.address - at, state="unmapped")
            at = extent.address
        first, last = (
            bisect_left(live, edge, key=lambda block: block.address) for edge in (extent.address, extent.end)
        )
        for block in live[first:last]:
            assert block.size is not None
            if block.address < at or block.address + block.size > extent.end:
                continue  # an event that the file lost: what does not fit is left out
            if block.address > at:
                yield Found(address=at, num_bytes=block.address - at, state="free")
            yield Found(address=block.address, num_bytes=block.size, state="allocated", requested=block.requested)
            at = block.address + block.size
        if at < extent.end:
            yield Found(address=at, num_bytes=extent.end - at, state="free")
            at = extent.end
    if at < end:
        yield Found(address=at, num_bytes=end - at, state="unmapped")
