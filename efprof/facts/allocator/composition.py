"""What reserved memory consists of at one instant of a recorded history."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from efprof.artifacts.snapshot import Frames
from efprof.facts.allocator.blocks import Block
from efprof.facts.allocator.history import History
from efprof.facts.allocator.replay import Replayer
from efprof.facts.allocator.rules import rounded_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """What one line has at that instant; `stranding_bytes` is its share of the free memory in the segments it holds."""

    site: str | None
    num_bytes: int
    num_blocks: int
    stranding_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Instant:
    """The memory after the entry of this index, and who has it, by the line that asked, most bytes first."""

    index: int
    composition: Composition
    owners: tuple[Owner, ...]


def play_to(replayer: Replayer, history: History, index: int, site_of: Callable[[Frames], str | None]) -> Instant:
    """Go on up to and with the entry of this index; -1 is before the first."""
    replayer.play(index + 1)
    blocks = list(replayer.blocks.items())
    pending = _pending(history, index)
    stranding = _stranding(block for _, block in blocks)
    owners: defaultdict[str | None, list[int]] = defaultdict(lambda: [0, 0, 0])
    for address, block in blocks:
        sums = owners[site_of(replayer.frames.get(address))]
        sums[0] += block.size
        sums[1] += 1
        sums[2] += stranding.get(block, 0)
    return Instant(
        index=index,
        composition=_composition(history, replayer, pending),
        owners=tuple(
            Owner(site=site, num_bytes=sums[0], num_blocks=sums[1], stranding_bytes=sums[2])
            for site, sums in sorted(owners.items(), key=lambda item: -item[1][0])
        ),
    )


def fullest_index(history: History) -> int:
    """Of the request that was served when most was reserved, by the recording; -1 where that was at the beginning."""
    reserved = most = sum(extent.num_bytes for extent in history.extents)
    found, is_higher = -1, False
    for index, entry in enumerate(history.entries):
        if entry.action in {"segment_alloc", "segment_map"}:
            reserved += entry.size
            if reserved > most:
                most, is_higher = reserved, True
        elif entry.action in {"segment_free", "segment_unmap"}:
            reserved -= entry.size
        elif is_higher and entry.action in {"alloc", "oom"}:
            found, is_higher = index, False
    return found


def _pending(history: History, index: int) -> set[int]:
    """Addresses of blocks that were given back and wait for another stream."""
    waiting: set[int] = set()
    for entry in history.entries[: index + 1]:
        if entry.action == "free_requested":
            waiting.add(entry.addr)
        elif entry.action in {"free_completed", "alloc"}:
            waiting.discard(entry.addr)
    return waiting


def _composition(history: History, replayer: Replayer, pending: set[int]) -> Composition:
    requested = rounding = slack = waiting = 0
    for address, block in replayer.blocks.items():
        if address in pending:
            waiting += block.size
            continue
        rounded = min(block.size, rounded_bytes(block.requested, history.settings))
        requested += block.requested
        rounding += rounded - block.requested
        slack += block.size - rounded
    stranded = releasable = largest = 0
    for pool in replayer.allocator.pools:
        for block in pool.free_blocks():
            released = _releasable(block)
            releasable += released
            stranded += block.size - released
            largest = max(largest, block.size)
    return Composition(
        reserved_bytes=replayer.allocator.reserved,
        requested_bytes=requested,
        rounding_bytes=rounding,
        slack_bytes=slack,
        pending_bytes=waiting,
        stranded_bytes=stranded,
        releasable_bytes=releasable,
        largest_free_bytes=largest,
    )


def _releasable(block: Block) -> int:
    """What `empty_cache()` would give back of a free block."""
    if not block.range.is_expandable:
        return block.size if block.is_whole_range else 0
    page, start = block.range.page_bytes, block.range.address
    first = -(-(block.address - start) // page)
    last = (block.address + block.size - start) // page
    return max(0, last - first) * page


def _stranding(blocks: Iterable[Block]) -> dict[Block, int]:
    """Each block's share, by size, of the free memory that its segment cannot give back."""
    by_range: defaultdict[int, list[Block]] = defaultdict(list)
    for block in blocks:
        by_range[id(block.range)].append(block)
    shares: dict[Block, int] = {}
    for neighbours in by_range.values():
        free = _free_in_chain(neighbours[0])
        used = sum(block.size for block in neighbours)
        for block in neighbours:
            shares[block] = free * block.size // max(1, used)
    return shares


def _free_in_chain(block: Block) -> int:
    first = block
    while first.previous is not None:
        first = first.previous
    total = 0
    part: Block | None = first
    while part is not None:
        if part.is_mapped and not part.is_allocated:
            total += part.size - _releasable(part)
        part = part.following
    return total
