"""Where every block lies in its segment, at chosen instants of a recorded history."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from efprof.artifacts.snapshot import DEFAULT_POOL, Frames
from efprof.facts.allocator.blocks import Block
from efprof.facts.allocator.history import History
from efprof.facts.allocator.replay import Replayer
from efprof.model import StretchState


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A part of a segment; `site` is the line that asked for the block that it is of, None where no stack tells."""

    state: StretchState
    num_bytes: int
    site: str | None = None
    is_block: bool = False
    """Whether it is the first piece of a block: another one may follow, for its slack."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentLayout:
    """A segment, of an expandable one a mapped stretch, and its pieces by address, which fill it."""

    address: int
    is_small: bool
    is_expandable: bool
    is_private: bool
    pieces: tuple[Piece, ...]

    @property
    def num_bytes(self) -> int:
        """What the driver gave."""
        return sum(piece.num_bytes for piece in self.pieces)

    def bytes_of(self, state: StretchState) -> int:
        """What of it is in this state."""
        return sum(piece.num_bytes for piece in self.pieces if piece.state == state)


def layout_of(
    replayer: Replayer, history: History, index: int, site_of: Callable[[Frames], str | None]
) -> tuple[SegmentLayout, ...]:
    """All segments by address, as they are after the entry of this index, up to which the history was replayed."""
    return tuple(_layouts(replayer, _pending(history, index), site_of))


def _pending(history: History, index: int) -> set[int]:
    """Addresses that were given back, and may still wait for another stream."""
    latest = {
        entry.addr: entry.action
        for entry in history.entries[: index + 1]
        if entry.action in {"alloc", "free_requested"}
    }
    return {address for address, action in latest.items() if action == "free_requested"}


def _layouts(replayer: Replayer, pending: set[int], site_of: Callable[[Frames], str | None]) -> Iterator[SegmentLayout]:
    recorded = {block: address for address, block in replayer.blocks.items()}

    def pieces_of(block: Block) -> Iterator[Piece]:
        if not block.is_allocated:
            yield from _free_pieces(block)
            return
        address = recorded.get(block, block.address)
        yield from _block_pieces(block, site_of(replayer.frames.get(address)), is_pending=address in pending)

    for chain in _chains(replayer):
        first = chain[0]
        yield SegmentLayout(
            address=first.address,
            is_small=first.pool.is_small,
            is_expandable=first.range.is_expandable,
            is_private=first.pool.private_id != DEFAULT_POOL,
            pieces=tuple(piece for block in chain for piece in pieces_of(block)),
        )


def _chains(replayer: Replayer) -> Iterator[list[Block]]:
    """The blocks of each segment, of expandable ones of each stretch that is mapped."""
    free = [block for pool in replayer.allocator.pools for block in pool.free_blocks()]
    firsts = [
        block
        for block in {*replayer.blocks.values(), *free}
        if block.previous is None or not block.previous.is_mapped
    ]  # fmt: skip
    for first in sorted(firsts, key=lambda block: block.address):
        chain = [first]
        while (following := chain[-1].following) is not None and following.is_mapped:
            chain.append(following)
        yield chain


def _block_pieces(block: Block, site: str | None, *, is_pending: bool) -> Iterator[Piece]:
    if is_pending:
        yield Piece(state="pending", num_bytes=block.size, site=site, is_block=True)
        return
    requested = min(block.requested, block.size)
    yield Piece(state="used", num_bytes=requested, site=site, is_block=True)
    if requested < block.size:
        yield Piece(state="slack", num_bytes=block.size - requested, site=site)


def _free_pieces(block: Block) -> Iterator[Piece]:
    """What `empty_cache()` would give back of a free block, and what it would not: parts of pages."""
    start = released = 0
    if not block.range.is_expandable:
        released = block.size if block.is_whole_range else 0
    else:
        page, offset = block.range.page_bytes, block.address - block.range.address
        start = -offset % page
        released = max(0, (offset + block.size) // page * page - offset - start)
        start = start if released else 0
    pieces: list[tuple[StretchState, int]] = [
        ("stranded", start), ("releasable", released), ("stranded", block.size - start - released)
    ]  # fmt: skip
    yield from (Piece(state=state, num_bytes=num_bytes) for state, num_bytes in pieces if num_bytes)
