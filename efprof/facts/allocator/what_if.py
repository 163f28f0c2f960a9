"""What a recorded program would reserve under other settings of the allocator."""

import random
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from typing import Final

from efprof.artifacts.snapshot import GROWTH, RELEASE, Entry
from efprof.facts.allocator.blocks import Block
from efprof.facts.allocator.caching_allocator import CachingAllocator, Calls, NewRange
from efprof.facts.allocator.history import History
from efprof.facts.allocator.script import ATTEMPT, EMPTY_CACHE, FREE, script_of
from efprof.facts.allocator.settings import AllocatorSettings, in_effect
from efprof.facts.allocator.start_state import restore

NUM_LAYOUTS: Final = 5
"""The driver may place segments anywhere, and among equal blocks the lowest address is taken: the peak moved by up to
7 % between layouts in one of 36 recordings, by nothing in nearly all (measured)."""

MANY_OPERATIONS: Final = 200_000
"""From here on one layout has to do, so nothing tells how far the peak moves: each takes microseconds per operation."""

MIN_CALLS: Final = 5
"""Of a kind, before their median tells anything: between two events the program may have done something else."""

MADE_UP: Final = 1 << 60
"""Addresses from here on are of no driver: none is there already when a recording is gone on with."""

RANGE_GAP: Final = 1 << 42
"""More than any range is long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Over the layouts that were tried; `stranded_bytes` was reserved and not in use when most was reserved.

    `driver_ms` is what the calls would take, about; None where the recording has too few of their kind.
    """

    peak_reserved_bytes: int
    peak_reserved_low_bytes: int
    peak_reserved_high_bytes: int
    stranded_bytes: int
    calls: Calls
    is_out_of_memory: bool
    driver_ms: float | None = None


class WhatIf:
    """Runs a recorded program under settings of any kind.

    Under the recorded ones it starts from the state that the recording began with. Under others nobody knows that
    state: it starts cold, with what was allocated then, and what the same cold start misses under the recorded
    settings is added to the upper end. Frees come in the order they were recorded: another setting may change when
    another stream is done, which no recording tells.
    """

    def __init__(self, history: History, *, capacity: int | None = None) -> None:
        """`capacity` in bytes is for another device than the recorded one."""
        self.history = history
        self.script = script_of(history)
        self.capacity = self.script.capacity if capacity is None else capacity

    def run(self, settings: AllocatorSettings) -> Outcome:
        """From a cold start, so that any two can be compared."""
        if in_effect(settings) == in_effect(self.history.settings):
            return self.compared
        return _outcome(self._layouts(settings, is_warm=False), missed_bytes=self.missed_bytes)

    def saved_bytes(self, outcome: Outcome) -> int:
        """By how much the peak under other settings is below that under the recorded ones, started alike."""
        return self.compared.peak_reserved_bytes - outcome.peak_reserved_bytes

    @property
    def limit_bytes(self) -> int | None:
        """What the device has for this program, under the recorded limit where there is one; None where unknown."""
        fraction = self.history.settings.memory_fraction or 1.0
        return None if self.capacity is None else int(fraction * self.capacity)

    @property
    def num_layouts(self) -> int:
        """How many are tried of each setting; of one alone, the ends of an outcome say nothing of layouts."""
        return NUM_LAYOUTS if len(self.script.operations) < MANY_OPERATIONS else 1

    @cached_property
    def recorded(self) -> Outcome:
        return _outcome(self._layouts(self.history.settings, is_warm=True), missed_bytes=0)

    @cached_property
    def recorded_cold(self) -> Outcome | None:
        """Under the recorded settings, started cold as the others are; None where the recording itself began cold."""
        return _outcome(self._cold, missed_bytes=self.missed_bytes) if self._cold else None

    @property
    def compared(self) -> Outcome:
        """Under the recorded settings, from the start that other settings have."""
        return self.recorded_cold or self.recorded

    @cached_property
    def missed_bytes(self) -> int:
        """What the memory's state before the recording adds to the peak, under the recorded settings."""
        return max(0, self.recorded.peak_reserved_bytes - _typical(self._cold).peak_reserved_bytes) if self._cold else 0

    @cached_property
    def _cold(self) -> list[Outcome]:
        """Of a cold start under the recorded settings; empty where the recording itself began cold."""
        if not self.script.num_live and not self.history.extents:
            return []
        return self._layouts(self.history.settings, is_warm=False)

    @cached_property
    def _call_us(self) -> dict[str, float]:
        return call_times_us(self.history.entries)

    def _driver_ms(self, settings: AllocatorSettings, calls: Calls) -> float | None:
        kinds = ("segment_map", "segment_unmap") if settings.expandable_segments else ("segment_alloc", "segment_free")
        counts = [(kind, num) for kind, num in zip(kinds, (calls.num_taken, calls.num_returned), strict=True) if num]
        is_known = all(kind in self._call_us for kind, _ in counts)
        return sum(num * self._call_us[kind] for kind, num in counts) / 1000 if is_known else None

    def _layouts(self, settings: AllocatorSettings, *, is_warm: bool) -> list[Outcome]:
        """By their peaks."""
        layouts = [self._run(settings, _ranges(seed), is_warm=is_warm) for seed in range(self.num_layouts)]
        return sorted(layouts, key=lambda layout: layout.peak_reserved_bytes)

    def _run(self, settings: AllocatorSettings, new_range: NewRange, *, is_warm: bool) -> Outcome:
        allocator = CachingAllocator(settings, new_range, capacity=self.capacity)
        blocks: dict[int, Block] = {}
        first = 0
        if is_warm:
            found = restore(allocator, self.history)
            numbered = ((number, found.get(block.address)) for number, block in enumerate(self.history.live))
            blocks = {number: block for number, block in numbered if block is not None}
            first = self.script.num_live
        peak, stranded, has_failed = 0, 0, False
        for kind, number, num_bytes, stream, private_id in islice(self.script.operations, first, None):
            if kind == FREE:
                freed = blocks.pop(number, None)
                if freed is not None:
                    allocator.free(freed)
            elif kind == EMPTY_CACHE:
                allocator.release_cached()
            else:
                block = allocator.malloc(num_bytes, stream, private_id)
                if block is None:
                    has_failed = True
                elif kind == ATTEMPT:
                    allocator.free(block)
                else:
                    blocks[number] = block
                if allocator.reserved > peak:
                    peak, stranded = allocator.reserved, allocator.reserved - allocator.allocated
        return Outcome(
            peak_reserved_bytes=allocator.peak_reserved,
            peak_reserved_low_bytes=allocator.peak_reserved,
            peak_reserved_high_bytes=allocator.peak_reserved,
            stranded_bytes=stranded,
            calls=allocator.calls,
            is_out_of_memory=has_failed,
            driver_ms=self._driver_ms(settings, allocator.calls),
        )


