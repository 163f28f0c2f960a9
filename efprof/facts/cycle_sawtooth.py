"""How high memory piles up between collections of garbage that reference cycles keep, and what shows it."""

import statistics
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from efprof.artifacts.cycles import CollectedGarbage, Cycle, LargeCollection, read_cycles
from efprof.artifacts.steps import read_steps
from efprof.facts.run import Run
from efprof.model import Gain, Number, Numbers
from efprof.units import MIB

COMPARABLE = 0.5
"""Of the most that a collection freed: smaller ones are of young objects only, or came early by chance."""

LEAST_COLLECTIONS = 3
"""One frees what the program's start has left, and two may be chance; where the cycle was found, one is enough."""
MOST_OF_MEMORY, LEAST_OF_THESE = 0.5, 2
"""Of all that was allocated: what frees that much twice is no chance. Short steps have few collections: 300 with a
cycle each of 2 MiB had two that freed 67 and 69 %, and none looked at in time to find the cycle (measured)."""
LEAST_STEPS_APART = 4
"""What is collected sooner, as by `gc.collect()` in every step, has no time to pile up."""
LEAST_BYTES, LEAST_SHARE = 16 * MIB, 0.1
"""What the largest collection freed, at least, and its share of the run's peak. Not one of 19 collections in thirteen
healthy programs of the tests freed a tenth of a MiB (measured): less than this is real, and not worth a finding."""
LOWEST = 3
"""Levels after a collection whose median is taken: one alone may have come at a moment when a step needs little."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CycleSawtooth:
    """The large collections that are comparable; `peak_bytes` is the run's, as far as it was read.

    `steps_apart` is the median number of steps from one to the next; 0 where there are none.
    """

    garbage: CollectedGarbage
    teeth: tuple[LargeCollection, ...]
    steps_apart: float
    peak_bytes: int

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded where collections were not watched."""
        garbage, records = read_cycles(run.rank_folder), read_steps(run.rank_folder)[0]
        most = max((each.freed_bytes for each in garbage.collections), default=0)
        large = [each for each in garbage.collections if each.freed_bytes >= COMPARABLE * most]
        starts = [record.started_ns for record in records]
        places = [bisect_right(starts, each.at_ns) - 1 for each in large]
        steps = [records[place].step if place >= 0 else 0 for place in places]
        read = [here.allocated_bytes for record in records if record.window is None for here in record.memory]
        apart = [later - step for step, later in pairwise([0, *steps])]
        return cls(
            garbage=garbage,
            teeth=tuple(large),
            steps_apart=statistics.median(apart) if apart else 0.0,
            peak_bytes=max([*read, *(each.before_bytes for each in large)], default=0),
        )

    @property
    def piles_up(self) -> bool:
        """Whether much garbage waits for the collector again and again."""
        largest = [tooth for tooth in self.teeth if tooth.freed_bytes >= MOST_OF_MEMORY * tooth.before_bytes]
        is_repeated = len(self.teeth) >= LEAST_COLLECTIONS or len(largest) >= LEAST_OF_THESE
        if not self.teeth or not (self.garbage.cycles or is_repeated) or self.steps_apart < LEAST_STEPS_APART:
            return False
        return self.height_interval[0] >= max(LEAST_BYTES, LEAST_SHARE * self.peak_bytes)

    @property
    def height_bytes(self) -> int:
        """From the lowest that collections left to the most that one found; only where there are teeth.

        A collection of young objects leaves the garbage that had grown older, so that the level rises until an older
        generation's turn; the lowest ones are nearest to what a program without garbage has.
        """
        low, high = self.height_interval
        lowest = statistics.median(sorted(map(_left, self.teeth))[:LOWEST])
        return round(min(high, max(low, high + min(map(_left, self.teeth)) - lowest)))

    @property
    def height_interval(self) -> tuple[float, float]:
        """From the most that one collection freed, to the highest less the lowest, whatever the step did just then."""
        high = max(tooth.before_bytes for tooth in self.teeth) - min(map(_left, self.teeth))
        return float(max(tooth.freed_bytes for tooth in self.teeth)), float(high)


def cycle_gain(sawtooth: CycleSawtooth) -> Gain:
    """What lay there as garbage when most did; another run's collections come at other steps."""
    least = min(tooth.freed_bytes for tooth in sawtooth.teeth)
    one_step = sawtooth.height_bytes / sawtooth.steps_apart
    _, high = sawtooth.height_interval
    return Gain(
        basis="measured bound",
        explanation="the most that was allocated when a collection began, less the lowest that collections left; its "
        "interval goes from what the least of the comparable collections freed to the highest less the lowest, and "
        "one step's garbage farther at both ends, as another run's collections come at other moments",
        peak_bytes=sawtooth.height_bytes,
        peak_bytes_interval=(max(0.0, least - one_step), high + one_step),
    )


def cycle_numbers(sawtooth: CycleSawtooth, cycle: Cycle | None) -> Numbers:
    """How high it piles up, how often it is collected, and what one such cycle holds."""
    height, interval = sawtooth.height_bytes, sawtooth.height_interval
    numbers = [
        Number(label="garbage at the most", value=height, unit="bytes", interval=interval),
        Number(label="highest memory that was read", value=sawtooth.peak_bytes, unit="bytes"),
        Number(label="steps from one collection to the next", value=sawtooth.steps_apart, unit="count"),
        Number(label="collections that freed much", value=sawtooth.garbage.num_large, unit="count"),
        Number(label="all collections looked at", value=sawtooth.garbage.num_read, unit="count"),
    ]
    if cycle is not None:
        numbers.append(Number(label="such cycles found at one look", value=cycle.count, unit="count"))
        numbers.append(Number(label="tensors that one of them holds", value=cycle.tensors, unit="count"))
        numbers.append(Number(label="bytes of those tensors", value=cycle.tensor_bytes, unit="bytes"))
    return Numbers(title="Garbage", numbers=tuple(numbers))


def _left(tooth: LargeCollection) -> int:
    return tooth.before_bytes - tooth.freed_bytes
