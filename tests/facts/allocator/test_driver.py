"""What calls of the driver take, by the times of the recorded events."""

import pytest

from efprof.artifacts.snapshot import Entry
from efprof.facts.allocator.driver import MIN_CALLS, Calls, driver_costs

BETWEEN_US = 10
"""Between two requests that nothing new is needed for."""


def history(*kinds: tuple[str, int, int], num_plain: int = 20, has_times: bool = True) -> list[Entry]:
    """Plain requests, then for each (event, how many, microseconds) as many calls, each followed by what it served."""
    entries: list[Entry] = []
    now = 0

    def note(action: str, after_us: int) -> None:
        nonlocal now
        now += after_us
        entries.append(Entry(action=action, size=512, time_us=now if has_times else None))

    for _ in range(num_plain):
        note("alloc", BETWEEN_US)
    for action, count, microseconds in kinds:
        for _ in range(count):
            note(action, BETWEEN_US + microseconds)
            note("alloc", 1)
    return entries


def test_a_call_takes_what_lies_between_it_and_the_event_before_less_what_lies_between_any_two() -> None:
    costs = driver_costs(history(("segment_alloc", 9, 400), ("segment_free", 7, 1000)))
    assert costs.of(Calls(num_allocs=5)) == pytest.approx(5 * 0.4)
    assert costs.of(Calls(num_allocs=1, num_retries=3)) == pytest.approx(0.4), "retries are no calls of their own"
    assert costs.of(Calls(num_allocs=5, num_frees=2)) == pytest.approx(5 * 0.4 + 2 * 1.0)


def test_one_call_that_the_program_did_something_long_before_changes_nothing() -> None:
    entries = history(("segment_map", 9, 150))
    last = entries[-2]
    entries[-2:] = [Entry(action="segment_map", size=512, time_us=last.time_us + 400_000)]
    assert driver_costs(entries).of(Calls(num_maps=10)) == pytest.approx(1.5)


@pytest.mark.parametrize("num_calls", [0, MIN_CALLS - 1])
def test_of_a_kind_with_few_calls_or_calls_without_times_nothing_is_known(num_calls: int) -> None:
    costs = driver_costs(history(("segment_alloc", 9, 400), ("segment_map", num_calls, 150)))
    assert costs.of(Calls(num_maps=1)) is None
    assert costs.of(Calls(num_allocs=1, num_maps=1)) is None, "a sum of which a part is not known"
    assert costs.of(Calls(num_allocs=1)) is not None
    costs = driver_costs(history(("segment_alloc", 9, 400), has_times=False))
    assert (costs.of(Calls(num_allocs=1)), costs.of(Calls())) == (None, 0), "no calls take no time whatever is known"
