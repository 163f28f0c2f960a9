"""One device's recorded history, and what its memory looked like before it began.

A snapshot tells of the end, and its trace of what led there: walked backwards, it gives the state at the first event.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import zip_longest

from efprof.artifacts.snapshot import DEFAULT_POOL, Entry, Frames, Segment, Settings, Snapshot
from efprof.facts.allocator.rules import SMALL_BYTES, SMALL_SEGMENT_BYTES, is_small, rounded_bytes
from efprof.facts.allocator.settings import AllocatorSettings, recorded_settings
from efprof.model import NotRecorded

HOW_TO_RECORD = (
    "record it with 'efprof record -- COMMAND', or call "
    "torch.cuda.memory._record_memory_history(max_entries=1_000_000, "
    'stacks="python") before the model is built and torch.cuda.memory._dump_snapshot("memory.pickle") at the end.'
)

MAX_LOST_SHARE = 0.01
"""Of the events, those that do not fit what the snapshot says of the end: an event or two of another thread may have
come while the snapshot was taken."""


@dataclass(kw_only=True, slots=True)
class Extent:
    """Memory from the driver: a segment, or a mapped stretch of an expandable one."""

    address: int
    num_bytes: int
    stream: int
    is_small: bool
    private_id: tuple[int, int] = DEFAULT_POOL
    is_expandable: bool = False

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.num_bytes


@dataclass(kw_only=True, slots=True)
class LiveBlock:
    """A block that somebody had before the first event; `size` is None where no event tells."""

    address: int
    requested: int
    size: int | None
    stream: int
    private_id: tuple[int, int] = DEFAULT_POOL
    frames: Frames = None
    """Where it was asked for, if it is still there at the end; the file does not tell of others."""


@dataclass(kw_only=True, slots=True)
class History:
    """The events of a device in order, and the state before them."""

    device: int
    entries: list[Entry]
    settings: AllocatorSettings
    configuration: str = ""
    extents: list[Extent] = field(default_factory=list)
    """Before the first event, by address."""
    live: list[LiveBlock] = field(default_factory=list)
    """Before the first event, by address."""
    private: list[Extent] = field(default_factory=list)
    """Those at the end that belong to a private pool, by address."""

    def private_id_of(self, entry: Entry) -> tuple[int, int]:
        """The private pool that a request was served from, as far as the file tells: torch names it since 2.12."""
        if entry.pool_id is not None:
            return entry.pool_id
        index = bisect_right(self.private, entry.addr, key=lambda extent: extent.address) - 1
        is_inside = index >= 0 and entry.addr < self.private[index].end
        return self.private[index].private_id if is_inside else DEFAULT_POOL


def devices_of(snapshot: Snapshot) -> list[int]:
    """Those that had memory, or a history."""
    traced = {number for number, trace in enumerate(snapshot.device_traces) if trace}
    return sorted(traced | {segment.device for segment in snapshot.segments})


def history_of(snapshot: Snapshot, device: int) -> History:
    """The history of one device; raises NotRecorded where the file has none that could be followed."""
    entries = snapshot.device_traces[device] if 0 <= device < len(snapshot.device_traces) else []
    segments = [segment for segment in snapshot.segments if segment.device == device]
    if sum(entry.action == "alloc" for entry in entries) == 0:
        raise NotRecorded(f"its history holds no allocation, so nothing can be replayed; {HOW_TO_RECORD}")
    settings = _settings(snapshot.settings, segments, entries)
    configuration = snapshot.settings.configuration if snapshot.settings else ""
    history = History(device=device, entries=entries, settings=settings, configuration=configuration)
    extents = _Extents(segments)
    history.private = [extent for extent in extents.by_address() if extent.private_id != DEFAULT_POOL]
    num_lost = _walk_back(history, extents, segments)
    if num_lost > MAX_LOST_SHARE * len(entries):
        raise NotRecorded(
            f"its events do not fit its segments ({num_lost} of {len(entries)} tell of memory that is not there), as "
            f"in a file that was edited or made by hand; {HOW_TO_RECORD}"
        )
    history.extents = extents.by_address()
    return history


def _settings(recorded: Settings | None, segments: list[Segment], entries: list[Entry]) -> AllocatorSettings:
    is_expandable = any(segment.is_expandable for segment in segments) or any(
        entry.action == "segment_map" for entry in entries
    )
    return recorded_settings(recorded, is_expandable=is_expandable)


class _Extents:
    """Memory from the driver while the events are undone."""

    def __init__(self, segments: list[Segment]) -> None:
        self._by_address = {segment.address: _extent_of(segment) for segment in segments}
        self._addresses = sorted(self._by_address)

    def by_address(self) -> list[Extent]:
        return [self._by_address[address] for address in self._addresses]

    def holding(self, address: int) -> Extent | None:
        """The one that has this address."""
        index = bisect_right(self._addresses, address) - 1
        extent = self._by_address[self._addresses[index]] if index >= 0 else None
        return extent if extent is not None and address < extent.end else None

    def add(self, extent: Extent) -> None:
        """It was there before the event; one that is mapped joins its neighbours."""
        if extent.is_expandable:
            extent = self._joined(extent)
        self._insert(extent)

    def remove(self, address: int, num_bytes: int) -> bool:
        """It was not there before the event; False where it is not there after it either."""
        extent = self.holding(address)
        if extent is None or address + num_bytes > extent.end:
            return False
        self._delete(extent)
        if extent.address < address:
            self._insert(_cut(extent, extent.address, address))
        if address + num_bytes < extent.end:
            self._insert(_cut(extent, address + num_bytes, extent.end))
        return True

    def _joined(self, extent: Extent) -> Extent:
        before, after = self.holding(extent.address - 1), self._by_address.get(extent.end)
        start, end = extent.address, extent.end
        if before is not None and _are_alike(before, extent):
            self._delete(before)
            start = before.address
        if after is not None and _are_alike(after, extent):
            self._delete(after)
            end = after.end
        return _cut(extent, start, end)

    def _insert(self, extent: Extent) -> None:
        self._addresses.insert(bisect_right(self._addresses, extent.address), extent.address)
        self._by_address[extent.address] = extent

    def _delete(self, extent: Extent) -> None:
        del self._addresses[bisect_right(self._addresses, extent.address) - 1]
        del self._by_address[extent.address]


def _extent_of(segment: Segment) -> Extent:
    return Extent(
        address=segment.address, num_bytes=segment.total_size, stream=segment.stream,
        is_small=segment.segment_type == "small", private_id=segment.segment_pool_id,
        is_expandable=segment.is_expandable,
    )  # fmt: skip


def _are_alike(one: Extent, other: Extent) -> bool:
    return one.is_expandable and one.stream == other.stream and one.is_small == other.is_small


def _cut(extent: Extent, start: int, end: int) -> Extent:
    return Extent(
        address=start, num_bytes=end - start, stream=extent.stream, is_small=extent.is_small,
        private_id=extent.private_id, is_expandable=extent.is_expandable,
    )  # fmt: skip


def _walk_back(history: History, extents: _Extents, segments: list[Segment]) -> int:
    """Undo every event; returns how many there was nothing to undo of."""
    live = {
        block.address: LiveBlock(
            address=block.address, requested=block.requested_size or block.size, size=block.size,
            stream=segment.stream, private_id=segment.segment_pool_id, frames=block.frames,
        )
        for segment in segments for block in segment.blocks
        if block.is_active and block.address is not None
    }  # fmt: skip
    num_lost = 0
    for index in range(len(history.entries) - 1, -1, -1):
        entry = history.entries[index]
        if entry.action == "alloc":
            if live.pop(entry.addr, None) is None:
                num_lost += entry.size > 0
            elif extents.holding(entry.addr) is None:
                num_lost += 1
        elif entry.action == "free_completed":
            live[entry.addr] = LiveBlock(
                address=entry.addr, requested=entry.size, size=None, stream=entry.stream,
                private_id=entry.pool_id or DEFAULT_POOL,
            )  # fmt: skip
        elif entry.action in {"segment_alloc", "segment_map"}:
            num_lost += not extents.remove(entry.addr, entry.size)
        elif entry.action in {"segment_free", "segment_unmap"}:
            extents.add(_released(entry, history.settings))
    history.live = [live[address] for address in sorted(live)]
    for block in history.live:
        extent = extents.holding(block.address)
        if extent is not None:
            block.private_id = extent.private_id
    _size_live(history, extents)
    return num_lost


def _released(entry: Entry, settings: AllocatorSettings) -> Extent:
    """What an event says was given back, as it was before."""
    is_expandable = entry.action == "segment_unmap"
    is_one_small = entry.size == SMALL_SEGMENT_BYTES
    if is_expandable:
        is_one_small = entry.size % settings.large_segment_bytes != 0
    return Extent(
        address=entry.addr, num_bytes=entry.size, stream=entry.stream, is_small=is_one_small,
        private_id=entry.pool_id or DEFAULT_POOL, is_expandable=is_expandable,
    )  # fmt: skip


def _size_live(history: History, extents: _Extents) -> None:
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
        if extent is None or is_small(block.size) or history.settings.expandable_segments:
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
