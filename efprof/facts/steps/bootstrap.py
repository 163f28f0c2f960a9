"""Intervals for statistics of consecutive steps, which are not independent: the circular block bootstrap.

Politis and Romano (1992), "A circular block-resampling procedure for stationary data".
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

NUM_RESAMPLES = 1000
"""Enough for the 2.5 % and 97.5 % quantiles to repeat to two digits."""
QUANTILES = (0.025, 0.975)
SEED = 20_260_301
"""Fixed: the same run gives the same report."""


def resample(samples: Sequence[float], generator: np.random.Generator) -> NDArray[np.float64]:
    """`NUM_RESAMPLES` series as long as `samples`, glued from blocks of n^(1/3) steps: [resamples, steps]."""
    values = np.asarray(samples, dtype=np.float64)
    length = max(1, round(len(values) ** (1 / 3)))
    num_blocks = math.ceil(len(values) / length)
    starts = generator.integers(0, len(values), size=(NUM_RESAMPLES, num_blocks, 1))
    places = (starts + np.arange(length)) % len(values)
    return values[places.reshape(NUM_RESAMPLES, -1)[:, : len(values)]]


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median."""
    return _interval(np.median(resample(samples, _generator()), axis=1))


def mean_interval(samples: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean."""
    return _interval(np.mean(resample(samples, _generator()), axis=1))


def quantile_change_intervals(
    early: Sequence[float], late: Sequence[float], quantile: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """The 95 % intervals of the ratio and of the difference of the later quantile to the earlier one."""
    generator = _generator()
    before = np.quantile(resample(early, generator), quantile, axis=1)
    after = np.quantile(resample(late, generator), quantile, axis=1)
    return _interval(after / np.maximum(before, np.finfo(np.float64).tiny)), _interval(after - before)


def _generator() -> np.random.Generator:
    return np.random.default_rng(SEED)


def _interval(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(values, QUANTILES)
    return float(low), float(high)
