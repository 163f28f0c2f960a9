"""Histories as torch would have written them, of programs that the model itself ran: what was served is known."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from efprof.artifacts.snapshot import DEFAULT_POOL, Entry, Segment, Settings, Snapshot
from efprof.artifacts.snapshot import Block as SnapshotBlock
from efprof.facts.allocator.blocks import Block
from efprof.facts.allocator.caching_allocator import CachingAllocator
from efprof.facts.allocator.settings import MIB, AllocatorSettings, rounded_bytes

FIRST_ADDRESS = 0x7F0000000000
STEP = [{"filename": "train.py", "line": 12, "name": "step"}]
EMPTY_CACHE = [
    {"filename": "/venv/lib/python3.12/site-packages/torch/cuda/memory.py", "line": 224, "name": "empty_cache"},
    *STEP,
]

Sizes = Callable[[random.Random], int]


class Recording:
    """Runs what it is asked to, and notes it as torch notes it. Ranges lie one behind another."""

    def __init__(
        self,
        settings: AllocatorSettings,
        *,
        capacity: int | None = None,
        first_address: int = FIRST_ADDRESS,
        has_stacks: bool = True,
        names_pools: bool = False,
    ) -> None:
        """Without stacks where the program asked for none; pools are named as torch does since 2.12."""
        self.allocator = _TracedAllocator(settings, self._new_range, capacity=capacity)
        growth = "segment_map" if settings.expandable_segments else "segment_alloc"
        self.allocator.on_growth = lambda address, size: self._note(growth, address, size)
        self.allocator.on_release = lambda block: self._note("segment_free", block.address, block.size, block)
        self.allocator.on_unmap = lambda address, size, block: self._note("segment_unmap", address, size, block)
        self.entries: list[Entry] = []
        self.live: list[Block] = []
        self._capacity = capacity
        self._next_address = first_address
        self._stream, self._private_id = 0, DEFAULT_POOL
        self._has_stacks, self._names_pools = has_stacks, names_pools
        self._frames: list[dict[str, Any]] | None = STEP

    def malloc(self, num_bytes: int, stream: int = 0, private_id: tuple[int, int] = DEFAULT_POOL) -> Block:
        """A request that the device can serve."""
        block = self.attempt(num_bytes, stream, private_id)
        assert block is not None
        return block

    def attempt(self, num_bytes: int, stream: int = 0, private_id: tuple[int, int] = DEFAULT_POOL) -> Block | None:
        """A request that may fail."""
        self._stream, self._private_id = stream, private_id
        block = self.allocator.malloc(num_bytes, stream, private_id)
        if block is None:
            assert self._capacity is not None
            self._note("oom", 0, rounded_bytes(num_bytes, self.allocator.settings))
            self.entries[-1].device_free = self._capacity - self.allocator.reserved
            return None
        self._note("alloc", block.address, num_bytes)
        self.live.append(block)
        return block

    def free(self, block: Block) -> None:
        self.live.remove(block)
        self._note("free_requested", block.address, block.requested, block)
        self._note("free_completed", block.address, block.requested, block)
        self.allocator.free(block)

    def empty_cache(self) -> None:
        self._frames = EMPTY_CACHE
        self.allocator.release_cached()
        self._frames = STEP

    def snapshot(self, *, first_entry: int = 0) -> Snapshot:
        """What a ring buffer holds that lost all before this entry, and how the memory looks now."""
        settings = self.allocator.settings
        written = Settings(
            configuration=f"large_segment_size_mb:{settings.large_segment_bytes // MIB}",
            max_split_size=-1 if settings.max_split_bytes is None else settings.max_split_bytes,
            expandable_segments=settings.expandable_segments,
            roundup_power2_divisions={str(1 << index): number for index, number in enumerate(settings.divisions)},
        )
        return Snapshot(segments=self._segments(), device_traces=[self.entries[first_entry:]], settings=written)

    def _new_range(self, num_bytes: int) -> int:
        self._next_address += num_bytes
        return self._next_address - num_bytes

    def _note(self, action: str, address: int, size: int, block: Block | None = None) -> None:
        """Of this block, or of the request that is being served."""
        stream, private_id = (block.stream, block.pool.private_id) if block else (self._stream, self._private_id)
        entry = Entry(action=action, addr=address, size=size, stream=stream)
        entry.frames = self._frames if self._has_stacks else None
        entry.pool_id = private_id if self._names_pools else None
        self.entries.append(entry)

    def _segments(self) -> list[Segment]:
        """One for each range, of expandable ones one for each stretch that is mapped."""
        segments: list[Segment] = []
        free = [block for pool in self.allocator.pools for block in pool.free_blocks()]
        for block in sorted({*self.live, *free}, key=lambda block: block.address):
            written = SnapshotBlock(
                address=block.address, size=block.size, requested_size=block.requested,
                state="active_allocated" if block.is_allocated else "inactive",
            )  # fmt: skip
            if block.previous is not None and block.previous.is_mapped:
                segments[-1].blocks.append(written)
                segments[-1].total_size += block.size
                continue
            segment = Segment(
                address=block.address, total_size=block.size, blocks=[written], stream=block.stream,
                segment_type="small" if block.pool.is_small else "large", segment_pool_id=block.pool.private_id,
                is_expandable=block.range.is_expandable,
            )  # fmt: skip
            segments.append(segment)
        return segments


class _TracedAllocator(CachingAllocator):
    """Tells also what it gives back."""

    on_release: Callable[[Block], None]
    on_unmap: Callable[[int, int, Block], None]

    def release(self, block: Block) -> None:
        self.on_release(block)
        super().release(block)

    def unmap(self, block: Block, address: int, num_bytes: int) -> None:
        start, page, num_returned = block.range.address, block.range.page_bytes, self.calls.num_returned
        begin = start + -(-(address - start) // page) * page
        end = start + (address + num_bytes - start) // page * page
        super().unmap(block, address, num_bytes)
        if self.calls.num_returned > num_returned:
            self.on_unmap(begin, end - begin, block)


def run_at_random(
    recording: Recording,
    seed: int,
    *,
    sizes: Sizes,
    num_operations: int = 200,
    streams: Sequence[int] = (0, 7),
    private_ids: Sequence[tuple[int, int]] = (DEFAULT_POOL,),
) -> random.Random:
    """Requests, returns and now and then an emptied cache; gives the source of chance, for what is still to choose."""
    chance = random.Random(seed)
    for _ in range(num_operations):
        what = chance.random()
        if what < 0.02:
            recording.empty_cache()
        elif what < 0.47 and recording.live:
            recording.free(chance.choice(recording.live))
        else:
            recording.attempt(sizes(chance), chance.choice(streams), chance.choice(private_ids))
    return chance


def any_size(chance: random.Random) -> int:
    """From one byte to 200 MiB."""
    return chance.choice([chance.randint(1, MIB), chance.randint(MIB, 12 * MIB), chance.randint(10 * MIB, 200 * MIB)])


def even_size(chance: random.Random) -> int:
    """Of large blocks only those that leave nothing behind them that is too little to be split off."""
    return chance.choice([chance.randint(1, MIB), 2 * MIB * chance.randint(1, 60)])
