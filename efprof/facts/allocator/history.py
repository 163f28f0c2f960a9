"""One device's recorded history, and what its memory looked like before it began.

A snapshot tells of the end, and its trace of what led there: walked backwards, it gives the state at the first event.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from operator import attrgetter

from efprof.artifacts.snapshot import GROWTH, RELEASE, Entry, Frames, PoolId, Segment, Snapshot
from efprof.facts.allocator.blocks import Block, Range, link
from efprof.facts.allocator.caching_allocator import RANGE_BYTES, CachingAllocator
from efprof.facts.allocator.extents import Extent, Extents, Kind, Known, released_extent
from efprof.facts.allocator.settings import (
    SMALL_BYTES,
    AllocatorSettings,
    is_small,
    page_bytes,
    recorded_settings,
    rounded_bytes,
)
from efprof.model import NotRecorded

HOW_TO_RECORD = (
    "Record it with `efprof record -- COMMAND`, or call `torch.cuda.memory._record_memory_history("
    'max_entries=1_000_000, stacks="python")` before the model is built and '
    '`torch.cuda.memory._dump_snapshot("memory.pickle")` at the end.'
)

BEFORE: Frames = ()
"""Of a block from before the recording, when no stacks were kept; a thread without Python has an empty list."""

MAX_LOST_EVENTS = 2
MAX_LOST_SHARE = 0.01
"""Of the events, those that do not fit what the snapshot says of the end: an event or two of another thread may have
come while the snapshot was taken."""


@dataclass(kw_only=True, slots=True)
class LiveBlock:
    """A block that somebody had before the first event; `size` is None where no event tells."""

    address: int
    requested: int
    size: int | None
    stream: int
    private_id: PoolId
    frames: Frames = BEFORE
    """Where it was asked for, if it is still there at the end; the file does not tell of others."""


@dataclass(kw_only=True, slots=True)
class History:
    """The events of a device in order, and the state before them."""

    device: int
    entries: list[Entry]
    settings: AllocatorSettings
    configuration: str = ""
    """As the program's environment spelled the settings; empty where it set nothing, or the file does not say."""
    extents: list[Extent] = field(default_factory=list)
    """Before the first event, by address."""
    live: list[LiveBlock] = field(default_factory=list)
    """Before the first event, by address."""
    lows: dict[Kind, set[int]] = field(default_factory=dict)
    """Addresses that the expandable ranges of a kind are known to have, among them the lowest."""


def devices_of(snapshot: Snapshot) -> list[int]:
    """Those that had memory, or a history."""
    traced = {number for number, trace in enumerate(snapshot.device_traces) if trace}
    return sorted(traced | {segment.device for segment in snapshot.segments})


def history_of(snapshot: Snapshot, device: int) -> History:
    """The history of one device; raises NotRecorded where the file has none that could be followed."""
    entries = snapshot.device_traces[device] if 0 <= device < len(snapshot.device_traces) else []
    if not any(entry.action == "alloc" for entry in entries):
        newer = snapshot.newer and f"It {snapshot.newer} "
        raise NotRecorded(f"its history holds no allocation, so nothing can be replayed. {newer}{HOW_TO_RECORD}")
    return history_before(snapshot, device, entries)


def state_of(snapshot: Snapshot, device: int) -> History:
    """The end alone, as the file shows it, with a request that failed if nothing was asked for after it.

    Raises NotRecorded where no memory is there.
    """
    if not any(segment.device == device for segment in snapshot.segments):
        raise NotRecorded("it had no memory.")
    entries = snapshot.device_traces[device] if 0 <= device < len(snapshot.device_traces) else []
    asked = [entry for entry in entries if entry.action in {"oom", "alloc"}][-1:]
    return history_before(snapshot, device, [entry for entry in asked if entry.action == "oom"])


def history_before(snapshot: Snapshot, device: int, entries: list[Entry]) -> History:
    """The history that these entries are of a device as the snapshot shows it at their end; raises as `history_of`."""
    segments = [segment for segment in snapshot.segments if segment.device == device]
    settings = recorded_settings(snapshot.settings, is_expandable=any(segment.is_expandable for segment in segments))
    configuration = snapshot.settings.configuration if snapshot.settings else ""
    history = History(device=device, entries=entries, settings=settings, configuration=configuration)
    extents = Extents(segments)
    num_lost = _walk_back(history, extents, segments)
    if num_lost > max(MAX_LOST_EVENTS, MAX_LOST_SHARE * len(entries)):
        raise NotRecorded(
            f"its events do not fit its segments ({num_lost} of {len(entries)} tell of memory that is not there), as "
            "in a file that was made by hand, or where `skip_actions` left segment events out of the history. "
            f"{HOW_TO_RECORD}"
        )
    history.extents, history.lows = extents.by_address(), extents.lows
    return history


