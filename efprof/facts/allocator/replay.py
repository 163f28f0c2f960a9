"""Replays a recorded history by the allocator's rules, and counts how often it says what really happened."""

from collections import deque
from dataclasses import dataclass

from efprof.artifacts.snapshot import Entry, Frames
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
    replayer = Replayer(history)
    replayer.play(len(history.entries))
    return replayer.result


class Replayer:
    """Goes through a history event by event."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._at = 0
        self.allocator = CachingAllocator(history.settings, self._new_range)
        self.allocator.on_segment = self.allocator.on_map = self._compare
        self._given: deque[Entry] = deque()
        """What the driver gave for the next allocation, by the recording."""
        self.blocks = restore(self.allocator, history)
        """By the address they have in the recording."""
        self.frames: dict[int, Frames] = {block.address: block.frames for block in history.live}
        """By the same address, where each was asked for."""
        self._num_equal = self._num_segments = self._num_segments_equal = self._num_allocations = 0
        self._made_up = 1 << 60
        self._recorded = self._peak_recorded = self.allocator.reserved
        self._peak_allocated = self.allocator.allocated
        self.peak_index = -1
        """Of the entry after which most was reserved, by the recording."""

    @property
    def result(self) -> Replay:
        """How far the model told it right up to here."""
        return Replay(
            allocations=self._num_allocations,
            addresses_equal=self._num_equal,
            segments=self._num_segments,
            segments_equal=self._num_segments_equal,
            peak_reserved_recorded_bytes=self._peak_recorded,
            peak_reserved_replayed_bytes=self.allocator.peak_reserved,
            peak_allocated_bytes=self._peak_allocated,
        )

    def play(self, end: int) -> None:
        """Go on, up to the entry before this index."""
        entries, start, self._at = self._history.entries, self._at, end
        for index in range(start, end):
            entry = entries[index]
            action = entry.action
            if action == "alloc":
                self._allocate(entry)
                self._peak_allocated = max(self._peak_allocated, self.allocator.allocated)
            elif action == "free_completed":
                block = self.blocks.pop(entry.addr, None)
                if block is not None:
                    self.allocator.free(block)
            elif action in {"segment_alloc", "segment_map"}:
                self._given.append(entry)
                self._num_segments += 1
                self._recorded += entry.size
                if self._recorded > self._peak_recorded:
                    self._peak_recorded, self.peak_index = self._recorded, index
            elif action in {"segment_free", "segment_unmap"}:
                self._release(entry)
                self._recorded -= entry.size
            elif action == "oom":
                self._given.clear()

    def _allocate(self, entry: Entry) -> None:
        if entry.size == 0:  # nothing is placed for it
            return
        self._num_allocations += 1
        block = self.allocator.malloc(entry.size, entry.stream, self._history.private_id_of(entry))
        assert block is not None, "a device without a limit serves every request"
        self._num_equal += block.address == entry.addr
        self._given.clear()
        stale = self.blocks.pop(entry.addr, None)
        if stale is not None:  # its end was not recorded, but it must have come
            self.allocator.free(stale)
        self.blocks[entry.addr] = block
        self.frames[entry.addr] = entry.frames

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
        for pool in self.allocator.pools:
            if entry.action == "segment_free":
                block = pool.free_at(entry.addr)
                if block is not None and block.is_whole_range:
                    self.allocator.release(block)
                    return
            else:
                for block in pool.free_blocks():
                    if block.range.is_expandable and block.address <= entry.addr < block.address + block.size:
                        self.allocator.unmap(block, entry.addr, entry.size)
                        return
