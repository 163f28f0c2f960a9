"""Times of two sides that took turns -> whether head is slower: the sample is a pair of processes, not a pair of turns.

Simulated with noise of real machines (2 % between processes), 256 turns of one pair of processes gave 7 to 8 % false
alarms, eight pairs of 32 turns at most 0.8 %.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

from efprof.model import MetricChange, Series, SeriesLine, Verdict, frozen_dataclass
from efprof.units import format_count, format_share

LOOKS = (4, 8)
"""After so many pairs of processes it is asked whether they tell."""
STUDENT = {4: 14.089, 8: 4.317}
"""One-sided bounds at 0.25 %, with two degrees of freedom less, for the means of either order of start: two looks at
two statistics err in 1 % together."""
MIN_CERTAIN = 0.01
MIN_EFFECT = 0.03
"""Worse: more than 1 % for certain, and 3 % or more most likely. Better: the same the other way round."""
MAX_DEVIATIONS = 3.0
"""A turn that lies farther off counts as one that lies there: another program was on the machine."""
DEVIATION_OF_MEDIAN = 1.4826
"""The standard deviation of a normal distribution, over its median absolute deviation."""


@frozen_dataclass
class TurnTimes:
    """Of one pair of processes: seconds per update of base and head in each pair of turns, and which was started first.

    The one that is started first gets the pages that others have just given back: in twelve pairs of a training with
    itself it was 2 to 4 % slower to its end, wherever it ran, and no longer so where a third was started before both.
    """

    pairs: tuple[tuple[float, float], ...]
    is_base_first: bool

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


INTERRUPTED = "It was interrupted."


@frozen_dataclass
class Judgement:
    """Of one statistic: `effect` is None without turns, `interval` where too few pairs of processes took them."""

    verdict: Verdict
    reason: str
    effect: float | None
    interval: tuple[float, float] | None = None


@frozen_dataclass
class SideTimes:
    """Of all pairs of processes; `why` says why there are no more, and is empty where they tell enough."""

    pairs: tuple[TurnTimes, ...]
    why: str = ""
    how: str = "took turns"


TURNS, PAIR = "a pair of turns", "a pair of processes, typical"
Statistic = Callable[[TurnTimes], float]
TYPICAL: Statistic = attrgetter("typical")
STATISTICS: tuple[tuple[str, str, Statistic], ...] = (
    ("step_ms", "step time (typical)", TYPICAL),
    ("step_ms_mean", "step time (mean)", attrgetter("mean")),
)


def is_decided(times: Sequence[TurnTimes]) -> bool:
    """Whether these tell."""
    return all(_judge(times, statistic).verdict != "unclear" for _, _, statistic in STATISTICS)


def compare_times(times: SideTimes, budgets: Mapping[str, float]) -> tuple[MetricChange, ...]:
    """Two rows that gate: of a typical turn, and of all time."""
    used = times.pairs[: max((look for look in LOOKS if look <= len(times.pairs)), default=len(times.pairs))]
    turns = [base for one in used for base, _ in one.pairs] or [math.nan]
    rows = []
    for name, label, statistic in STATISTICS:
        judged, budget = _judge(used, statistic, times.how), budgets.get(name, 0.0)
        effect, is_worse = judged.effect, judged.verdict == "worse"
        base_ms = 1000 * (statistics.median(turns) if statistic is TYPICAL else statistics.fmean(turns))
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
                interval=judged.interval,
                verdict=judged.verdict,
                budget=budget,
                is_over_budget=is_worse and effect is not None and effect > budget,
                reason=f"{judged.reason} {times.why}".strip() if judged.verdict == "unclear" else judged.reason,
            )
        )
    return tuple(rows)


def time_picture(times: SideTimes) -> Series | None:
    """How much longer head's turns were than base's, in percent: a column of points for each pair of processes."""
    turns = [
        (number + (place + 0.5) / len(one.ratios) - 0.5, 100 * math.expm1(ratio))
        for number, one in enumerate(times.pairs, 1)
        for place, ratio in enumerate(one.ratios)
    ]
    if not turns:
        return None
    whole = [(float(number), 100 * math.expm1(one.typical)) for number, one in enumerate(times.pairs, 1)]
    return Series(
        title="Head's turns against base's",
        x_label="pair of processes",
        y_label="longer by",
        y_unit="percent",
        lines=tuple(
            SeriesLine(label=label, x=x, y=y, are_apart=True, is_highlighted=label == PAIR)
            for label, (x, y) in ((TURNS, zip(*turns, strict=True)), (PAIR, zip(*whole, strict=True)))
        ),
    )


def _judge(times: Sequence[TurnTimes], statistic: Statistic, how: str = "") -> Judgement:
    """By this log-ratio of each pair of processes; `how` they were run stands in the reason."""
    each = [[statistic(one) for one in times if one.is_base_first is first] for first in (True, False)]
    used = len(times)
    if used not in LOOKS:
        effect = math.expm1(statistics.fmean([*each[0], *each[1]])) if times else None
        reason = f"{format_count(used, 'pair')} of processes {how}: too few to tell."
        return Judgement(verdict="unclear", reason=reason, effect=effect)
    middle = statistics.fmean(statistics.fmean(some) for some in each)
    variance = math.fsum((one - statistics.fmean(some)) ** 2 for some in each for one in some) / (used - 2)
    width = STUDENT[used] * math.sqrt(variance / used)
    low, high = math.expm1(middle - width), math.expm1(middle + width)
    effect = math.expm1(middle)
    verdict: Verdict = "unclear"
    least = max(MIN_EFFECT, math.expm1(width) + MIN_CERTAIN)
    more = f": less than {format_share(least)} could not be seen"
    if low > MIN_CERTAIN and effect >= MIN_EFFECT:
        verdict, more = "worse", ""
    elif high < -MIN_CERTAIN and effect <= -MIN_EFFECT:
        verdict, more = "better", ""
    elif high < MIN_EFFECT and effect > -MIN_EFFECT:
        verdict, more = "same", f": less than {format_share(MIN_EFFECT)} slower"
    reason = f"{used} pairs of processes {how}{more}."
    return Judgement(verdict=verdict, reason=reason, effect=effect, interval=(low, high))
