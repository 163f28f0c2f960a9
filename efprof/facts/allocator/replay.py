"""Replays a recorded history by the allocator's rules, and counts how often it says what really happened."""

from collections import deque
from dataclasses import dataclass

from efprof.artifacts.snapshot import Entry
from efprof.facts.allocator.caching_allocator import CachingAllocator
from efprof.facts.allocator.history import History
from efprof.facts.allocator.start_state import restore

MIN_TRUST = 0.99
"""Of addresses and segments that must be equal before a prediction is made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """How far the model told what the recording says. Segments are counted with what expandable ones mapped."""

    allocations: int
    addresses_equal: int
    segments: int
    segments_equal: int
    peak_reserved_recorded_bytes: int
    peak_reserved_replayed_bytes: int
    peak_allocated_bytes: int

    @property
    def match_share(self) -> float:
        """Of all addresses and segments, those that are equal."""
        return (self.addresses_equal + self.segments_equal) / max(1, self.allocations + self.segments)

    @property
    def is_trusted(self) -> bool:
        """Whether the model knows this program's allocator well enough to predict anything."""
        return self.match_share >= MIN_TRUST


def replay(history: History) -> Replay:
    """Replay a device's history from the state before its first event, with the addresses that the driver gave."""
    return _Replay(history).run()


class _Replay:
    def __init__(self, history: History) -> None:
        self._history = history
        self._allocator = CachingAllocator(history.settings, self._new_range)
        self._allocator.on_segment = self._allocator.on_map = self._compare
        self._given: deque[Entry] = deque()
        """What the driver gave for the next allocation, by the recording."""
        self._blocks = restore(self._allocator, history)
        """By the address they have in the recording."""
        self._num_equal = self._num_segments = self._num_segments_equal = self._num_allocations = 0
        self._made_up = 1 << 60

    def run(self) -> Replay:
        recorded = peak_recorded = self._allocator.reserved
        peak_allocated = self._allocator.allocated
        for entry in self._history.entries:
            action = entry.action
            if action == "alloc":
                self._allocate(entry)
                peak_allocated = max(peak_allocated, self._allocator.allocated)
            elif action == "free_completed":
                block = self._blocks.pop(entry.addr, None)
                if block is not None:
                    self._allocator.free(block)
            elif action in {"segment_alloc", "segment_map"}:
                self._given.append(entry)
                self._num_segments += 1
                recorded += entry.size
                peak_recorded = max(peak_recorded, recorded)
            elif action in {"segment_free", "segment_unmap"}:
                self._release(entry)
                recorded -= entry.size
            elif action == "oom":
                self._given.clear()
        return Replay(
            allocations=self._num_allocations,
            addresses_equal=self._num_equal,
            segments=self._num_segments,
            segments_equal=self._num_segments_equal,
            peak_reserved_recorded_bytes=peak_recorded,
            peak_reserved_replayed_bytes=self._allocator.peak_reserved,
            peak_allocated_bytes=peak_allocated,
        )

    def _allocate(self, entry: Entry) -> None:
        if entry.size == 0:  # nothing is placed for it
            return
        self._num_allocations += 1
        block = self._allocator.malloc(entry.size, entry.stream, self._history.private_id_of(entry))
        assert block is not None, "a device without a limit serves every request"
        self._num_equal += block.address == entry.addr
        self._given.clear()
        stale = self._blocks.pop(entry.addr, None)
        if stale is not None:  # its end was not recorded, but it must have come
            self._allocator.free(stale)
        self._blocks[entry.addr] = block

    def _new_range(self, num_bytes: int, stream: int, is_expandable: bool) -> int:
        """Where the driver put it; where it was asked for nothing, far from everything else."""
        del stream
        action = "segment_map" if is_expandable else "segment_alloc"
        for entry in self._given:
            if entry.action == action:
                return entry.addr
        self._made_up += num_bytes
        return self._made_up - num_bytes

    def _compare(self, address: int, num_bytes: int) -> None:
        """The model asks the driver: so did the program, if it knows its rules."""
        if self._given:
            entry = self._given.popleft()
            self._num_segments_equal += (entry.addr, entry.size) == (address, num_bytes)

    def _release(self, entry: Entry) -> None:
        """Give back what the program gave back: it may have been asked to, which the rules do not tell."""
        for pool in self._allocator.pools:
            if entry.action == "segment_free":
                block = pool.free_at(entry.addr)
                if block is not None and block.is_whole_range:
                    self._allocator.release(block)
                    return
            else:
                for block in pool.free_blocks():
                    if block.range.is_expandable and block.address <= entry.addr < block.address + block.size:
                        self._allocator.unmap(block, entry.addr, entry.size)
                        return
