"""Puts a model of the allocator into the state that a recording began with."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import groupby

from efprof.facts.allocator.blocks import Block, Range
from efprof.facts.allocator.caching_allocator import CachingAllocator, Piece
from efprof.facts.allocator.history import Extent, History, Kind, LiveBlock
from efprof.facts.allocator.rules import page_bytes


def restore(allocator: CachingAllocator, history: History) -> dict[int, Block]:
    """The blocks that somebody had, by address."""
    blocks: dict[int, Block] = {}
    expandable = sorted((extent for extent in history.extents if extent.is_expandable), key=_kind_of)
    ranges = [[extent] for extent in history.extents if not extent.is_expandable]
    ranges += [sorted(group, key=lambda extent: extent.address) for _, group in groupby(expandable, _kind_of)]
    for extents in ranges:
        first = extents[0]
        pool = allocator.pool(first.private_id, is_small_pool=first.is_small)
        page = page_bytes(allocator.settings, is_small_pool=first.is_small) if first.is_expandable else 0
        start = history.heads.get(first.kind, first.address) if first.is_expandable else first.address
        pieces = _pieces(start, extents, history.live)
        if first.is_expandable:
            pieces = _with_addresses_to_grow_in(pieces, start + allocator.expandable_bytes(page))
        range_ = Range(start, page_bytes=page)
        blocks |= {block.address: block for block in allocator.restore(range_, pool, first.stream, pieces)}
    return blocks


def _kind_of(extent: Extent) -> Kind:
    return extent.kind


def _pieces(start: int, extents: list[Extent], live: list[LiveBlock]) -> Iterator[Piece]:
    """The blocks within these mapped stretches, in order; before and between them nothing is mapped."""
    at = start
    for extent in extents:
        if extent.address > at:
            yield Piece(address=at, num_bytes=extent.address - at, state="unmapped")
            at = extent.address
        for block in _within(live, extent):
            assert block.size is not None
            if block.address < at or block.address + block.size > extent.end:
                continue  # an event that the file lost: what does not fit is left out
            if block.address > at:
                yield Piece(address=at, num_bytes=block.address - at, state="free")
            yield Piece(address=block.address, num_bytes=block.size, state="allocated", requested=block.requested)
            at = block.address + block.size
        if at < extent.end:
            yield Piece(address=at, num_bytes=extent.end - at, state="free")
            at = extent.end


def _with_addresses_to_grow_in(pieces: Iterator[Piece], end: int) -> Iterator[Piece]:
    at = 0
    for piece in pieces:
        yield piece
        at = piece.address + piece.num_bytes
    if at < end:
        yield Piece(address=at, num_bytes=end - at, state="unmapped")


def _within(live: list[LiveBlock], extent: Extent) -> list[LiveBlock]:
    first = bisect_left(live, extent.address, key=lambda block: block.address)
    last = bisect_left(live, extent.end, key=lambda block: block.address)
    return live[first:last]
