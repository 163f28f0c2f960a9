"""Where every block lies in its segment, what that adds up to, and who has it, at instants of a recorded history."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from efprof.artifacts.snapshot import GROWTH, RELEASE, Frames
from efprof.facts.allocator.blocks import Block
from efprof.facts.allocator.history import History
from efprof.facts.allocator.replay import Replayer
from efprof.facts.allocator.settings import rounded_bytes
from efprof.model import StretchState, frozen_dataclass

FREE = frozenset({"stranded", "releasable"})


@frozen_dataclass
class Piece:
    """A part of a segment; `site` is the line that asked for the block that it is of, None where no stack tells."""

    state: StretchState
    num_bytes: int
    site: str | None = None


@frozen_dataclass
class SegmentLayout:
    """A segment, of an expandable one a mapped stretch, and its pieces by address, which fill it."""

    address: int
    is_small: bool
    is_expandable: bool
    pieces: tuple[Piece, ...]

    @property
    def num_bytes(self) -> int:
        return sum(piece.num_bytes for piece in self.pieces)


@frozen_dataclass
class Composition:
    """Reserved bytes, taken apart; the parts add up to `reserved_bytes`.

    `rounding_bytes` makes requests multiples of 512 bytes or more; `slack_bytes` lies behind them since a large block
    is not split for less than a MiB; `pending_bytes` waits for another stream; `stranded_bytes` is free in segments
    that something else holds; `releasable_bytes` is free in whole segments or pages.
    """

    reserved_bytes: int
    requested_bytes: int
    rounding_bytes: int
    slack_bytes: int
    pending_bytes: int
    stranded_bytes: int
    releasable_bytes: int
    largest_free_bytes: int
    """The largest free block: no larger request can be served without the driver."""

    @property
    def free_bytes(self) -> int:
        """What the allocator itself has free, in pieces."""
        return self.stranded_bytes + self.releasable_bytes


@frozen_dataclass
class Owner:
    """What one line has at that instant; `stranding_bytes` is its share of the free memory in the segments it holds."""

    site: str | None
    num_bytes: int
    stranding_bytes: int


@frozen_dataclass
class Instant:
    """The memory after the entry of this index, segment by segment, and who has it, most bytes first."""

    index: int
    composition: Composition
    owners: tuple[Owner, ...]
    layouts: tuple[SegmentLayout, ...]


def play_to(replayer: Replayer, history: History, index: int, site_of: Callable[[Frames], str | None]) -> Instant:
    """Go on up to and with the entry of this index; -1 is before the first."""
    replayer.play(index + 1)
    latest = {
        entry.addr: entry.action
        for entry in history.entries[: index + 1]
        if entry.action in {"alloc", "free_requested"}
    }
    # Given back, and maybe still waiting for another stream.
    pending = {address for address, action in latest.items() if action == "free_requested"}
    recorded = {block: address for address, block in replayer.blocks.items()}

    def pieces_of(block: Block) -> Iterator[Piece]:
        if not block.is_allocated:
            yield from _free_pieces(block)
            return
        address = recorded.get(block, block.address)
        yield from _block_pieces(block, site_of(replayer.frames.get(address)), is_pending=address in pending)

    layouts = tuple(
        SegmentLayout(
            address=chain[0].address,
            is_small=chain[0].pool.is_small,
            is_expandable=chain[0].range.is_expandable,
            pieces=tuple(piece for block in chain for piece in pieces_of(block)),
        )
        for chain in _chains(replayer)
    )
    rounding_bytes = sum(
        min(block.size, rounded_bytes(block.requested, history.settings)) - block.requested
        for address, block in replayer.blocks.items()
        if address not in pending
    )
    return Instant(
        index=index,
        composition=_composition(replayer, layouts, rounding_bytes),
        owners=_owners(layouts),
        layouts=layouts,
    )


def fullest_index(history: History) -> int:
    """Of the request that was served when most was reserved, by the recording; -1 where that was at the beginning."""
    reserved = most = sum(extent.num_bytes for extent in history.extents)
    found, is_higher = -1, False
    for index, entry in enumerate(history.entries):
        if entry.action in GROWTH:
            reserved += entry.size
            if reserved > most:
                most, is_higher = reserved, True
        elif entry.action in RELEASE:
            reserved -= entry.size
        elif is_higher and entry.action in {"alloc", "oom"}:
            found, is_higher = index, False
    return found


def totals_of(layouts: Sequence[SegmentLayout]) -> Counter[StretchState]:
    totals = Counter[StretchState]()
    for layout in layouts:
        for piece in layout.pieces:
            totals[piece.state] += piece.num_bytes
    return totals


def _composition(replayer: Replayer, layouts: Sequence[SegmentLayout], rounding_bytes: int) -> Composition:
    totals = totals_of(layouts)
    free = (block.size for block in replayer.allocator.free_blocks)
    return Composition(
        reserved_bytes=replayer.allocator.reserved,
        requested_bytes=totals["used"],
        rounding_bytes=rounding_bytes,
        slack_bytes=totals["slack"] - rounding_bytes,
        pending_bytes=totals["pending"],
        stranded_bytes=totals["stranded"],
        releasable_bytes=totals["releasable"],
        largest_free_bytes=max(free, default=0),
    )


def _owners(layouts: Sequence[SegmentLayout]) -> tuple[Owner, ...]:
    """What is stranded in a segment is shared out among its blocks by their size."""
    sums = defaultdict[str | None, list[int]](lambda: [0, 0])
    for layout in layouts:
        totals = totals_of([layout])
        used = sum(num_bytes for state, num_bytes in totals.items() if state not in FREE)
        for piece in layout.pieces:
            if piece.state not in FREE:
                found = sums[piece.site]
                found[0] += piece.num_bytes
                found[1] += totals["stranded"] * piece.num_bytes // used
    return tuple(
        Owner(site=site, num_bytes=num_bytes, stranding_bytes=stranding_bytes)
        for site, (num_bytes, stranding_bytes) in sorted(sums.items(), key=lambda item: -item[1][0])
    )


def _chains(replayer: Replayer) -> Iterator[list[Block]]:
    """The blocks of each segment, of expandable ones of each stretch that is mapped."""
    firsts = [
        block
        for block in {*replayer.blocks.values(), *replayer.allocator.free_blocks}
        if block.previous is None or not block.previous.is_mapped
    ]  # fmt: skip
    for first in sorted(firsts, key=lambda block: block.address):
        chain = [first]
        while (following := chain[-1].following) is not None and following.is_mapped:
            chain.append(following)
        yield chain


def _block_pieces(block: Block, site: str | None, *, is_pending: bool) -> Iterator[Piece]:
    if is_pending:
        yield Piece(state="pending", num_bytes=block.size, site=site)
        return
    requested = min(block.requested, block.size)
    yield Piece(state="used", num_bytes=requested, site=site)
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
