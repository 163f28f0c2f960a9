"""The median of paired figures with its interval, from their order alone: no assumption on the noise of a machine."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A median and the interval of its sign test; the interval is empty where there are too few pairs for one."""

    value: float
    low: float = -math.inf
    high: float = math.inf


def median_with_interval(values: Sequence[float]) -> Estimate:
    """The narrowest interval between two order statistics that holds the median in CONFIDENCE of all cases.

    Fewer than six values hold it less often, whatever they are: their interval has no ends.
    """
    ordered, median = sorted(values), statistics.median(values)
    outside = _num_outside(len(ordered))
    if outside == 0:
        return Estimate(value=median)
    return Estimate(value=median, low=ordered[outside - 1], high=ordered[-outside])


def _num_outside(num_values: int) -> int:
    """The largest k such that the k-th smallest and the k-th largest still hold the median between them."""
    tail, k = 0.0, 0
    while k < num_values:
        tail += math.comb(num_values, k) / 2**num_values
        if 2 * tail > 1 - CONFIDENCE:
            break
        k += 1
    return k
