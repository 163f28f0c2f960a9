"""What the samples of a run say about it, and how sure that is."""

import math
import statistics
from collections.abc import Callable, Sequence

import numpy

Estimator = Callable[[Sequence[float]], float]
"""From a run's samples, one per step and at least one, to one number in their unit."""

NUM_BLOCKS = 10
"""Blocks a run's steps are cut into: the floor test for leaks in statistics.md section 1.8 uses as many."""

MIN_STEPS_IN_BLOCK = 5
"""A 20th percentile of fewer than five steps is their minimum."""

MIN_BLOCKS = 4
"""The standard deviation of fewer says nothing."""

SMALLEST_MS = 1e-3
"""A clock that counts microseconds cannot tell shorter times from none; it keeps logarithms finite."""


def median(samples: Sequence[float]) -> float:
    """The middle sample, or the mean of the middle two."""
    return float(statistics.median(samples))


def percentile_20(samples: Sequence[float]) -> float:
    """What a step takes when nothing disturbs it: interference only ever adds (statistics.md section 1.4)."""
    return float(numpy.quantile(samples, 0.2))


def mean(samples: Sequence[float]) -> float:
    """It sees slow-downs that come now and then, to which low percentiles are blind (statistics.md section 1.4)."""
    return math.fsum(samples) / len(samples)


def interquartile_range(samples: Sequence[float]) -> float:
    """The width of the middle half of the samples, in their unit."""
    low, high = numpy.quantile(samples, (0.25, 0.75))
    return float(high - low)


def block_deviation(samples_ms: Sequence[float], estimate: Estimator) -> float | None:
    """How far apart stretches of one run are: the standard deviation of log estimates of equal blocks of steps.

    It is not divided by the root of their number, as it would be for independent blocks: what disturbs a shared
    machine lasts longer than a run (autocorrelation of whole runs .5 to .66, statistics.md section 1.2). None
    where the run is too short to be cut into blocks.
    """
    num_blocks = min(NUM_BLOCKS, len(samples_ms) // MIN_STEPS_IN_BLOCK)
    if num_blocks < MIN_BLOCKS:
        return None
    blocks = numpy.array_split(numpy.asarray(samples_ms), num_blocks)
    return statistics.stdev(math.log(max(SMALLEST_MS, estimate(block.tolist()))) for block in blocks)
