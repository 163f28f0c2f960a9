"""What is said of settings that hurt each other, on a device that has enough memory and on one that has not."""

import random

import pytest

from efprof.facts.allocator.advice import warnings_about
from efprof.facts.allocator.history import history_of
from efprof.facts.allocator.settings import MIB, AllocatorSettings, parse_configuration
from efprof.facts.allocator.what_if import WhatIf
from tests.facts.allocator.recording import Recording

ALONE = parse_configuration("expandable_segments:True")
PAIR = parse_configuration("expandable_segments:True,max_split_size_mb:64")


def program(capacity: int | None = None, *, seed: int = 0) -> WhatIf:
    """Blocks of 3 to 150 MiB that come and go: with the limit much more would be reserved."""
    recording, choices = Recording(AllocatorSettings(expandable_segments=True)), random.Random(seed)
    for _ in range(300):
        if recording.live and choices.random() < 0.45:
            recording.free(choices.choice(recording.live))
        else:
            recording.malloc(choices.choice([3, 5, 20, 90, 150]) * MIB)
    return WhatIf(history_of(recording.snapshot(), 0), capacity=capacity)


def said_of_pair(what_if: WhatIf) -> str:
    (warning,) = warnings_about(PAIR, what_if)
    return warning.partition("; here ")[2]


def test_where_the_device_has_enough_the_difference_is_told_in_bytes() -> None:
    assert program().run_cold(PAIR).peak_reserved_bytes - program().run_cold(ALONE).peak_reserved_bytes == 1740 * MIB
    assert said_of_pair(program()) == "they reserve 1.70 GiB more than without the limit."


@pytest.mark.parametrize(("share", "seed"), [(1.02, 0), (1.1, 0), (1.0, 5)])
def test_where_the_devices_end_cuts_a_peak_off_no_difference_is_told(share: float, seed: int) -> None:
    what_if = program(int(share * program(seed=seed).run_cold(ALONE).peak_reserved_bytes), seed=seed)
    pair = what_if.run_cold(PAIR)
    assert pair.is_out_of_memory or pair.calls.num_retries
    assert said_of_pair(what_if) == ""
