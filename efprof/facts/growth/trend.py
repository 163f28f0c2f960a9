"""Whether a memory's size after steps grows without end, and how fast: the trend of its readings.

The second evidence of a leak, beside what was counted: weighted Theil-Sen on the minima of equal blocks. One rule
serves short and long runs; its false alarms on simulated healthy runs are measured in tests/facts/growth/test_trend.py.
"""

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise

from efprof.artifacts.steps import StepRecord
from efprof.model import frozen_dataclass
from efprof.units import MIB

WARM_UP_SHARE, MIN_WARM_UP = 0.2, 3
"""Steps left out at the start: lazily made optimizer state and library caches grow there in every run."""
MAX_BLOCKS, STEPS_PER_BLOCK = 10, 3
MIN_SLOPE = 8 * MIB / 1000
"""Bytes per step: less costs under 1 GiB in 100,000 steps."""
MIN_HALF = 0.7
"""Of the slope, that each half shows: a cache that fills up grows in its first half only."""
MIN_STRAIGHTNESS = 8.0
"""Rise over the largest distance of a block, or of the last reading below it, from the line: a leak of equal pieces is
straight; noise, and what slows down before the last reading, are not."""
MIN_OF_NOISE = 2.0
"""Rise over the spread of all steps around the line, the outermost tenths left out: five blocks of three steps of mere
noise rise along a line once in some hundred runs, but no farther than the noise itself reaches."""
LEVEL_STEPS = 3
"""Steps before and after a window whose lowest tells the level."""
MIN_APART = 0.02
"""Of the way from the first block to the last: nearer ones tell nothing of the slope's interval. Of short steps the
first sixty are read densely, among what windows and counts of holders leave and give back: a fall of 0.3 MiB within six
steps made the interval of a leak of 43 MiB in 3,000 steps begin below 0."""
MAX_UNREAD_SHARE = 0.1
"""Of the run: where memory was last read before that, what is told of it is told up to that step only."""
NORMAL_95 = 1.96

Point = tuple[int, int]
"""(step, bytes)."""
IN_WINDOW = None
"""Stands for a step inside a window, whose collector keeps memory itself, or for a count of holders."""


def is_in_window(record: StepRecord) -> bool:
    """True if memory read in this step holds a collector's own: to watch lines and count calls takes none."""
    return record.window is not None and not record.window.startswith(("watch", "calls"))


@frozen_dataclass
class Trend:
    """Bytes per step with the interval that they lie in; of a line through points also the level at x = 0."""

    slope: float
    low: float
    high: float
    level: float = 0.0

    def distance(self, point: Point) -> float:
        return point[1] - self.level - self.slope * point[0]


@frozen_dataclass
class Fit:
    """Bytes after the steps that were read outside windows, less what windows left behind, and their trend.

    The trend is that of `blocks`, the minima of equal stretches of the readings from place `first_steady` on. The run
    has `num_steps` steps, read or not, the last of them `last_step`. `within` is what each of the steps needed at its
    highest instant above what it found and left; empty where not asked for.
    """

    steps: tuple[int, ...]
    sizes: tuple[int, ...]
    first_steady: int
    blocks: tuple[Point, ...]
    trend: Trend
    num_steps: int
    last_step: int
    within: tuple[int, ...]

    @property
    def read_until(self) -> int | None:
        """The last step that was read, where the run went on for long after it."""
        last = self.steps[-1]
        return last if self.last_step - last > MAX_UNREAD_SHARE * (self.last_step - self.steps[0]) else None

    @property
    def looked_at(self) -> str:
        """How many of the steps were read, in words: `after 26 of 400 steps, none of them later than step 309`."""
        end = "" if self.read_until is None else f", none of them later than step {self.read_until:,}"
        return f"after {len(self.steps):,} of {self.num_steps:,} steps{end}"

    def rise_until(self, step: int, slope: float) -> float:
        """What growth at that slope added up to a step, and no more than the rise that was measured."""
        return min(slope * (step - self.steps[0]), max(self.sizes) - min(self.sizes))


def fit(
    samples: Sequence[Point | None], records: Sequence[StepRecord], *, first_steady: int, within: Sequence[int] = ()
) -> Fit:
    """The trend of samples of these records, from place `first_steady` of those outside windows on.

    A profiler window keeps a few megabytes of its own for good: a step in the curve that no line of the user's made. So
    each window's change of level is taken out, but for what the slope between windows explains.
    """
    stretches = [
        [one for one in group if one is not IN_WINDOW]
        for is_window, group in groupby(samples, lambda one: one is IN_WINDOW)
        if not is_window
    ]
    slope = _slope_between_windows(stretches, first_steady)
    points, shift = list(stretches[0]), 0
    for before, after in pairwise(stretches):
        (step_before, bytes_before), (step, num_bytes) = _lowest(before[-LEVEL_STEPS:]), _lowest(after[:LEVEL_STEPS])
        # A window only leaves memory behind: what fell was freed, and what lay on the line is no step of its own.
        shift += max(0, num_bytes - bytes_before - round(slope * (step - step_before)))
        points += [(step, num_bytes - shift) for step, num_bytes in after]
    blocks = block_minima(points[first_steady:])
    steps, sizes = zip(*points, strict=True)
    return Fit(
        steps=steps,
        sizes=sizes,
        first_steady=first_steady,
        blocks=tuple(blocks),
        trend=theil_sen(blocks),
        num_steps=len(records),
        last_step=records[-1].step,
        within=tuple(within),
    )


