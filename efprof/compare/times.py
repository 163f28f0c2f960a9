"""Times of two sides that took turns -> whether head is slower: the sample is a pair of processes, not a pair of turns.

Simulated with noise of real machines (2 % between processes), 256 turns of one pair of processes gave 7 to 8 % false
alarms, eight pairs of 32 turns at most 0.8 %.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

from efprof.model import MetricChange, Verdict, frozen_dataclass
from efprof.units import format_count, format_share

LOOKS = (4, 8)
"""After so many pairs of processes it is asked whether they tell."""
STUDENT = {4: 7.453, 8: 4.029}
"""One-sided bounds at 0.25 %, with one degree of freedom less: two looks at two statistics err in 1 % together."""
MIN_CERTAIN = 0.01
MIN_EFFECT = 0.03
"""Worse: more than 1 % for certain, and 3 % or more most likely. Better: the same the other way round."""
MAX_DEVIATIONS = 3.0
"""A turn that lies farther off counts as one that lies there: another program was on the machine."""
DEVIATION_OF_MEDIAN = 1.4826
"""The standard deviation of a normal distribution, over its median absolute deviation."""


@frozen_dataclass
class TurnTimes:
    """Of one pair of processes: seconds per step of base and head in each pair of turns."""

    pairs: tuple[tuple[float, float], ...]

    @property
    def ratios(self) -> list[float]:
        """Log-ratios of head to base."""
        return [math.log(head / base) for base, head in self.pairs]

    @property
    def typical(self) -> float:
        """The mean log-ratio, without what one turn alone was disturbed by."""
        ratios = self.ratios
        middle = statistics.median(ratios)
        reach = MAX_DEVIATIONS * DEVIATION_OF_MEDIAN * statistics.median(abs(one - middle) for one in ratios)
        return statistics.fmean(max(middle - reach, min(middle + reach, one)) for one in ratios)

    @property
    def mean(self) -> float:
        """The log-ratio of all their time, which sees what comes now and then."""
        return math.log(math.fsum(head for _, head in self.pairs) / math.fsum(base for base, _ in self.pairs))


@frozen_dataclass
class SideTimes:
    """Of all pairs of processes; `why` says why there are no more, and is empty where they tell enough."""

    pairs: tuple[TurnTimes, ...]
    why: str = ""


STATISTICS = (("step_ms", "step time (typical)", "typical"), ("step_ms_mean", "step time (mean)", "mean"))


def is_decided(times: Sequence[TurnTimes]) -> bool:
    """Whether these tell."""
    return all(_judge([getattr(one, way) for one in times])[0] != "unclear" for _, _, way in STATISTICS)


def compare_times(times: SideTimes, budgets: Mapping[str, float]) -> tuple[MetricChange, ...]:
    """Two rows that gate: of a typical turn, and of all time."""
    used = times.pairs[: max((look for look in LOOKS if look <= len(times.pairs)), default=len(times.pairs))]
    turns = [base for one in used for base, _ in one.pairs] or [math.nan]
    rows = []
    for name, label, way in STATISTICS:
        ratios = [getattr(one, way) for one in used]
        verdict, reason, interval = _judge(ratios)
        effect, budget = math.expm1(statistics.fmean(ratios)) if ratios else None, budgets.get(name, 0.0)
        base_ms = 1000 * (statistics.median(turns) if way == "typical" else statistics.fmean(turns))
        rows.append(
            MetricChange(
                name=name,
                label=label,
                unit="ms",
                base_median=base_ms,
                base_spread=math.nan,
                head_median=base_ms * (1 + effect) if effect is not None else math.nan,
                head_spread=math.nan,
                effect=effect,
                interval=interval,
                verdict=verdict,
                budget=budget,
                is_over_budget=verdict == "worse" and effect is not None and effect > budget,
                reason=f"{reason} {times.why}".strip() if verdict == "unclear" else reason,
            )
        )
    return tuple(rows)


def _judge(ratios: Sequence[float]) -> tuple[Verdict, str, tuple[float, float] | None]:
    """By log-ratios, one for each pair of processes; with the interval of the effect where there are enough of them."""
    used = len(ratios)
    if used not in LOOKS:
        return "unclear", f"{format_count(len(ratios), 'pair')} of processes took turns: too few to tell.", None
    middle, width = statistics.fmean(ratios), STUDENT[used] * statistics.stdev(ratios) / math.sqrt(used)
    interval = math.expm1(middle - width), math.expm1(middle + width)
    low, high = interval
    effect = math.expm1(middle)
    based = f"{used} pairs of processes that took turns"
    if low > MIN_CERTAIN and effect >= MIN_EFFECT:
        return "worse", f"{based}.", interval
    if high < -MIN_CERTAIN and effect <= -MIN_EFFECT:
        return "better", f"{based}.", interval
    if high < MIN_EFFECT and effect > -MIN_EFFECT:
        return "same", f"{based}: less than {format_share(MIN_EFFECT)} slower.", interval
    least = max(MIN_EFFECT, math.expm1(width) + MIN_CERTAIN)
    return "unclear", f"{based}: less than {format_share(least)} could not be seen.", interval
