"""Peak memory as a line over the batch size, and the largest batch below a budget."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

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
        """What a batch of this size is expected to need."""
        return self.fixed_bytes + self.sample_bytes * batch

    def largest(self, budget_bytes: int, *, certainty: float = 0.0) -> int | None:
        """The largest batch that needs no more; None where each needs the same, and negative where none does."""
        if self.sample_bytes <= 0:
            return None
        return int((budget_bytes - certainty * self.error_bytes - self.fixed_bytes) // self.sample_bytes)


def fit_line(runs: Sequence[Measured]) -> MemoryModel:
    """Least squares over the runs whose peak depends on the batch; raises ValueError where fewer than two sizes ran.

    At small sizes another instant makes the peak, such as the optimizer's, whatever the batch: memory is flat there.
    """
    points = _rising([(float(run.batch), float(run.peak_bytes)) for run in runs if run.peak_bytes is not None])
    if len({batch for batch, _ in points}) < 2:
        raise ValueError("a line needs two sizes")
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
    fitting = [run for run in runs if run.peak_bytes is not None and run.peak_bytes <= budget_bytes]
    largest = max((run.batch for run in fitting), default=0)
    try:
        model = fit_line(runs)
    except ValueError:
        model = None
    if model is None or model.num_points < MIN_POINTS_TO_TRUST:
        return max(min(1, largest), int(largest * MARGIN))
    surely = model.largest(budget_bytes, certainty=CERTAINTY)
    return largest if surely is None else max(min(1, largest), min(largest, surely))
