"""Which memory an event tells that it was given back: the file names neither its pool nor the size of its blocks."""

from bisect import bisect_left
from collections.abc import Iterable

from efprof.artifacts.snapshot import DEFAULT_POOL, Entry, Segment
from efprof.facts.allocator.extents import Extent
from efprof.facts.allocator.rules import SMALL_SEGMENT_BYTES, is_small, rounded_bytes
from efprof.facts.allocator.settings import AllocatorSettings

MAX_RANGE_BYTES = 1 << 39
"""More than the addresses of any expandable segment: an eighth above the memory of the largest device."""


class Known:
    """Addresses in expandable segments of which the file tells the pool: what is nearest is of the same range."""

    def __init__(self, entries: Iterable[Entry], segments: Iterable[Segment], settings: AllocatorSettings) -> None:
        by_stream: dict[int, dict[int, tuple[bool, tuple[int, int] | None]]] = {}
        for entry in entries:
            if entry.action in {"alloc", "free_completed"}:
                is_one_small = is_small(rounded_bytes(entry.size, settings))
                by_stream.setdefault(entry.stream, {})[entry.addr] = is_one_small, entry.pool_id
        for segment in segments:
            if segment.is_expandable:
                for address in (segment.address, segment.address + segment.total_size - 1):
                    by_stream.setdefault(segment.stream, {})[address] = (
                        segment.segment_type == "small", segment.segment_pool_id,
                    )  # fmt: skip
        self._by_stream = {stream: (sorted(pools), pools) for stream, pools in by_stream.items()}

    def pool_of(self, entry: Entry) -> tuple[bool, tuple[int, int]]:
        """Whether it is one of small blocks, and its private id."""
        addresses, pools = self._by_stream.get(entry.stream, ([], {}))
        index = bisect_left(addresses, entry.addr)
        near = [one for one in addresses[max(0, index - 1) : index + 1] if abs(one - entry.addr) < MAX_RANGE_BYTES]
        if not near:
            return False, entry.pool_id or DEFAULT_POOL
        is_one_small, private_id = pools[min(near, key=lambda address: abs(address - entry.addr))]
        return is_one_small, entry.pool_id or private_id or DEFAULT_POOL


def released_extent(entry: Entry, settings: AllocatorSettings, known: Known) -> Extent:
    """What an event says was given back, as it was before."""
    is_expandable = entry.action == "segment_unmap"
    is_one_small, private_id = entry.size == SMALL_SEGMENT_BYTES, entry.pool_id or DEFAULT_POOL
    if is_expandable:
        is_one_small, private_id = known.pool_of(entry)
        is_one_small = is_one_small or entry.size % settings.large_segment_bytes != 0
    return Extent(
        address=entry.addr, num_bytes=entry.size, stream=entry.stream, is_small=is_one_small,
        private_id=private_id, is_expandable=is_expandable,
    )  # fmt: skip
