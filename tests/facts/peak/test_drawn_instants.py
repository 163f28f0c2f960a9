"""A long history is drawn from few instants, and none of its heights is lost."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from efprof.facts.peak.window_memory import MOST_INSTANTS, changes_of, drawn_instants, sums_at


def test_a_short_history_is_drawn_whole_and_of_a_long_one_ends_peaks_and_valleys() -> None:
    assert list(drawn_instants(np.arange(500), 20, 420)) == list(range(20, 420))
    values = np.arange(100_000) % 1000
    values[54_321], values[67_890] = 5_000, -5_000
    drawn = drawn_instants(values, 10, 99_000)
    assert len(drawn) <= MOST_INSTANTS - 2
    assert {10, 54_321, 67_890, 98_999} <= set(drawn)
    assert list(drawn) == sorted(set(drawn))


@given(
    moves=st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 30), st.integers(-50, 50)), min_size=1),
    places=st.sets(st.integers(-1, 30), min_size=1),
)
def test_what_an_owner_has_is_the_sum_of_its_changes_so_far(
    moves: list[tuple[int, int, int]], places: set[int]
) -> None:
    drawn = np.array(sorted(places))
    sums = sums_at(drawn, [changes_of(*map(list, zip(*moves, strict=True)))], 4)
    for owner in range(4):
        for column, place in enumerate(drawn):
            assert sums[owner, column] == sum(amount for whose, at, amount in moves if whose == owner and at <= place)