def _walk_back(history: History, extents: Extents, segments: list[Segment]) -> int:
    """Undo every event; returns how many there was nothing to undo of."""
    live = {
        block.address: LiveBlock(
            address=block.address, requested=block.requested_size or block.size, size=block.size,
            stream=segment.stream, private_id=segment.segment_pool_id, frames=block.frames or BEFORE,
        )
        for segment in segments for block in segment.blocks
        if block.is_active and block.address is not None
    }  # fmt: skip
    num_lost = 0
    is_known_needed = any(entry.action == "segment_unmap" for entry in history.entries)
    known = Known(history.entries if is_known_needed else (), segments, history.settings)
    for entry in reversed(history.entries):
        if entry.action == "free_completed":
            live[entry.addr] = LiveBlock(
                address=entry.addr, requested=entry.size, size=None, stream=entry.stream, private_id=entry.private_id
            )
        elif entry.action in RELEASE:
            num_lost += not extents.add(released_extent(entry, history.settings, known))
        elif entry.action == "alloc" or entry.action in GROWTH:
            extent = extents.holding(entry.addr)
            if extent is not None and entry.pool_id is None:
                entry.pool_id = extent.private_id
            if entry.action in GROWTH:
                num_lost += not extents.remove(entry.addr, entry.size)
            else:
                was_live = live.pop(entry.addr, None) is not None
                num_lost += extent is None if was_live else entry.size > 0
    history.live = [live[address] for address in sorted(live)]
    for block in history.live:
        extent = extents.holding(block.address)
        if extent is not None:
            block.private_id = extent.private_id
    _size_live(history, extents)
    return num_lost


def _size_live(history: History, extents: Extents) -> None:
    """Blocks of a large pool may have up to a MiB behind what was asked for, which no event tells.

    It belongs to the block where there is no more than that before the next one; a longer gap is free, unless
    something is placed within that MiB while the block lives: then the block ends there.
    """
    open_ended = {}
    for block, following in zip_longest(history.live, history.live[1:]):
        if block.size is not None:
            continue
        block.size = rounded_bytes(block.requested, history.settings)
        extent = extents.holding(block.address)
        if extent is None or is_small(block.size) or extent.is_expandable:
            continue
        if history.settings.max_split_bytes is not None and block.size >= history.settings.max_split_bytes:
            block.size = extent.end - block.address  # never split: it is a whole segment
            continue
        end = min(extent.end, following.address if following is not None else extent.end)
        slack = end - block.address - block.size
        if slack <= SMALL_BYTES:
            block.size += max(0, slack)
        else:
            open_ended[block.address] = block
    _look_ahead(history.entries, open_ended)


def _look_ahead(entries: list[Entry], open_ended: dict[int, LiveBlock]) -> None:
    """Find what is placed right behind a block while it lives."""
    addresses = sorted(open_ended)
    for entry in entries:
        if not open_ended:
            return
        if entry.action == "free_completed":
            open_ended.pop(entry.addr, None)
        elif entry.action == "alloc":
            index = bisect_right(addresses, entry.addr) - 1
            block = open_ended.get(addresses[index]) if index >= 0 else None
            if block is None or block.size is None:
                continue
            gap = entry.addr - block.address - block.size
            if 0 <= gap <= SMALL_BYTES:
                block.size += gap
                del open_ended[block.address]


def restore(allocator: CachingAllocator, history: History) -> dict[int, Block]:
    """Put the model into the state before the first event; the blocks that somebody had, by address."""
    blocks: dict[int, Block] = {}
    for extent in history.extents:
        if not extent.is_expandable:
            blocks |= _take_over(allocator, Range(extent.address), [extent], history.live, extent.end)
    kind_of = attrgetter("kind")
    expandable = sorted((extent for extent in history.extents if extent.is_expandable), key=kind_of)
    for kind, group in groupby(expandable, kind_of):
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
        link(previous, block)
        block.is_mapped = is_mapped
        allocator.reserve(block.size if is_mapped else 0)
        previous, at = block, until
        return block

    for extent in extents:
        if extent.address > at:
            pool.add(take(extent.address, is_mapped=False))
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
        pool.add(take(end, is_mapped=False))
    return blocks