def call_times_us(entries: Sequence[Entry]) -> dict[str, float]:
    """The median time of each kind of call: to its event from the one before, less what lies between any two requests.

    What the program did just before a call is in it: the call itself takes rather less.
    """
    gaps: defaultdict[str, list[int]] = defaultdict(list)
    for before, entry in pairwise(entries):
        is_served = entry.action == "alloc" and before.action in GROWTH  # it follows its own call at once
        if before.time_us is not None and entry.time_us is not None and not is_served:
            gaps[entry.action].append(entry.time_us - before.time_us)
    between = statistics.median(gaps["alloc"] or [0])
    known = {kind: found for kind, found in gaps.items() if kind in GROWTH | RELEASE and len(found) >= MIN_CALLS}
    return {kind: max(0.0, statistics.median(found) - between) for kind, found in known.items()}


def _outcome(layouts: list[Outcome], *, missed_bytes: int) -> Outcome:
    """Of layouts by their peaks; what a cold start misses is added to the upper end."""
    return replace(
        _typical(layouts),
        peak_reserved_low_bytes=layouts[0].peak_reserved_bytes,
        peak_reserved_high_bytes=layouts[-1].peak_reserved_bytes + missed_bytes,
    )


def _typical(layouts: list[Outcome]) -> Outcome:
    return layouts[(len(layouts) - 1) // 2]


def _ranges(seed: int) -> NewRange:
    """Where the driver puts what it gives: one range behind another, or anywhere."""
    places = random.Random(seed)
    taken: set[int] = set()
    at = MADE_UP

    def next_address(num_bytes: int) -> int:
        nonlocal at
        at += num_bytes
        return at - num_bytes

    def random_address(num_bytes: int) -> int:
        del num_bytes
        while (place := places.getrandbits(40)) in taken:
            pass
        taken.add(place)
        return MADE_UP + place * RANGE_GAP

    return random_address if seed else next_address
