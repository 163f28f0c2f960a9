"""Expandable segments: which there were when a recording began, and where their addresses end, which no file tells."""

import random

import pytest

from efprof.facts.allocator.caching_allocator import UNKNOWN_DEVICE_BYTES
from efprof.facts.allocator.history import history_of
from efprof.facts.allocator.replay import Replay, replay
from efprof.facts.allocator.script import sized_history
from efprof.facts.allocator.settings import MIB, AllocatorSettings
from tests.facts.allocator.recording import Recording, any_size, run_at_random

CAPACITY = 600 * MIB
EXPANDABLE = AllocatorSettings(expandable_segments=True)

# Which there were: a file has only what was mapped.


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


# The size of the device: where memory was short, they are foretold only by one who knows it.


def full_device(seed: int, device_bytes: int, settings: AllocatorSettings = EXPANDABLE) -> Recording:
    recording = Recording(settings, capacity=CAPACITY, device_bytes=device_bytes)
    run_at_random(recording, seed, sizes=any_size, num_operations=600)
    assert any(entry.action == "oom" for entry in recording.entries), "the device must have been full"
    return recording


@pytest.mark.parametrize("share", [1, 1.01, 1.02])
def test_a_program_is_foretold_where_the_addresses_of_expandable_segments_ran_out(share: float) -> None:
    num_wrong_without = 0
    for seed in range(12):
        snapshot = full_device(seed, int(share * CAPACITY)).snapshot()
        num_wrong_without += replay(history_of(snapshot, 0)).match_share < 1
        assert replay(sized_history(snapshot, 0)).match_share == 1, f"of seed {seed}"
    assert num_wrong_without > 0, "the device's size must have mattered"


def test_a_size_that_is_only_nearly_right_tells_no_less_than_none() -> None:
    for seed in range(12):
        snapshot = full_device(seed, int(1.07 * CAPACITY)).snapshot()
        without, sized = replay(history_of(snapshot, 0)), replay(sized_history(snapshot, 0))
        assert sized.match_share >= without.match_share, f"of seed {seed}"


def test_no_size_is_told_where_it_does_not_matter() -> None:
    assert sized_history(full_device(0, UNKNOWN_DEVICE_BYTES).snapshot(), 0).device_bytes is None
    snapshot = full_device(0, CAPACITY, AllocatorSettings()).snapshot()
    assert sized_history(snapshot, 0).device_bytes is None
    recording = Recording(EXPANDABLE)
    run_at_random(recording, 0, sizes=any_size)
    assert sized_history(recording.snapshot(), 0).device_bytes is None


@pytest.mark.parametrize("device_bytes", [CAPACITY, UNKNOWN_DEVICE_BYTES])
def test_a_range_ends_where_the_next_one_begins(device_bytes: int) -> None:
    for seed in range(12):
        history = history_of(full_device(seed, CAPACITY).snapshot(), 0)
        history.device_bytes = device_bytes  # none breaks, right or wrong
        assert replay(history).match_share > 0.5, f"of seed {seed}"
