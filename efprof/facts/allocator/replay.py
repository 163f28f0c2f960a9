"""Replays a recorded history by the allocator's rules, and counts how often it says what really happened."""

from collections import deque
from dataclasses import dataclass

from efprof.artifacts.snapshot import GROWTH, RELEASE, Entry, Frames, PoolId
from efprof.facts.allocator.blocks import Block, cut_off
from efprof.facts.allocator.caching_allocator import CachingAllocator
from efprof.facts.allocator.history import History, restore
from efprof.facts.allocator.settings import is_small, rounded_bytes
from efprof.model import NotRecorded

MADE_UP = 1 << 60
"""Addresses from here on are of no driver."""

MIN_TRUST = 0.99
"""Of addresses and segments that must be equal before a prediction is made."""


@dataclass(kw_only=True, slots=True)
class Replay:
    """How far the model told what the recording says. Segments are counted with what expandable ones mapped."""

    device: int
    allocations: int = 0
    addresses_equal: int = 0
    segments: int = 0
    segments_equal: int = 0
    peak_reserved_recorded_bytes: int
    peak_reserved_replayed_bytes: int
    newer: str = ""
    """A sentence, where the file has what the model does not know."""

    @property
    def match_share(self) -> float:
        """Of all addresses and segments, those that are equal; all, where no history tells of any."""
        if not self.allocations + self.segments:
            return 1.0
        return (self.addresses_equal + self.segments_equal) / (self.allocations + self.segments)

    @property
    def is_trusted(self) -> bool:
        """Whether the model knows this program's allocator well enough to predict anything."""
        return self.match_share >= MIN_TRUST

    def why_not_trusted(self, what: str) -> str:
        """Of `what` nothing is said, and possible causes."""
        return (
            f"The allocator's model places {self.match_share:.1%} of {what} as it was, too little to say anything of "
            "it. Allocator settings may have been changed while the program ran, the history may lack segment events "
            "(`skip_actions`), or an expandable segment's addresses ran out."
        )


def replay(history: History) -> Replay:
    """From the state before the first event, where the driver put things; NotRecorded of what cannot have been."""
    replayer = Replayer(history)
    replayer.play(len(history.entries))
    return replayer.result


class Replayer:
    def __init__(self, history: History) -> None:
        self._history = history
        self._at = 0
        self.allocator = CachingAllocator(history.settings, self._new_range)
        self.allocator.on_growth = self._compare
        self._given: deque[Entry] = deque()
        """What the driver gave for the next allocation, by the recording."""
        self.blocks = restore(self.allocator, history)
        """By the address they have in the recording."""
        self.frames: dict[int, Frames] = {block.address: block.frames for block in history.live}
        """By the same address, where each was asked for."""
        self._made_up = MADE_UP
        self._has_released = False
        self._recorded = reserved = self.allocator.reserved
        self.result = Replay(
            device=history.device, peak_reserved_recorded_bytes=reserved, peak_reserved_replayed_bytes=reserved
        )
        """Of what was played so far."""

    def play(self, end: int) -> None:
        """Go on, up to the entry before this index."""
        entries, found, start, self._at = self._history.entries, self.result, self._at, end
        for index in range(start, end):
            entry = entries[index]
            action = entry.action
            if action == "alloc":
                self._allocate(entry)
            elif action == "free_completed":
                block = self.blocks.pop(entry.addr, None)
                if block is not None:
                    self.allocator.free(block)
            elif action in GROWTH:
                self._given.append(entry)
                found.segments += 1
                self._recorded += entry.size
                found.peak_reserved_recorded_bytes = max(found.peak_reserved_recorded_bytes, self._recorded)
            elif action in RELEASE:
                self._map_given()
                self._has_released = True
                self._release(entry)
                self._recorded -= entry.size
            elif action == "oom":
                self._map_given()
                self._given.clear()
                self._has_released = False
        found.peak_reserved_replayed_bytes = self.allocator.peak_reserved

    def _allocate(self, entry: Entry) -> None:
        if entry.size == 0:  # nothing is placed for it
            return
        self.result.allocations += 1
        stale = self.blocks.pop(entry.addr, None)
        if stale is not None:  # its end was not recorded, but it must have come
            self.allocator.free(stale)
        # Where memory was given back between search and success, the search did not see what became free meanwhile.
        has_searched = self._has_released and bool(self._given)
        reserved = self.allocator.reserved
        block = self._malloc(entry, has_searched=has_searched)
        is_undoable = self.allocator.reserved == reserved
        if block.address != entry.addr and is_undoable and self._has_released and not has_searched:
            self.allocator.free(block)  # an expandable segment may serve a retried request without growing
            block = self._malloc(entry, has_searched=True)
        self.result.addresses_equal += block.address == entry.addr
        if block.address != entry.addr:
            # It goes where it really went, if there is room: one error is not to cause others.
            self.allocator.free(block)
            moved = _place(self.allocator, entry.addr, entry.size, entry.stream, entry.private_id)
            block = moved or self._malloc(entry)
        self._given.clear()
        self._has_released = False
        self.blocks[entry.addr] = block
        self.frames[entry.addr] = entry.frames

    def _malloc(self, entry: Entry, *, has_searched: bool = False) -> Block:
        block = self.allocator.malloc(entry.size, entry.stream, entry.private_id, has_searched=has_searched)
        if block is None:  # addresses of an expandable segment end above what any device has
            raise NotRecorded(
                f"it tells of a request for {entry.size:,} bytes that was served, more than the device can have; the "
                "file was edited or made by hand."
            )
        return block

    def _new_range(self, num_bytes: int) -> int:
        """Where the driver put it; where it was asked for nothing, far from everything else."""
        if self._given:
            return self._given[0].addr
        self._made_up += num_bytes
        return self._made_up - num_bytes

    def _compare(self, address: int, num_bytes: int) -> None:
        """The model asks the driver: so did the program, if it knows its rules."""
        if self._given:
            entry = self._given.popleft()
            self.result.segments_equal += (entry.addr, entry.size) == (address, num_bytes)

    def _map_given(self) -> None:
        """Map what was mapped for a request that then failed: it stays there, free."""
        for entry in [entry for entry in self._given if entry.action == "segment_map"]:
            for pool in self.allocator.pools:
                for block in pool.unmapped_of(entry.stream):
                    if block.address == entry.addr:
                        self.allocator.map(block, entry.size)

    def _release(self, entry: Entry) -> None:
        """Give back what the program gave back: it may have been asked to, which the rules do not tell."""
        for block in self.allocator.free_blocks:
            end = block.address + block.size
            if not block.address <= entry.addr < end:
                continue
            if block.range.is_expandable:  # where the model erred it may be less
                self.allocator.unmap(block, entry.addr, min(entry.size, end - entry.addr))
            elif block.is_whole_range:
                self.allocator.release(block)
            return


def _place(allocator: CachingAllocator, address: int, requested: int, stream: int, private_id: PoolId) -> Block | None:
    """Serve a request at this address, if that is free; None where it is not."""
    size = rounded_bytes(requested, allocator.settings)
    pool = allocator.pool(private_id, is_small_pool=is_small(size))
    block = next(
        (
            block for block in pool.free_blocks()
            if block.stream == stream and block.address <= address <= block.address + block.size - size
        ), None,
    )  # fmt: skip
    if block is None:
        return None
    pool.remove(block)
    if block.address < address:
        pool.add(cut_off(block, address - block.address))
    return allocator.hand_out(block, size, requested)
