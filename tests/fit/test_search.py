"""The largest batch below a budget is found in fewer runs than by halving, and never promised where it did not run."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efprof.fit.search import Fitted, Measured, line_through, search

MIB = 1024**2


def linear(fixed_mib: float, sample_kib: float, noise_bytes: int = 0) -> Callable[[int], int]:
    """Peaks that grow with the batch, the noise by turns above and below."""
    return lambda batch: int(fixed_mib * MIB + sample_kib * 1024 * batch + noise_bytes * math.cos(batch))


def _halve(peak: Callable[[int], int], budget: int, most: int) -> tuple[int, int]:
    """By binary search up to `most`: the largest, and how many runs it took."""
    low, high, num_runs = 0, most + 1, 0
    while high - low > 1:
        middle, num_runs = (low + high) // 2, num_runs + 1
        low, high = (middle, high) if peak(middle) <= budget else (low, middle)
    return low, num_runs


def batches(found: Fitted) -> list[int]:
    return [run.batch for run in found.runs]


@pytest.mark.parametrize(("fixed", "sample", "budget"), [(100, 50, 500), (10, 2000, 4000), (2000, 900, 24_000)])
def test_a_straight_line_takes_one_run_more_than_its_small_sizes(fixed: int, sample: int, budget: int) -> None:
    peak = linear(fixed, sample)
    found = search(peak, budget * MIB, smallest=2)
    best, num_halvings = _halve(peak, budget * MIB, 1 << 16)
    assert found.largest == best
    assert len(found.runs) < num_halvings / 2


def test_a_bend_or_a_curve_or_noise_in_the_peaks_is_paid_for_with_few_runs() -> None:
    peak = linear(300, 40, noise_bytes=MIB)
    found = search(peak, 600 * MIB, smallest=2)
    best, num_halvings = _halve(peak, 600 * MIB, 1 << 16)
    assert 0.95 * best <= found.largest <= 1.01 * best
    assert len(found.runs) < num_halvings

    def peak(batch: int) -> int:
        return max(380 * MIB, linear(325, 42)(batch))

    found = search(peak, 600 * MIB, smallest=2)
    assert found.largest >= 0.97 * _halve(peak, 600 * MIB, 1 << 16)[0]
    assert len(found.runs) <= 8

    def peak(batch: int) -> int:
        return 50 * MIB + 4096 * batch * batch

    found = search(peak, 500 * MIB, smallest=2)
    assert peak(found.largest) <= 500 * MIB
    assert found.largest >= 0.8 * _halve(peak, 500 * MIB, 1 << 16)[0]


def test_a_device_or_data_that_ends_before_the_budget_ends_the_search() -> None:
    def peak(batch: int) -> int | None:
        return None if batch > 300 else linear(10, 1000)(batch)

    found = search(peak, 1000 * MIB, smallest=2)
    assert 0.6 * 300 <= found.largest <= 300
    assert None in [run.peak_bytes for run in found.runs]

    def peak(batch: int) -> int:
        return linear(100, 50)(min(batch, 1000))

    found = search(peak, 500 * MIB, smallest=2)
    assert len(found.runs) <= 7
    assert found.largest >= 1000


def test_where_nothing_fits_it_says_so_and_a_smaller_size_than_the_first_is_found_by_halving() -> None:
    found = search(linear(500, 1), 100 * MIB, smallest=8)
    assert (found.largest, found.recommended) == (0, 0)
    assert batches(found) == [8, 4]
    found = search(linear(0, 1024), 5 * MIB, smallest=8)
    assert found.largest in (4, 5)
    found = search(linear(100, 50), 500 * MIB, smallest=2, largest_allowed=100)
    assert max(batches(found)) == found.largest == 100


def test_the_line_is_that_of_the_two_runs_nearest_the_budget_and_a_quarter_is_left() -> None:
    runs = [Measured(batch=batch, peak_bytes=peak * MIB) for batch, peak in ((4, 10), (8, 10), (16, 20), (32, 36))]
    assert line_through(runs[:2], 40 * MIB) is None
    line = line_through(runs, 40 * MIB)
    assert line is not None
    assert (line.fixed_bytes, line.sample_bytes, line.largest(40 * MIB)) == (4 * MIB, MIB, 36)
    found = search(linear(0, 1024), 100 * MIB, smallest=4)
    assert (found.largest, found.recommended) == (100, 75)


@settings(max_examples=200)
@given(
    fixed=st.integers(0, 5000), sample=st.integers(1, 20_000), budget=st.integers(1, 80_000),
    noise=st.integers(0, 2 * MIB), smallest=st.integers(1, 64),
)  # fmt: skip
def test_what_is_promised_has_run_below_the_budget(
    fixed: int, sample: int, budget: int, noise: int, smallest: int
) -> None:
    peak = linear(fixed, sample, noise)
    found = search(peak, budget * MIB, smallest=smallest)
    assert found.largest == 0 or peak(found.largest) <= budget * MIB
    assert found.recommended <= found.largest
    assert len(found.runs) <= 12
    assert len(set(batches(found))) == len(found.runs), "no size twice"


def test_two_sizes_side_by_side_do_not_tell_that_memory_is_flat() -> None:
    peaks = {1: 18_496, 16: 19_484, 93: 24_635, 92: 24_455}
    line = line_through([Measured(batch=batch, peak_bytes=mib * MIB) for batch, mib in peaks.items()], 24_576 * MIB)
    assert line is not None
    assert line.sample_bytes == pytest.approx((24_635 - 19_484) / 77 * MIB)
