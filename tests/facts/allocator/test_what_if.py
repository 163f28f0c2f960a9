"""What a recorded program would reserve under other settings, or on another device."""

import pytest

from efprof.artifacts.snapshot import Entry
from efprof.facts.allocator.history import devices_of, history_of
from efprof.facts.allocator.replay import replay
from efprof.facts.allocator.script import ALLOCATE, ATTEMPT, EMPTY_CACHE, FREE
from efprof.facts.allocator.settings import MIB, AllocatorSettings, parse_configuration
from efprof.facts.allocator.what_if import MIN_CALLS, Outcome, WhatIf, call_times_us
from tests.facts.allocator.recording import FIRST_ADDRESS, Recording, any_size, run_at_random
from tests.facts.allocator.test_replay import REPLAYABLE, real

DEFAULT = AllocatorSettings()
EXPANDABLE = AllocatorSettings(expandable_segments=True)
LIMITED = AllocatorSettings(max_split_bytes=40 * MIB)
OTHERS = ["expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:8", "large_segment_size_mb:64"]


def what_if(recording: Recording, *, first_entry: int = 0, capacity: int | None = None) -> WhatIf:
    return WhatIf(history_of(recording.snapshot(first_entry=first_entry), 0), capacity=capacity)


def assert_ordered(outcome: Outcome) -> None:
    assert outcome.peak_reserved_low_bytes <= outcome.peak_reserved_bytes <= outcome.peak_reserved_high_bytes
    assert 0 <= outcome.stranded_bytes <= outcome.peak_reserved_high_bytes


# What real programs recorded.


@pytest.mark.parametrize("name", REPLAYABLE)
def test_under_the_recorded_settings_the_peak_of_a_real_program_is_the_recorded_one(name: str) -> None:
    snapshot = real(name)
    for device in devices_of(snapshot):
        history = history_of(snapshot, device)
        recorded = WhatIf(history)
        assert recorded.recorded.peak_reserved_bytes == replay(history).peak_reserved_recorded_bytes
        assert_ordered(recorded.recorded)


# Recordings of known programs.


@pytest.mark.parametrize(
    ("settings", "capacity"),
    [(DEFAULT, None), (EXPANDABLE, None), (LIMITED, None), (DEFAULT, 600 * MIB), (LIMITED, 600 * MIB)],
)
def test_the_recorded_peak_lies_between_the_lowest_and_the_highest_or_the_end_of_the_device(
    settings: AllocatorSettings, capacity: int | None
) -> None:
    for seed in range(10):
        recording = Recording(settings, capacity=capacity)
        run_at_random(recording, seed, sizes=any_size)
        outcome, peak = what_if(recording).recorded, recording.allocator.peak_reserved
        assert outcome.peak_reserved_low_bytes <= peak <= (capacity or outcome.peak_reserved_high_bytes), f"seed {seed}"


@pytest.mark.parametrize("text", OTHERS)
@pytest.mark.parametrize("first_entry", [0, 100])
def test_the_likely_peak_lies_between_the_lowest_and_the_highest(text: str, first_entry: int) -> None:
    for seed in range(5):
        recording = Recording(DEFAULT)
        run_at_random(recording, seed, sizes=any_size)
        assert_ordered(what_if(recording, first_entry=first_entry).run(parse_configuration(text)))


def test_a_setting_that_wastes_less_reserves_less() -> None:
    """Twice 30 MiB that lie apart serve no request for 60, unless they are in one range."""
    recording = Recording(DEFAULT)
    for block in [recording.malloc(30 * MIB), recording.malloc(30 * MIB)]:
        recording.free(block)
    recording.malloc(60 * MIB)
    program = what_if(recording)
    assert program.recorded.peak_reserved_bytes == 120 * MIB
    assert program.recorded.stranded_bytes == 60 * MIB
    expandable = program.run(EXPANDABLE)
    assert (expandable.peak_reserved_bytes, expandable.stranded_bytes) == (60 * MIB, 0)
    assert (program.recorded.calls.num_taken, expandable.calls.num_taken) == (3, 2)


