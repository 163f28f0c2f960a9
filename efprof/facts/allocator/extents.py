"""Memory from the driver, as it was between the events of a history."""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from efprof.artifacts.snapshot import DEFAULT_POOL, Entry, PoolId, Segment
from efprof.facts.allocator.settings import SMALL_SEGMENT_BYTES, AllocatorSettings, is_small, rounded_bytes

MAX_RANGE_BYTES = 1 << 39
"""More than the addresses of any expandable segment: an eighth above the memory of the largest device."""

Kind = tuple[PoolId, bool, int]
"""Private pool, whether its blocks are small, stream."""


@dataclass(kw_only=True, slots=True)
class Extent:
    """Memory from the driver: a segment, or a mapped stretch of an expandable one."""

    address: int
    num_bytes: int
    stream: int
    is_small: bool
    private_id: PoolId
    is_expandable: bool

    @property
    def end(self) -> int:
        return self.address + self.num_bytes

    @property
    def kind(self) -> Kind:
        """What expandable segments that share a range of addresses have in common."""
        return self.private_id, self.is_small, self.stream


class Extents:
    """Memory from the driver while the events are undone."""

    def __init__(self, segments: list[Segment]) -> None:
        self._by_address: dict[int, Extent] = {}
        self._addresses: list[int] = []
        self._mapped = Counter[Kind]()
        self.lows: dict[Kind, set[int]] = {}
        """By kind, where stretches began: the lowest tell where ranges begin, which last while any of it is mapped."""
        for segment in segments:
            self.add(Extent(
                address=segment.address, num_bytes=segment.total_size, stream=segment.stream,
                is_small=segment.segment_type == "small", private_id=segment.segment_pool_id,
                is_expandable=segment.is_expandable,
            ))  # fmt: skip

    def by_address(self) -> list[Extent]:
        return [self._by_address[address] for address in self._addresses]

    def holding(self, address: int) -> Extent | None:
        index = bisect_right(self._addresses, address) - 1
        extent = self._by_address[self._addresses[index]] if index >= 0 else None
        return extent if extent is not None and address < extent.end else None

    def add(self, extent: Extent) -> bool:
        """It was there before the event; one that is mapped joins its neighbours. False where something is there."""
        index = bisect_right(self._addresses, extent.end - 1) - 1
        if index >= 0 and self._by_address[self._addresses[index]].end > extent.address:
            return False
        if extent.is_expandable:
            self._mapped[extent.kind] += extent.num_bytes
            self.lows.setdefault(extent.kind, set()).add(extent.address)
            extent = self._joined(extent)
        self._insert(extent)
        return True

    def remove(self, address: int, num_bytes: int) -> bool:
        """It was not there before the event; False where it is not there after it either."""
        extent = self.holding(address)
        if extent is None or address + num_bytes > extent.end:
            return False
        self._delete(extent)
        if extent.is_expandable:
            self._mapped[extent.kind] -= num_bytes
            if not self._mapped[extent.kind]:  # there was another range before, or none
                self.lows.pop(extent.kind, None)
        if extent.address < address:
            self._insert(replace(extent, num_bytes=address - extent.address))
        if address + num_bytes < extent.end:
            end = address + num_bytes
            self._insert(replace(extent, address=end, num_bytes=extent.end - end))
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
        return replace(extent, address=start, num_bytes=end - start)

    def _insert(self, extent: Extent) -> None:
        insort(self._addresses, extent.address)
        self._by_address[extent.address] = extent

    def _delete(self, extent: Extent) -> None:
        del self._addresses[bisect_right(self._addresses, extent.address) - 1]
        del self._by_address[extent.address]


class Known:
    """Addresses in expandable segments of which the file tells the pool: what is nearest is of the same range."""

    def __init__(self, entries: Iterable[Entry], segments: Iterable[Segment], settings: AllocatorSettings) -> None:
        self._pools: dict[PoolId, tuple[bool, PoolId | None]] = {
            (entry.stream, entry.addr): (is_small(rounded_bytes(entry.size, settings)), entry.pool_id)
            for entry in entries
            if entry.action in {"alloc", "free_completed"}
        }
        for segment in segments:
            if segment.is_expandable:
                found = segment.segment_type == "small", segment.segment_pool_id
                for address in (segment.address, segment.address + segment.total_size - 1):
                    self._pools[segment.stream, address] = found
        self._places = sorted(self._pools)

    def pool_of(self, entry: Entry) -> tuple[bool, PoolId]:
        """Whether it is one of small blocks, and its private id."""
        index = bisect_left(self._places, (entry.stream, entry.addr))
        around = [place for place in self._places[max(0, index - 1) : index + 1] if place[0] == entry.stream]
        nearest = min(around, key=lambda place: abs(place[1] - entry.addr), default=None)
        if nearest is None or abs(nearest[1] - entry.addr) >= MAX_RANGE_BYTES:
            return False, entry.private_id
        is_one_small, private_id = self._pools[nearest]
        return is_one_small, entry.pool_id or private_id or DEFAULT_POOL


def released_extent(entry: Entry, settings: AllocatorSettings, known: Known) -> Extent:
    """What an event says was given back, as it was before."""
    is_expandable = entry.action == "segment_unmap"
    is_one_small, private_id = entry.size == SMALL_SEGMENT_BYTES, entry.private_id
    if is_expandable:
        is_one_small, private_id = known.pool_of(entry)
        is_one_small = is_one_small or entry.size % settings.large_segment_bytes != 0
    return Extent(
        address=entry.addr, num_bytes=entry.size, stream=entry.stream, is_small=is_one_small,
        private_id=private_id, is_expandable=is_expandable,
    )  # fmt: skip


def _are_alike(one: Extent, other: Extent) -> bool:
    return one.is_expandable and one.kind == other.kind
