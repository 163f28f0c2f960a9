"""Finds the largest batch below a budget in a handful of runs: peak memory is a line over the batch size."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

GROWTH: Final = 4
"""From one small size to the next."""

GROWTH_WHERE_FLAT: Final = 16
"""Where memory has not risen at all since the first."""

MIN_SMALL: Final = 3
"""Sizes that are measured first: two tell of a line, the third whether it is one."""

MAX_SMALL: Final = 6

MIN_RISE: Final = 0.1
"""Of what the budget leaves above the first size: what rose by less tells too little of what comes, since a few
hundred KiB come and go between runs (measured)."""

LEVEL_SHARE: Final = 0.01
"""Of the peak: a rise by less is none."""

MAX_PROOFS: Final = 4
"""Runs near the budget: the first mends the line, the second nearly always fits it."""

GOOD_ENOUGH: Final = 0.97
"""Of the largest batch that the line allows: nobody trains with three percent more."""


CERTAINTY: Final = 3.0
"""Standard deviations of what the line misses: of runs that scatter normally, one in seven hundred needs more."""

MARGIN: Final = 0.75
"""Of the largest batch that ran, where too few sizes were measured to tell how far the line misses: longer samples or
a busier device than in those few steps may need the rest."""

FLAT_SHARE: Final = 0.15
"""Of the whole rise: what rose by less may belong to the flat part."""

MIN_POINTS_TO_TRUST: Final = 4
"""A line through three leaves one figure to tell of what it misses."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A run of some steps; `peak_bytes` is None where it ran out of memory."""

    batch: int
    peak_bytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryModel:
    """`fixed_bytes` whatever the batch, `sample_bytes` for each sample; it misses its points by `error_bytes`."""

    fixed_bytes: float
    sample_bytes: float
    error_bytes: float
    num_points: int

    def peak_bytes(self, batch: int) -> float:
        return self.fixed_bytes + self.sample_bytes * batch

    def largest(self, budget_bytes: int, *, certainty: float = 0.0) -> int | None:
        """The largest batch that needs no more; None where each needs the same, and negative where none does."""
        if self.sample_bytes <= 0:
            return None
        return int((budget_bytes - certainty * self.error_bytes - self.fixed_bytes) // self.sample_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """All runs in order, the line through them, the largest batch that ran within the budget, and the one to take."""

    runs: tuple[Measured, ...]
    model: MemoryModel | None
    largest: int
    recommended: int

    @property
    def is_limited_by_memory(self) -> bool:
        """Whether a larger batch would go over the budget, as far as anything tells."""
        return self.model is not None and self.model.sample_bytes > 0


def search(
    measure: Callable[[int], int | None], budget_bytes: int, *, smallest: int, largest_allowed: int | None = None
) -> Fitted:
    """Measure small sizes, then what the line through them promises, until that runs within the budget.

    `measure` runs a batch size and gives its peak in bytes, None where it ran out of memory.
    """
    runs: list[Measured] = []

    batch: int | None = smallest
    while batch is not None:
        runs.append(Measured(batch=batch, peak_bytes=measure(batch)))
        batch = _next_small(runs, budget_bytes, largest_allowed)
    for _ in range(MAX_PROOFS):
        wanted = _next(runs, budget_bytes, largest_allowed)
        if wanted is None:
            break
        runs.append(Measured(batch=wanted, peak_bytes=measure(wanted)))
    return Fitted(
        runs=tuple(runs),
        model=fit_line(runs),
        largest=_largest(runs, budget_bytes),
        recommended=recommended(runs, budget_bytes),
    )


def fit_line(runs: Sequence[Measured]) -> MemoryModel | None:
    """Least squares over the runs whose peak depends on the batch; None where fewer than two sizes ran.

    At small sizes another instant makes the peak, such as the optimizer's, whatever the batch: memory is flat there.
    """
    points = _rising([(float(run.batch), float(run.peak_bytes)) for run in runs if run.peak_bytes is not None])
    if len({batch for batch, _ in points}) < 2:
        return None
    line = statistics.linear_regression([batch for batch, _ in points], [peak for _, peak in points])
    misses = [peak - line.slope * batch - line.intercept for batch, peak in points]
    freedom = max(1, len(points) - 2)
    return MemoryModel(
        fixed_bytes=line.intercept,
        sample_bytes=line.slope,
        error_bytes=(sum(miss**2 for miss in misses) / freedom) ** 0.5,
        num_points=len(points),
    )


def _rising(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those above the flat part, and the two largest in any case."""
    points = sorted(points)
    if not points:
        return points
    flat, most = min(peak for _, peak in points), max(peak for _, peak in points)
    above = [point for point in points[:-2] if point[1] - flat >= FLAT_SHARE * (most - flat)]
    return above + points[-2:]


def recommended(runs: Sequence[Measured], budget_bytes: int) -> int:
    """The size to train with: surely below the budget, and no larger than what ran; 0 where none did."""
    largest, model = _largest(runs, budget_bytes), fit_line(runs)
    if model is None or model.num_points < MIN_POINTS_TO_TRUST:
        return max(min(1, largest), int(largest * MARGIN))
    surely = model.largest(budget_bytes, certainty=CERTAINTY)
    return largest if surely is None else max(min(1, largest), min(largest, surely))


def _next_small(runs: list[Measured], budget_bytes: int, largest_allowed: int | None) -> int | None:
    """A larger one while they tell too little; None where they tell enough, or the last one did not fit."""
    first, last = runs[0], runs[-1]
    if first.peak_bytes is None or last.peak_bytes is None or not _fits(last, budget_bytes):
        return None
    has_risen = last.peak_bytes - first.peak_bytes >= MIN_RISE * (budget_bytes - first.peak_bytes)
    if len(runs) >= MAX_SMALL or (has_risen and len(runs) >= MIN_SMALL):
        return None
    is_flat = len(runs) > 1 and last.peak_bytes - first.peak_bytes < LEVEL_SHARE * first.peak_bytes
    batch = last.batch * (GROWTH_WHERE_FLAT if is_flat else GROWTH)
    model = fit_line(runs)
    promised = model.largest(budget_bytes) if model is not None and has_risen else None
    limits = [limit for limit in (largest_allowed, promised) if limit is not None]
    batch = min([batch, *limits])
    return batch if batch > last.batch else None


def _next(runs: list[Measured], budget_bytes: int, largest_allowed: int | None) -> int | None:
    """The size to try; None where what ran is as good as the largest there is."""
    model, best = fit_line(runs), _largest(runs, budget_bytes)
    failed = min((run.batch for run in runs if not _fits(run, budget_bytes)), default=None)
    if model is None and failed is not None:
        return (best + failed) // 2 or None if failed - best > 1 else None
    wanted = model.largest(budget_bytes) if model is not None else None
    if _has_levelled(runs):
        return None
    if wanted is None:  # the memory does not depend on the batch, as far as anything tells
        wanted = largest_allowed
    if wanted is None:
        return None
    if largest_allowed is not None:
        wanted = min(wanted, largest_allowed)
    if failed is not None and wanted >= failed:  # the line promised it, and it failed: nobody knows by how much
        wanted = math.isqrt(max(1, best) * failed)
    if wanted <= best or wanted * GOOD_ENOUGH <= best or wanted < 1:
        return None
    return wanted if all(run.batch != wanted for run in runs) else None


def _has_levelled(runs: list[Measured]) -> bool:
    """Whether memory rose with the batch and then no more: the data is over, and larger batches are not."""
    points = sorted((run.batch, run.peak_bytes) for run in runs if run.peak_bytes is not None)
    if len(points) < MIN_SMALL:
        return False
    first, before, last = points[0][1], points[-2], points[-1]
    return before[1] - first > LEVEL_SHARE * first and last[1] - before[1] < LEVEL_SHARE * before[1]


def _largest(runs: Iterable[Measured], budget_bytes: int) -> int:
    return max((run.batch for run in runs if _fits(run, budget_bytes)), default=0)


def _fits(run: Measured, budget_bytes: int) -> bool:
    return run.peak_bytes is not None and run.peak_bytes <= budget_bytes
