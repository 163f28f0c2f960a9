"""Finds the largest batch below a budget in a handful of runs: peak memory is nearly a line over the batch size."""

import math
from collections.abc import Callable, Sequence

from efprof.model import EfprofError, frozen_dataclass

GROWTH, GROWTH_WHERE_FLAT = 4, 16
"""From one small size to the next; the second where memory has not risen since the one before."""

MIN_SMALL, MAX_SMALL = 3, 6
"""Sizes that are measured before a line through two of them is believed, and before memory is said to stay flat."""

MIN_RISE = 0.1
"""Of what the budget leaves above the first size: what rose by less tells too little of what comes, since a few
hundred KiB come and go between runs (measured)."""

LEVEL_SHARE = 0.01
"""Of the peak: a rise by less is none."""

MIN_APART = 1.25
"""Between two sizes: memory rises less from 92 to 93 samples than from run to run."""

MAX_RUNS = 10

GOOD_ENOUGH = 0.97
"""Of the largest batch that the line allows: nobody trains with three percent more."""

MARGIN = 0.25
"""Of the largest batch that ran, left free: longer samples or a busier device than in those few steps may need it."""


@frozen_dataclass
class Measured:
    """A run of some steps; `peak_bytes` is None where it ran out of memory."""

    batch: int
    peak_bytes: int | None


@frozen_dataclass
class MemoryModel:
    """`fixed_bytes` whatever the batch, `sample_bytes` for each sample."""

    fixed_bytes: float
    sample_bytes: float

    def largest(self, budget_bytes: int) -> int:
        """The largest batch that needs no more; negative where none does."""
        return int((budget_bytes - self.fixed_bytes) // self.sample_bytes)


@frozen_dataclass
class Fitted:
    """All runs in order, the line near the budget, the largest batch that ran within it, and the one to take.

    `model` is None where memory did not grow with the batch in these runs. `failure` says why a size larger than all
    that ran did not train, if that is what ended the search.
    """

    runs: tuple[Measured, ...]
    model: MemoryModel | None
    largest: int
    recommended: int
    failure: str | None = None


def search(
    measure: Callable[[int], int | None], budget_bytes: int, *, smallest: int, largest_allowed: int | None = None
) -> Fitted:
    """Measure small sizes, then what the line through two of them promises, until that runs within the budget.

    `measure` runs a batch size and gives its peak in bytes, None where it ran out of memory. An EfprofError that it
    raises for another reason ends the search; it is raised on if no size has run by then.
    """
    runs: list[Measured] = []
    batch: int | None = smallest
    failure: str | None = None
    while batch is not None and len(runs) < MAX_RUNS:
        try:
            runs.append(Measured(batch=batch, peak_bytes=measure(batch)))
        except EfprofError as error:
            if not _largest(runs, budget_bytes):
                raise
            failure = f"Stopped at {batch:,}: {error}"
            break
        batch = _next(runs, budget_bytes, largest_allowed)
    largest = _largest(runs, budget_bytes)
    return Fitted(
        runs=tuple(runs),
        model=line_through(runs, budget_bytes),
        largest=largest,
        recommended=max(min(1, largest), int((1 - MARGIN) * largest)),
        failure=failure,
    )


def line_through(runs: Sequence[Measured], budget_bytes: int) -> MemoryModel | None:
    """Through the run whose peak is nearest the budget and the nearest of another size.

    None where none of another size ran, or the larger needs no more.
    """
    ran = [(run.batch, run.peak_bytes) for run in runs if run.peak_bytes is not None]
    near = sorted(sorted(ran, reverse=True), key=lambda point: abs(point[1] - budget_bytes))
    apart = [one for one in near if max(one[0], near[0][0]) >= MIN_APART * min(one[0], near[0][0])]
    if not apart:
        return None
    (low, low_bytes), (high, high_bytes) = sorted((near[0], apart[0]))
    if high_bytes - low_bytes < LEVEL_SHARE * low_bytes:
        return None
    sample_bytes = (high_bytes - low_bytes) / (high - low)
    return MemoryModel(fixed_bytes=high_bytes - sample_bytes * high, sample_bytes=sample_bytes)


def _next(runs: list[Measured], budget_bytes: int, largest_allowed: int | None) -> int | None:
    """The size to try; None where what ran is as good as the largest there is."""
    model, best = line_through(runs, budget_bytes), _largest(runs, budget_bytes)
    failed = min((run.batch for run in runs if not _fits(run, budget_bytes)), default=None)
    if failed is None:
        wanted = _larger(runs, budget_bytes, model)
    elif model is None:
        is_flat = sum(run.peak_bytes is not None for run in runs) > 1
        wanted = None if is_flat and not best else (best + failed) // 2
    else:
        wanted = model.largest(budget_bytes)
    if wanted is None:
        return None
    wanted = min(wanted, largest_allowed or wanted)
    if failed is not None and wanted >= failed:  # the line promised it, and it failed: nobody knows by how much
        wanted = math.isqrt(max(1, best) * failed)
    is_better = wanted > best and wanted * GOOD_ENOUGH > best and wanted >= 1
    return wanted if is_better and all(run.batch != wanted for run in runs) else None


def _larger(runs: list[Measured], budget_bytes: int, model: MemoryModel | None) -> int | None:
    """Where all sizes fitted so far: what the line promises, or a larger small one while they tell too little."""
    first, last = runs[0].peak_bytes or 0, runs[-1].peak_bytes or 0
    if model is None and len(runs) > 1:
        is_over = last - first >= LEVEL_SHARE * first  # it rose and then no more: the data is over
        return None if is_over or len(runs) >= MAX_SMALL else runs[-1].batch * GROWTH_WHERE_FLAT
    larger, has_risen = runs[-1].batch * GROWTH, last - first >= MIN_RISE * (budget_bytes - first)
    if model is None or not has_risen:
        return larger
    promised = model.largest(budget_bytes)
    return promised if len(runs) >= MIN_SMALL else min(larger, promised)


def _largest(runs: Sequence[Measured], budget_bytes: int) -> int:
    return max((run.batch for run in runs if _fits(run, budget_bytes)), default=0)


def _fits(run: Measured, budget_bytes: int) -> bool:
    return run.peak_bytes is not None and run.peak_bytes <= budget_bytes
