"""What recording has cost so far, by its own clock, and what it may still cost."""

from collections import Counter
from time import perf_counter_ns
from typing import Final

ALLOWANCE_NS: Final = 3_000_000_000
"""For windows, counts and watches together: many a run is over before its share of the time is worth one."""

COUNTS_PART: Final = 0.5
"""Of all that, for counts and watches alone: on a busy machine a window takes up to 2 s, and must leave them some."""


class Budget:
    """One account for windows, counts and watches: an allowance at the start, from then on a share of the time."""

    def __init__(self, share: float) -> None:
        """`share` of the time that recording may cost, 0.01 for 1 %: half of it is for steps, half for all else."""
        self._share = share / 2
        self.spent_ns: Counter[str] = Counter()
        """By what it was spent on."""
        self._began_ns = perf_counter_ns()

    def affords(self, cost_ns: float) -> bool:
        """Whether something that costs about as much may begin now, and leave counts their part."""
        left_ns = max(0.0, COUNTS_PART * self._earned_ns - self._counted_ns)
        return self.spent_ns.total() + cost_ns <= self._earned_ns - left_ns

    def affords_count(self, cost_ns: float) -> bool:
        """The same of a count or a watch: out of their part, or of what nothing else has taken."""
        is_theirs = self._counted_ns + cost_ns <= COUNTS_PART * self._earned_ns
        return is_theirs or self.spent_ns.total() + cost_ns <= self._earned_ns

    @property
    def _earned_ns(self) -> float:
        return ALLOWANCE_NS + self._share * (perf_counter_ns() - self._began_ns)

    @property
    def _counted_ns(self) -> int:
        return self.spent_ns["counts"] + self.spent_ns["watches"]

    def spend(self, on: str, cost_ns: int) -> None:
        """It cost so much."""
        self.spent_ns[on] += cost_ns