def test_a_setting_is_run_on_what_was_there_before_the_first_event() -> None:
    recording = Recording(DEFAULT)
    recording.malloc(100 * MIB)
    first_entry = len(recording.entries)
    recording.malloc(30 * MIB)
    program = what_if(recording, first_entry=first_entry)
    assert program.script.num_live == 1
    assert program.recorded.peak_reserved_bytes == 130 * MIB
    assert program.run(EXPANDABLE).peak_reserved_bytes == 140 * MIB


def test_the_recorded_settings_are_tried_cold_too_and_what_that_misses_widens_the_upper_end_of_others() -> None:
    """Memory was cached when the recording began, of which it needs little."""
    recording = Recording(DEFAULT)
    recording.free(recording.malloc(100 * MIB))
    first_entry = len(recording.entries)
    recording.malloc(5 * MIB)
    program = what_if(recording, first_entry=first_entry)
    assert program.recorded.peak_reserved_high_bytes == program.recorded.peak_reserved_bytes == 100 * MIB
    other = program.run(parse_configuration("max_split_size_mb:200"))
    assert (other.peak_reserved_bytes, other.peak_reserved_high_bytes) == (20 * MIB, 100 * MIB)
    cold = program.recorded_cold
    assert (program.recorded.peak_reserved_bytes, cold.peak_reserved_bytes) == (100 * MIB, 20 * MIB)
    assert cold == other, "which changes nothing here"
    assert program.saved_bytes(cold) == 0
    recording = Recording(DEFAULT)
    recording.malloc(100 * MIB)
    assert what_if(recording).recorded_cold is None, "it began cold"


@pytest.mark.parametrize("first_address", [0x302000000, 1 << 36, FIRST_ADDRESS])
def test_where_the_recorded_memory_lies_makes_no_difference(first_address: int) -> None:
    recording = Recording(DEFAULT, first_address=first_address)
    before = [recording.malloc(30 * MIB), recording.malloc(30 * MIB)]
    first_entry = len(recording.entries)
    during = [recording.malloc(30 * MIB), recording.malloc(30 * MIB)]
    for block in [*before, *during]:
        recording.free(block)
    for _ in range(4):
        recording.malloc(30 * MIB)
    outcome = what_if(recording, first_entry=first_entry).recorded
    assert outcome.peak_reserved_low_bytes == outcome.peak_reserved_high_bytes == 120 * MIB


# Memory that was given back.


@pytest.mark.parametrize("settings", [DEFAULT, EXPANDABLE])
def test_an_emptied_cache_is_emptied_again_and_several_segments_at_once_are_one_emptying(
    settings: AllocatorSettings,
) -> None:
    recording = Recording(settings)
    held = [recording.malloc(60 * MIB), recording.malloc(20 * MIB)]
    recording.free(held[0])
    recording.empty_cache()
    recording.malloc(80 * MIB)
    program = what_if(recording)
    assert [kind for kind, *_ in program.script.operations] == [ALLOCATE, ALLOCATE, FREE, EMPTY_CACHE, ALLOCATE]
    for asked in (DEFAULT, EXPANDABLE):
        assert program.run(asked).peak_reserved_bytes == 100 * MIB
    recording = Recording(DEFAULT)
    for block in [recording.malloc(size * MIB) for size in (12, 14, 16)]:
        recording.free(block)
    recording.empty_cache()
    recording.malloc(512)
    kinds = [kind for kind, *_ in what_if(recording).script.operations]
    assert kinds.count(EMPTY_CACHE) == 1


def test_what_was_released_for_a_request_tells_the_size_and_is_not_released_where_there_is_room() -> None:
    recording = Recording(DEFAULT, capacity=100 * MIB)
    recording.free(recording.malloc(60 * MIB))
    recording.malloc(80 * MIB)
    assert [entry.action for entry in recording.entries][-3:] == ["segment_free", "segment_alloc", "alloc"]
    assert [kind for kind, *_ in what_if(recording).script.operations] == [ALLOCATE, FREE, ALLOCATE]
    larger = what_if(recording, capacity=1024 * MIB).recorded
    assert (larger.peak_reserved_bytes, larger.calls.num_returned) == (140 * MIB, 0)
    program = what_if(recording)
    assert program.capacity == 80 * MIB
    assert program.recorded.peak_reserved_bytes == 80 * MIB
    assert program.recorded.calls.num_retries == 1
    recording = Recording(DEFAULT)
    recording.malloc(60 * MIB)
    assert what_if(recording).capacity is None


