"""One account for windows and counts, of which counts have a part that nothing else can take."""

from efprof.recorder.sampling import ALLOWANCE_NS, COUNTS_PART, Budget


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
