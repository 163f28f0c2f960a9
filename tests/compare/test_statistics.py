"""The numbers made of a run's samples."""

import math
from statistics import fmean as mean
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efprof.compare.verdicts import block_deviation, interquartile_range, percentile_20

times_ms = st.lists(st.floats(min_value=0.01, max_value=1e5), min_size=1, max_size=200)


@given(times_ms, st.floats(min_value=0.1, max_value=10))
def test_estimates_lie_within_the_samples_and_scale_with_their_unit(samples: list[float], factor: float) -> None:
    for estimate in (median, percentile_20, mean):
        assert min(samples) * (1 - 1e-12) <= estimate(samples) <= max(samples) * (1 + 1e-12)
    assert percentile_20(samples) <= median(samples) * (1 + 1e-12), "of a fifth of the steps"
    scaled = [sample * factor for sample in samples]
    for estimate in (median, percentile_20, mean, interquartile_range):
        assert estimate(scaled) == pytest.approx(estimate(samples) * factor, rel=1e-9, abs=1e-9)


def test_only_the_mean_sees_a_stall_every_tenth_step() -> None:
    samples = [10.0, *[10.0] * 8, 100.0] * 10
    assert (percentile_20(samples), median(samples), mean(samples)) == (10.0, 10.0, 19.0)


def test_blocks_of_a_steady_run_do_not_differ_and_of_one_that_slows_down_do() -> None:
    assert block_deviation([10.0] * 100, percentile_20) == 0
    deviation = block_deviation([10.0] * 50 + [20.0] * 50, percentile_20)
    assert deviation == pytest.approx(math.log(2) * math.sqrt(10 / 9) / 2)
    assert block_deviation([10.0] * 19, mean) is None
    assert block_deviation([10.0] * 20, mean) is not None
    assert block_deviation([0.0] * 50 + [1.0] * 50, mean) == pytest.approx(3.64, abs=0.01)


@given(st.lists(st.floats(min_value=0.01, max_value=1e4), min_size=20, max_size=100))
def test_block_deviation_does_not_depend_on_the_unit(samples: list[float]) -> None:
    scaled = [sample * 1000 for sample in samples]
    assert block_deviation(scaled, mean) == pytest.approx(block_deviation(samples, mean), abs=1e-9)