@pytest.mark.parametrize(("next_mib", "is_asked_for"), [(5, True), (60, True), (70, False)])
def test_without_stacks_what_follows_tells_whether_a_release_was_asked_for(next_mib: int, is_asked_for: bool) -> None:
    """What was released would have served a request of its size: only a larger one can have released it."""
    recording = Recording(DEFAULT, has_stacks=False)
    held, freed = recording.malloc(5 * MIB), recording.malloc(60 * MIB)
    recording.free(freed)
    recording.empty_cache()
    recording.malloc(next_mib * MIB)
    assert held in recording.live
    kinds = [kind for kind, *_ in what_if(recording).script.operations]
    assert (EMPTY_CACHE in kinds) == is_asked_for


# Requests that failed.


def out_of_memory() -> Recording:
    recording = Recording(DEFAULT, capacity=100 * MIB)
    held = recording.malloc(80 * MIB)
    assert recording.attempt(40 * MIB) is None
    recording.free(held)
    return recording


def test_a_request_that_failed_fails_again_and_tells_how_much_the_device_has() -> None:
    program = what_if(out_of_memory())
    assert [kind for kind, *_ in program.script.operations] == [ALLOCATE, ATTEMPT, FREE]
    assert program.recorded.is_out_of_memory
    assert program.recorded.peak_reserved_bytes == 80 * MIB
    assert what_if(out_of_memory()).capacity == 100 * MIB


@pytest.mark.parametrize(("capacity_mib", "is_out_of_memory"), [(119, True), (120, False), (1024, False)])
def test_a_request_that_failed_is_survived_where_the_device_has_enough(
    capacity_mib: int, is_out_of_memory: bool
) -> None:
    outcome = what_if(out_of_memory(), capacity=capacity_mib * MIB).recorded
    assert outcome.is_out_of_memory == is_out_of_memory
    assert outcome.peak_reserved_bytes == (80 if is_out_of_memory else 120) * MIB


def test_a_request_that_failed_is_survived_by_a_setting_that_wastes_less() -> None:
    """Of each of two segments a quarter is held; 30 MiB are free, but no 25 in one piece."""
    recording = Recording(DEFAULT, capacity=100 * MIB)
    blocks = [recording.malloc(5 * MIB) for _ in range(8)]
    for block in blocks[:3] + blocks[5:]:
        recording.free(block)
    recording.malloc(50 * MIB)
    assert recording.attempt(25 * MIB) is None
    program = what_if(recording)
    assert program.recorded.is_out_of_memory
    assert not program.run(EXPANDABLE).is_out_of_memory
    recording = Recording(DEFAULT, capacity=220 * MIB, names_pools=True)
    for block in [recording.malloc(100 * MIB, private_id=(0, 1)) for _ in range(2)]:
        recording.free(block)
    assert recording.attempt(150 * MIB, private_id=(0, 1)) is None
    assert not what_if(recording).run(EXPANDABLE).is_out_of_memory


def test_a_request_that_failed_is_held_by_nobody_where_it_is_survived() -> None:
    recording = out_of_memory()
    for size in (40, 40, 20):
        recording.malloc(size * MIB)
    outcome = what_if(recording, capacity=1024 * MIB).recorded
    assert outcome.peak_reserved_bytes == 120 * MIB
    assert outcome.calls.num_taken == 2


def test_a_call_takes_the_median_of_its_kind_less_what_lies_between_any_two_requests() -> None:
    entries = [Entry(action="alloc", size=512, time_us=10 * index) for index in range(20)]
    for kind, count, microseconds in (("segment_alloc", MIN_CALLS, 400), ("segment_free", MIN_CALLS - 1, 1000)):
        for _ in range(count):
            at_us = entries[-1].time_us or 0
            entries.append(Entry(action=kind, size=512, time_us=at_us + 10 + microseconds))
            entries.append(Entry(action="alloc", size=512, time_us=at_us + 11 + microseconds))
    assert call_times_us(entries) == {"segment_alloc": 400}, "of a kind with few calls nothing is known"