def first_after_warm_up(steps: Sequence[int]) -> int:
    return max(MIN_WARM_UP, bisect_left(steps, steps[0] + WARM_UP_SHARE * (steps[-1] + 1 - steps[0])))


def block_minima(points: Sequence[Point], *, steps_per_block: int = STEPS_PER_BLOCK) -> list[Point]:
    """The lowest point of each of up to ten blocks of equal length: the level below which memory never falls."""
    num_blocks = min(MAX_BLOCKS, len(points) // steps_per_block)
    edges = [round(index * len(points) / num_blocks) for index in range(num_blocks + 1)]
    return [_lowest(points[start:end]) for start, end in pairwise(edges)]


def theil_sen(points: Sequence[Point]) -> Trend:
    """The median of the slopes of all pairs, each weighted by the steps between them, with Sen's (1968) interval.

    Without weights (Sievers 1978) readings that lie close together decide: of short steps the first sixty are read
    densely, and what is added in lumps (now and then one more page, one longer list) came out up to 10 % too small.
    The interval is from the variance of Kendall's S over pairs that are far enough apart, and wide enough to
    hold the slope.
    """
    pairs = sorted(_slopes(points))
    least_apart = MIN_APART * (points[-1][0] - points[0][0])
    slopes = [value for value, num_steps in pairs if num_steps >= least_apart]
    num_points = len(points)
    spread = NORMAL_95 * math.sqrt(num_points * (num_points - 1) * (2 * num_points + 5) / 18)
    rank_low = max(0, math.floor((len(slopes) - spread) / 2))
    rank_high = min(len(slopes) - 1, math.ceil((len(slopes) + spread) / 2))
    slope = _weighted_median(pairs)
    level = statistics.median(value - slope * at for at, value in points)
    return Trend(slope=slope, low=min(slope, slopes[rank_low]), high=max(slope, slopes[rank_high]), level=level)


def is_steady(blocks: Sequence[Point], trend: Trend) -> bool:
    """Whether the blocks rise beyond doubt, and in both halves."""
    middle = len(blocks) // 2
    halves = [theil_sen(half).slope for half in (blocks[: middle + 1], blocks[middle:])]
    return trend.low > 0 and min(halves) >= MIN_HALF * trend.slope


def is_leak(points: Sequence[Point], blocks: Sequence[Point], trend: Trend) -> bool:
    """Whether the blocks of all steady `points` rise along the line, in both halves and to the last, above noise."""
    if trend.slope < MIN_SLOPE or not is_steady(blocks, trend):
        return False
    rise = trend.slope * (blocks[-1][0] - blocks[0][0])
    farthest = max(-trend.distance(points[-1]), *(abs(trend.distance(block)) for block in blocks))
    scatter = sorted(trend.distance(point) for point in points)
    tenth = len(scatter) // 10
    return rise >= MIN_STRAIGHTNESS * farthest and rise >= MIN_OF_NOISE * (scatter[-1 - tenth] - scatter[tenth])


def _slope_between_windows(stretches: Sequence[Sequence[Point]], first_steady: int) -> float:
    """That of readings with no window between them, which none can have shifted; 0 where there are no two."""
    pairs, place = [], 0
    for stretch in stretches:
        steady = stretch[max(0, first_steady - place) :]
        place += len(stretch)
        pairs += _slopes(block_minima(steady, steps_per_block=1)) if steady else []
    return max(0.0, _weighted_median(sorted(pairs))) if pairs else 0.0


def _slopes(points: Sequence[Point]) -> list[tuple[float, int]]:
    """Of every pair: bytes per step, and the steps between them."""
    return [
        ((later[1] - earlier[1]) / (later[0] - earlier[0]), later[0] - earlier[0])
        for index, earlier in enumerate(points)
        for later in points[index + 1 :]
    ]


def _lowest(points: Sequence[Point]) -> Point:
    return min(points, key=lambda point: point[1])


def _weighted_median(pairs: Sequence[tuple[float, int]]) -> float:
    """Of (value, weight) in the order of values: the one that half of the weight lies below, or the mean of two."""
    half = sum(weight for _, weight in pairs) / 2
    reached = list(accumulate(weight for _, weight in pairs))
    place = bisect_left(reached, half)
    is_between = reached[place] == half and place + 1 < len(pairs)
    return (pairs[place][0] + pairs[place + 1][0]) / 2 if is_between else pairs[place][0]
