"""Which steps are recorded in full: the first ones, what somebody asks for, and bursts as often as the budget allows.

A full step costs 250 to 900 us, more where there are many modules; a light one 15 to 50 (measured:
reports/overhead.md). Windows, counts and watches have an account of their own.
"""

import math
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter_ns
from typing import NamedTuple

FIRST_STEPS = 20
"""Outside windows, recorded in full at any cost: many runs have no more, and the trend of memory needs as many."""

BURST_STEPS = 3
"""One more than shows that a step is like the one before."""

EARLY_STEPS = 200
EARLY_DISTANCE = 7
"""Up to there a burst comes after about so many light steps, at the expense of the allowance: many runs end soon, and
their memory is read in full steps alone. Of 3 s, the eighteen bursts take 20 to 50 ms."""

MIN_PART = 0.25
"""Of their half of the share, for bursts, and for windows and counts, where light steps alone use up the rest."""

MAX_OVERDRAWN_BURSTS = 1.0
"""The start of a loader is worth a burst that is not earned yet."""

UNSEEN_COST = 2.0
"""What a full step costs, over what its own clock sees of that: the dispatch of hooks, and the caches that they find
cold and leave cold: 1.1 to 2.0 times as much, 2.9 with an enabled scaler (reports/overhead.md). Used until light steps
tell how long a step takes without it; they may say up to twice as much."""

NUM_REMEMBERED = 48
NUM_BETWEEN_ESTIMATES = 16

MAX_UNASKED_STEPS = 256
"""Light steps after which it is asked again whether a burst is due, however far it seems; no later than each second."""

ALLOWANCE_NS = 3_000_000_000
"""For windows, counts and watches together: many a run is over before its share of the time is worth one."""

COUNTS_PART = 0.5
"""Of all that, for counts and watches alone: on a busy machine a window takes up to 2 s, and must leave them some."""


class LightStep(NamedTuple):
    """A light step that is over, as those are told who add up steps."""

    number: int
    length_ns: int
    cost_ns: int
    """The recorder's own part of it."""
    is_usual: bool
    """Whether its length tells of the others: nothing else was done in it."""


class Budget:
    """One account for windows, counts and watches: an allowance at the start, from then on a share of the time."""

    def __init__(self, share: float, taken_by_steps: Callable[[], float] = lambda: 0.0) -> None:
        """`share` of the time that recording may cost, 0.01 for 1 %: half of it is for steps, half for all else.

        Of that half goes what steps take beyond theirs.
        """
        self.share = share
        self._taken_by_steps = taken_by_steps
        self.spent_ns = Counter[str]()
        self._began_ns = perf_counter_ns()

    def affords(self, cost_ns: float) -> bool:
        """Whether something that costs about as much may begin now, and leave counts their part."""
        left_ns = max(0.0, COUNTS_PART * self._earned_ns - self._counted_ns)
        return self.spent_ns.total() + cost_ns <= self._earned_ns - left_ns

    def affords_count(self, cost_ns: float) -> bool:
        """The same of a count or a watch: out of their part, or of what nothing else has taken."""
        is_theirs = self._counted_ns + cost_ns <= COUNTS_PART * self._earned_ns
        return is_theirs or self.spent_ns.total() + cost_ns <= self._earned_ns

    def affords_evaluation(self) -> bool:
        """Whether one may be watched: out of the part of counts, half of which it leaves to them."""
        is_within = self.spent_ns["evaluations"] <= COUNTS_PART / 2 * self._earned_ns
        return is_within and self.affords_count(0)

    @property
    def _earned_ns(self) -> float:
        half = self.share / 2
        share = min(half, max(self.share - self._taken_by_steps(), MIN_PART * half))
        return ALLOWANCE_NS + share * (perf_counter_ns() - self._began_ns)

    @property
    def _counted_ns(self) -> int:
        return sum(self.spent_ns[one] for one in ("counts", "watches", "evaluations"))

    def spend(self, on: str, cost_ns: int) -> None:
        self.spent_ns[on] += cost_ns


