"""Whether head is slower, from turns that both sides took: by pairs of processes, in a typical turn and in all time."""

import math
import random

import pytest

from efprof.compare.times import LOOKS, SideTimes, TurnTimes, compare_times, is_decided
from efprof.model import Verdict


def processes(
    num: int,
    *,
    seed: int = 0,
    effect: float = 0.0,
    of_turns: float = 0.05,
    of_processes: float = 0.01,
    of_order: float = 0.0,
    rare: int = 0,
) -> SideTimes:
    """Pairs of processes whose head takes that much longer, with these spreads; every so many turns, thrice as long."""
    dice = random.Random(seed)
    pairs = []
    for number_of_pair in range(num):
        own = dice.gauss(0, of_processes) + of_order * (-1) ** number_of_pair
        turns = []
        for number in range(32):
            slower = math.exp(math.log1p(effect) + own + dice.gauss(0, of_turns))
            turns.append((0.02, 0.02 * slower * (3 if rare and number % rare == 0 else 1)))
        pairs.append(TurnTimes(pairs=tuple(turns), is_base_first=number_of_pair % 2 == 0))
    return SideTimes(pairs=tuple(pairs))


def verdicts(times: SideTimes) -> list[Verdict]:
    return [row.verdict for row in compare_times(times, {})]


def test_a_side_as_fast_is_seldom_called_slower_and_five_percent_are_found() -> None:
    equal = [verdicts(processes(8, seed=seed)) for seed in range(400)]
    assert sum("worse" in given for given in equal) <= 4
    slower = [verdicts(processes(8, seed=seed, effect=0.05)) for seed in range(400)]
    assert sum("worse" in given for given in slower) >= 380
    assert not any("same" in given for given in slower)
    faster = [verdicts(processes(8, seed=seed, effect=-0.05)) for seed in range(400)]
    assert sum("better" in given for given in faster) >= 380


def test_a_noisy_machine_is_unclear_and_says_what_it_could_not_have_seen() -> None:
    for row in compare_times(processes(8, effect=0.05, of_processes=0.2), {}):
        assert row.verdict == "unclear"
        assert "could not be seen" in row.reason
        assert row.interval is not None
        assert row.interval[0] < 0 < 0.05 < row.interval[1]


def test_what_comes_in_one_turn_of_sixteen_is_seen_by_the_mean_alone() -> None:
    typical, mean = compare_times(processes(8, of_turns=0.01, of_processes=0.001, rare=16), {})
    assert (typical.verdict, mean.verdict) == ("same", "worse")
    assert mean.effect == pytest.approx(0.125, abs=0.01)


def test_four_pairs_of_processes_are_asked_for_and_a_budget_allows_what_is_no_more() -> None:
    rows = compare_times(SideTimes(pairs=processes(3).pairs, why="Only these were done in time."), {})
    assert [row.verdict for row in rows] == ["unclear", "unclear"]
    assert rows[0].reason == "3 pairs of processes took turns: too few to tell. Only these were done in time."
    none = compare_times(SideTimes(pairs=(), why="It ended."), {})
    assert [(row.verdict, row.effect, math.isnan(row.base_median)) for row in none] == [("unclear", None, True)] * 2
    slower = processes(8, effect=0.2)
    assert [row.is_over_budget for row in compare_times(slower, {})] == [True, True]
    assert [row.is_over_budget for row in compare_times(slower, {"step_ms": 0.3})] == [False, True]


def test_what_the_one_that_starts_first_loses_by_that_is_no_spread() -> None:
    for row in compare_times(processes(8, effect=0.05, of_order=0.03, of_processes=0.005), {}):
        assert row.verdict == "worse"
        assert row.effect == pytest.approx(0.05, abs=0.015)


def test_what_four_pairs_tell_needs_no_eight() -> None:
    assert is_decided(processes(LOOKS[0], effect=0.3, of_turns=0.01, of_processes=0.001).pairs)
    assert not is_decided(processes(LOOKS[0], of_processes=0.05).pairs)


def test_sides_that_could_not_be_alive_at_once_say_so() -> None:
    rows = compare_times(SideTimes(pairs=(), why="", how="ran one by one (both need port 29500)"), {})
    assert rows[0].reason == "0 pairs of processes ran one by one (both need port 29500): too few to tell."
