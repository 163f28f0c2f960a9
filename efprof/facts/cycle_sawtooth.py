"""How high memory piles up between collections of garbage that reference cycles keep."""

import statistics
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from efprof.artifacts.cycles import CollectedGarbage, read_cycles
from efprof.artifacts.steps import StepRecord, read_steps
from efprof.facts.run import Run
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
class Tooth:
    """One collection within `step` or after it: bytes allocated before it and after it.

    `num_steps` have passed since the last one that went as far, in generations, and freed much.
    """

    step: int
    num_steps: int
    generation: int
    before_bytes: int
    after_bytes: int
    seconds: float

    @property
    def freed_bytes(self) -> int:
        """What nothing but the collector would have freed."""
        return self.before_bytes - self.after_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class CycleSawtooth:
    """The large collections that are comparable, in order of time; `peak_bytes` is the run's, as far as it was read.

    `steps_apart` is the median number of steps in which garbage piled up for them; 0 where there are none.
    """

    garbage: CollectedGarbage
    teeth: tuple[Tooth, ...]
    steps_apart: float
    peak_bytes: int

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded where collections were not watched."""
        garbage, records = read_cycles(run.rank_folder), read_steps(run.rank_folder)[0]
        most = max((each.freed_bytes for each in garbage.collections), default=0)
        teeth = tuple(tooth for tooth in _teeth(garbage, records) if tooth.freed_bytes >= COMPARABLE * most)
        read = [here.allocated_bytes for record in records if record.window is None for here in record.memory]
        return cls(
            garbage=garbage,
            teeth=teeth,
            steps_apart=statistics.median(tooth.num_steps for tooth in teeth) if teeth else 0.0,
            peak_bytes=max([*read, *(tooth.before_bytes for tooth in teeth)], default=0),
        )

    @property
    def piles_up(self) -> bool:
        """Whether much garbage waits for the collector again and again."""
        if not self.teeth or not self._is_known() or self.steps_apart < LEAST_STEPS_APART:
            return False
        return self.height_interval[0] >= max(LEAST_BYTES, LEAST_SHARE * self.peak_bytes)

    def _is_known(self) -> bool:
        num_largest = sum(tooth.freed_bytes >= MOST_OF_MEMORY * tooth.before_bytes for tooth in self.teeth)
        is_repeated = len(self.teeth) >= LEAST_COLLECTIONS or num_largest >= LEAST_OF_THESE
        return bool(self.garbage.cycles) or is_repeated

    @property
    def height_bytes(self) -> int:
        """From the lowest that collections left to the most that one found; only where there are teeth.

        A collection of young objects leaves the garbage that had grown older, so that the level rises until an older
        generation's turn; the lowest ones are nearest to what a program without garbage has.
        """
        left = sorted(tooth.after_bytes for tooth in self.teeth)
        low, high = self.height_interval
        return round(min(high, max(low, self._highest() - statistics.median(left[:LOWEST]))))

    @property
    def height_interval(self) -> tuple[float, float]:
        """From the most that one collection freed, to the highest less the lowest, whatever the step did just then."""
        high = self._highest() - min(tooth.after_bytes for tooth in self.teeth)
        return float(max(tooth.freed_bytes for tooth in self.teeth)), float(high)

    def _highest(self) -> int:
        return max(tooth.before_bytes for tooth in self.teeth)


def _teeth(garbage: CollectedGarbage, records: list[StepRecord]) -> Iterator[Tooth]:
    starts = [record.started_ns for record in records]
    last_step = [0, 0, 0]
    for each in garbage.collections:
        place = bisect_right(starts, each.at_ns) - 1
        step, generation = records[place].step if place >= 0 else 0, min(each.generation, 2)
        yield Tooth(
            step=step,
            num_steps=step - last_step[generation],
            generation=generation,
            before_bytes=each.before_bytes,
            after_bytes=each.before_bytes - each.freed_bytes,
            seconds=each.seconds,
        )
        last_step[: generation + 1] = [step] * (generation + 1)
