"""One account for windows and counts, of which counts have a part that nothing else can take."""

import time

import pytest

from efprof.recorder.sampling import ALLOWANCE_NS, COUNTS_PART, LEAST_PART, Budget


def test_windows_leave_counts_their_part() -> None:
    budget = Budget(0.0)
    assert budget.affords(0.4 * ALLOWANCE_NS)
    assert not budget.affords(0.6 * ALLOWANCE_NS)


def test_windows_that_took_longer_than_foreseen_take_no_count_away() -> None:
    budget = Budget(0.0)
    budget.spend("windows", 2 * ALLOWANCE_NS)
    assert not budget.affords(1)
    assert budget.affords_count(COUNTS_PART * ALLOWANCE_NS)
    budget.spend("counts", ALLOWANCE_NS // 2)
    assert not budget.affords_count(0.1 * ALLOWANCE_NS)


def test_counts_may_take_what_windows_leave() -> None:
    budget = Budget(0.0)
    budget.spend("counts", ALLOWANCE_NS * 6 // 10)
    assert budget.affords_count(0.3 * ALLOWANCE_NS)
    assert not budget.affords_count(0.5 * ALLOWANCE_NS)
    assert budget.affords(0.3 * ALLOWANCE_NS)


@pytest.mark.parametrize(("taken", "part"), [(0.0, 1.0), (0.01, 1.0), (0.015, 0.5), (0.03, LEAST_PART)])
def test_what_steps_take_beyond_their_half_windows_and_counts_do_without(
    taken: float, part: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.perf_counter_ns()
    monkeypatch.setattr("efprof.recorder.sampling.perf_counter_ns", lambda: now)
    budget = Budget(0.02, lambda: taken)
    now += 10**12
    earned = ALLOWANCE_NS + part * 10**10
    assert budget.affords_count(0.999 * earned)
    assert not budget.affords_count(1.001 * earned)