class Sampling:
    """One account of the steps' cost, beside that of everything else; the distance of bursts is chosen as it goes."""

    def __init__(self, share: float) -> None:
        """`share` of the time that recording may cost, 0.01 for 1 %: half of it is for steps, half for all else."""
        self._share = share / 2
        self._are_all_full = share >= 1
        self.may_be_light: Callable[[], bool] = lambda: True
        self.has_bursts = True
        """Off where steps are compared with those of another program: all are light then that can be."""
        self.is_asked: Callable[[], bool] = lambda: False
        """Whether somebody waits for a step recorded in full, as for a window that something has triggered."""
        self._wanted: list[tuple[int, int]] = []
        self._full_ns: deque[int] = deque(maxlen=NUM_REMEMBERED)
        self._light_ns: deque[int] = deque(maxlen=NUM_REMEMBERED)
        self._full_costs: deque[int] = deque(maxlen=NUM_REMEMBERED)
        self._light_costs: deque[int] = deque(maxlen=NUM_REMEMBERED)
        self._light_cost = 0.0
        self._credit_ns = 0.0
        self._burst_end = FIRST_STEPS
        self._num_full = 0
        self._is_due = False
        # Its own generator: the program's random numbers stay what they would be. Uneven distances never beat with
        # accumulation, evaluation or logging every so many steps.
        self._random = random.Random(20)
        self._price = 1.0
        self._full_cost = 0.0
        self._affords_all = True
        self._num_light = 0
        self.length_ns = 1.0
        """The median length of the last usual steps."""
        self.look_at = 0
        """Among light steps nothing need be asked before the one of this number; 0 where it has to be now."""

    def taken_share(self) -> float:
        """Of the time, by light steps, and by bursts at least."""
        return self._light_cost / self.length_ns + MIN_PART * self._share

    def want(self, first: int, end: int) -> None:
        self._wanted.append((first, end))
        self.look_at = 0

    def wants_full(self, number: int) -> bool:
        """Whether the step of this number, which has not begun, is to be recorded in full."""
        if not self.has_bursts:
            return number < FIRST_STEPS or not self.may_be_light()
        if self._are_all_full or number < self._burst_end or self._is_due or self.is_asked() or not self.may_be_light():
            return True
        return any(first <= number < end for first, end in self._wanted) or self._affords_all

    def is_full(self, number: int) -> bool:
        """Whether this step, which begins now, is recorded in full; with it a burst begins that is due."""
        if self._is_due:
            self._is_due = False
            self._burst_end = max(self._burst_end, number + BURST_STEPS)
        self._wanted = [(first, end) for first, end in self._wanted if end > number]
        return self.wants_full(number)

    def is_due_after(self, number: int) -> bool:
        """Whether the step after this light one is to be recorded in full; if not, `look_at` says when to ask again."""
        is_due = self.wants_full(number + 1)
        self.look_at = 0 if is_due else number + 1 + self._least_distance(number)
        return is_due

    def _least_distance(self, number: int) -> int:
        """About so many light steps after this one there may be a burst."""
        income = self._income_ns(number, self.length_ns)
        left = self._price * BURST_STEPS * self._full_cost - self._credit_ns
        steps = math.ceil(left / income) if income > 0 else MAX_UNASKED_STEPS
        firsts = [first - 1 - number for first, _ in self._wanted if first > number]
        return max(1, min(steps, MAX_UNASKED_STEPS, *firsts))

    def ask_for_burst(self) -> None:
        """Something worth it happens: a burst comes now, unless the last ones are not earned yet."""
        self._is_due |= self._credit_ns >= -MAX_OVERDRAWN_BURSTS * BURST_STEPS * self._full_cost

    def note_full(self, number: int, length_ns: int, cost_ns: int) -> None:
        """A step that was recorded in full, outside of windows, took so long, the recorder's own `cost_ns` of it."""
        self._full_ns.append(length_ns)
        self._full_costs.append(cost_ns)
        self._num_full += 1
        if self._num_full < FIRST_STEPS:
            self._burst_end = max(self._burst_end, number + 2)
        if len(self._full_costs) <= FIRST_STEPS or number % BURST_STEPS == 0:
            self._estimate()
        if self._num_full > FIRST_STEPS and number < self._burst_end:  # what somebody wanted is in his account
            self._credit_ns += self._share * length_ns - self._full_cost

    def note_light(self, steps: Sequence[LightStep]) -> None:
        for step in steps:
            if step.is_usual:
                self._light_ns.append(step.length_ns)
                self._light_costs.append(step.cost_ns)
                self._num_light += 1
                if self._num_light % NUM_BETWEEN_ESTIMATES == 1:
                    self._estimate()
            # A watched step takes longer, and earns what a usual one does: a watch must not end the bursts.
            self._credit_ns += self._income_ns(step.number, step.length_ns if step.is_usual else self.length_ns)
            if self._credit_ns >= self._price * BURST_STEPS * self._full_cost:
                self._price = 0.5 + self._random.random()
                self._is_due = True
        self.look_at = 0

    def _income_ns(self, number: int, length_ns: float) -> float:
        earned = self._share * length_ns
        given = BURST_STEPS * self._full_cost / EARLY_DISTANCE if number < EARLY_STEPS else 0.0
        return max(earned - self._light_cost, MIN_PART * earned, given)

    def _estimate(self) -> None:
        """What a step costs: by its own clock at least; a full one by its length beside that of light ones."""
        own = median(self._full_costs)
        self._full_cost = UNSEEN_COST * own
        if len(self._light_ns) >= NUM_REMEMBERED // 2:
            longer = median(self._full_ns) - median(self._light_ns)
            self._full_cost = max(own, min(longer, 2 * UNSEEN_COST * own))
        if self._light_costs:
            self._light_cost = UNSEEN_COST * median(self._light_costs)
        self.length_ns = median(self._light_ns or self._full_ns)
        self._affords_all = self._full_cost <= self._share * self.length_ns
