"""One account for windows and counts, of which counts have a part that nothing else can take."""

import time
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import pytest

from efprof.artifacts.events import Event
from efprof.model import EfprofError
from efprof.recorder.budget.cost import Cost
from efprof.recorder.budget.sampling import ALLOWANCE_NS, COUNTS_PART, MIN_PART, Budget, LightStep, Sampling
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.session.options import parse_share
from efprof.recorder.windows.triggers import MIN_COST_NS
from tests.support.builders import make_step


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


@pytest.mark.parametrize(("taken", "part"), [(0.0, 1.0), (0.01, 1.0), (0.015, 0.5), (0.03, MIN_PART)])
def test_what_steps_take_beyond_their_half_windows_and_counts_do_without(
    taken: float, part: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.perf_counter_ns()
    monkeypatch.setattr("efprof.recorder.budget.sampling.perf_counter_ns", lambda: now)
    budget = Budget(0.02, lambda: taken)
    now += 10**12
    earned = ALLOWANCE_NS + part * 10**10
    assert budget.affords_count(0.999 * earned)
    assert not budget.affords_count(1.001 * earned)


def test_first_steps_that_wait_for_a_core_leave_the_allowance_to_windows() -> None:
    budget = Budget(0.01)
    cost = Cost(budget, SimpleNamespace(number=0), note=list[Event]().append)  # type: ignore[arg-type]
    for number in range(20):
        step = OpenStep(number=number, start_ns=0, epoch_ns=0, recorder_ns=400_000_000)
        cost.step_ended(step, make_step(number, cpu_us=900.0))
    assert budget.spent_ns == {"first steps": 20 * 900_000}
    assert budget.affords(MIN_COST_NS)


@pytest.mark.parametrize("text", ["0", "0%", "-1%", "101%", "nan%", "inf%", "1", "much", ""])
def test_what_is_no_share_of_the_time_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(EfprofError, match=r"--overhead .* write one above 0% and up to 100%, such as 2%"):
        parse_share(text)


def test_the_first_steps_in_full_are_as_many_outside_windows_and_a_watch_ends_no_bursts() -> None:
    sampling, full = Sampling(0.01), []
    for number in range(80):
        is_in_window = number in (5, 6, 9, 10)
        if sampling.is_full(number):
            full.append(number)
        if not is_in_window and number in full:
            sampling.note_full(number, 5_500_000, 250_000)
        elif not is_in_window:
            sampling.note_light([LightStep(number, 9_000_000, 8_000, is_usual=False)])
    assert full[:25] == [*range(24), full[24]]
    assert len(full) >= 24 + 3 * 3


def test_bursts_come_at_uneven_distances_so_that_they_beat_with_nothing() -> None:
    sampling = Sampling(0.01)
    firsts, number, was_full = list[int](), 0, False
    while number < 20_000:
        is_full = sampling.is_full(number)
        if is_full and not was_full:
            firsts.append(number)
        was_full = is_full
        if is_full:
            sampling.note_full(number, 5_500_000, 250_000)
        else:
            sampling.note_light([LightStep(number, 5_000_000, 8_000, True)])
        number += 1
    late = firsts[len(firsts) // 4 :]
    distances = [later - one for one, later in pairwise(late)]
    assert max(distances) > 2 * min(distances)
    for period in (2, 4, 8, 16):  # as of accumulation, logging, evaluation
        met = Counter(first % period for first in late)
        assert len(met) == period
        assert max(met.values()) < 2.5 * len(late) / period
