"""Which expandable segments there were when a recording began, which no file tells: it has only what was mapped."""

import random

import pytest

from efprof.facts.allocator.replay import Replay, replay
from efprof.facts.allocator.script import sized_history
from efprof.facts.allocator.settings import MIB, AllocatorSettings
from tests.facts.allocator.recording import Recording, any_size, run_at_random

EXPANDABLE = AllocatorSettings(expandable_segments=True)


def replayed(recording: Recording, first_entry: int = 0) -> Replay:
    return replay(sized_history(recording.snapshot(first_entry=first_entry), 0))


def without_room() -> Recording:
    """The first expandable segment has no stretch of addresses left for 130 MiB: what comes next needs a second one."""
    recording = Recording(EXPANDABLE, capacity=480 * MIB, device_bytes=480 * MIB)
    for block in [recording.malloc(size * MIB) for size in [20, 40] * 8][1::2]:
        recording.free(block)
    recording.empty_cache()
    recording.malloc(1000)
    return recording


def test_two_expandable_segments_of_one_kind_stay_two() -> None:
    recording = without_room()
    recording.malloc(130 * MIB)
    first_entry = len(recording.entries)
    assert recording.attempt(200 * MIB) is None
    recording.malloc(130 * MIB)
    assert replayed(recording, first_entry).match_share == 1


def test_the_second_one_begins_at_the_lowest_address_that_is_known_of_it() -> None:
    recording = without_room()
    lower, _ = recording.malloc(140 * MIB), recording.malloc(130 * MIB)
    recording.free(lower)
    first_entry = len(recording.entries)
    recording.empty_cache()
    assert recording.attempt(400 * MIB) is None
    recording.malloc(130 * MIB)
    assert replayed(recording, first_entry).match_share == 1


@pytest.mark.parametrize("seed", [280, 735])
def test_addresses_that_the_model_has_given_to_another_break_nothing(seed: int) -> None:
    chance = random.Random(seed)
    capacity = chance.choice([512, 1024, 2048]) * MIB
    recording = Recording(EXPANDABLE, capacity=capacity, device_bytes=int(capacity * chance.choice([1, 1, 1.05])))
    run_at_random(recording, seed, sizes=any_size, num_operations=chance.randrange(100, 400), streams=(0,))
    first_entry = len(recording.entries)
    run_at_random(recording, seed + 100_000, sizes=any_size, num_operations=chance.randrange(50, 400), streams=(0,))
    assert replayed(recording, first_entry).allocations > 0
