"""What a recorded program would reserve under other settings of the allocator, and which would serve it best."""

import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice, pairwise

from efprof.artifacts.snapshot import GROWTH, RELEASE, Entry
from efprof.facts.allocator.blocks import Block
from efprof.facts.allocator.caching_allocator import CachingAllocator, Calls, NewRange
from efprof.facts.allocator.history import History, restore
from efprof.facts.allocator.script import ATTEMPT, EMPTY_CACHE, FREE, script_of
from efprof.facts.allocator.settings import AllocatorSettings, in_effect, parse_configuration
from efprof.model import frozen_dataclass

NUM_LAYOUTS = 5
"""The driver may place segments anywhere, and among equal blocks the lowest address is taken: the peak moved by up to
7 % between layouts in two of 36 recordings, by nothing in nearly all (measured). The first is as Linux maps memory,
each range below the one before: of 17 public recordings all have their very peak in it."""

MANY_OPERATIONS = 200_000
"""From here on one layout has to do, so nothing tells how far the peak moves: each takes microseconds per operation."""

MIN_CALLS = 5
"""Of a kind, before their median tells anything: between two events the program may have done something else."""

MADE_UP = 1 << 60
"""Addresses from here on are of no driver: none is there already when a recording is gone on with."""

RANGE_GAP = 1 << 42
"""More than any range is long."""

CANDIDATES = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "roundup_power2_divisions:8",
    "large_segment_size_mb:64",
)
"""Tried on every recording; the first is torch's default. More divisions than 8 round too little to matter."""

MIN_SAVED_SHARE = 0.01
"""Of the peak: what is less may be the model's error, which is that large in one recording of twenty."""


@frozen_dataclass
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


@frozen_dataclass
class Trial:
    """A configuration, what the model says of it, and what a person should know of it before setting it."""

    configuration: str
    outcome: Outcome
    warnings: tuple[str, ...] = ()


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
        """Its peak is the recording's own, where it tells one, unless the device is to be another one."""
        outcome, peak = (
            _outcome(self._layouts(self.history.settings, is_warm=True), missed_bytes=0),
            self._recorded_peak,
        )
        if not peak or self.capacity != self.script.capacity:
            return outcome
        return replace(outcome, peak_reserved_bytes=peak, peak_reserved_low_bytes=peak, peak_reserved_high_bytes=peak)

    @cached_property
    def _recorded_peak(self) -> int:
        reserved = [sum(extent.num_bytes for extent in self.history.extents)]
        for entry in self.history.entries:
            sign = (entry.action in GROWTH) - (entry.action in RELEASE)
            reserved.append(reserved[-1] + sign * entry.size)
        return max(reserved)

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
        return max(0, self.recorded.peak_reserved_bytes - self._cold[0].peak_reserved_bytes) if self._cold else 0

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
        """As the driver usually places memory, and by chance."""
        return [self._run(settings, _ranges(seed), is_warm=is_warm) for seed in range(self.num_layouts)]

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


def worth_a_try(what_if: WhatIf) -> tuple[str, ...]:
    """The candidates that are not on already."""
    recorded = in_effect(what_if.history.settings)
    return tuple(text for text in CANDIDATES if _settings(what_if, text) != recorded)


def try_configurations(what_if: WhatIf, configurations: Iterable[str]) -> list[Trial]:
    """Run each; raises BadConfiguration where torch would refuse one. A recorded limit stays where it names none."""
    parsed = [(text, _settings(what_if, text)) for text in configurations]
    return [
        Trial(configuration=text, outcome=what_if.run(settings), warnings=warnings_about(settings, what_if))
        for text, settings in parsed
    ]


def best_of(what_if: WhatIf, trials: Iterable[Trial]) -> Trial | None:
    """The one with the lowest peak, if it is clearly below the recorded one; among equals that with fewer calls.

    None where the recorded settings are as good as any.
    """
    recorded = what_if.compared.peak_reserved_bytes
    survives = [trial for trial in trials if not trial.outcome.is_out_of_memory]
    better = [trial for trial in survives if trial.outcome.peak_reserved_bytes <= (1 - MIN_SAVED_SHARE) * recorded]
    if what_if.recorded.is_out_of_memory:
        better = survives
    return min(
        better, key=lambda trial: (trial.outcome.peak_reserved_bytes, trial.outcome.calls.num_taken), default=None
    )


def warnings_about(settings: AllocatorSettings, what_if: WhatIf) -> tuple[str, ...]:
    """What hurts, and what does nothing."""
    warnings = []
    if settings == what_if.history.settings:
        warnings.append("These settings are on already.")
    if settings.expandable_segments and settings.max_split_bytes is not None:
        warnings.append(
            "expandable_segments and max_split_size_mb hurt together in most programs: a free stretch that has grown "
            "beyond the limit serves no small request any more, so new memory is mapped beside it."
        )
    if settings.garbage_collection_threshold and settings.memory_fraction is None:
        warnings.append(
            "garbage_collection_threshold does nothing without a memory fraction: set per_process_memory_fraction "
            "(torch 2.10) or call torch.cuda.set_per_process_memory_fraction."
        )
    if settings.memory_fraction is not None and what_if.capacity is None:
        warnings.append(
            "per_process_memory_fraction is left out: the recording does not tell how much memory the device has "
            "(of a snapshot, name it with --device-memory)."
        )
    if settings.large_segment_bytes != AllocatorSettings().large_segment_bytes:
        warnings.append("large_segment_size_mb is known to torch 2.11 and newer only.")
    return tuple(warnings)


def call_times_us(entries: Sequence[Entry]) -> dict[str, float]:
    """The median time of each kind of call: to its event from the one before, less what lies between any two requests.

    What the program did just before a call is in it: the call itself takes rather less.
    """
    gaps = defaultdict[str, list[int]](list)
    for before, entry in pairwise(entries):
        is_served = entry.action == "alloc" and before.action in GROWTH  # it follows its own call at once
        if before.time_us is not None and entry.time_us is not None and not is_served:
            gaps[entry.action].append(entry.time_us - before.time_us)
    between = statistics.median(gaps["alloc"] or [0])
    known = {kind: found for kind, found in gaps.items() if kind in GROWTH | RELEASE and len(found) >= MIN_CALLS}
    return {kind: max(0.0, statistics.median(found) - between) for kind, found in known.items()}


def _outcome(layouts: list[Outcome], *, missed_bytes: int) -> Outcome:
    """The first layout's, with the ends of all; what a cold start misses is added to the upper end."""
    peaks = [layout.peak_reserved_bytes for layout in layouts]
    return replace(layouts[0], peak_reserved_low_bytes=min(peaks), peak_reserved_high_bytes=max(peaks) + missed_bytes)


def _ranges(seed: int) -> NewRange:
    """Where the driver puts what it gives: one range below another, or anywhere."""
    places = random.Random(seed)
    taken = set[int]()
    at = MADE_UP + (RANGE_GAP << 40)

    def next_address(num_bytes: int) -> int:
        nonlocal at
        at -= num_bytes
        return at

    def random_address(num_bytes: int) -> int:
        del num_bytes
        while (place := places.getrandbits(40)) in taken:
            pass
        taken.add(place)
        return MADE_UP + place * RANGE_GAP

    return random_address if seed else next_address


def _settings(what_if: WhatIf, configuration: str) -> AllocatorSettings:
    settings = parse_configuration(configuration)
    return replace(settings, memory_fraction=settings.memory_fraction or what_if.history.settings.memory_fraction)
