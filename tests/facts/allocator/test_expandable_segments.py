"""Expandable segments: which there were when a recording began, and addresses that end, which no file tells."""

import random

import pytest

from efprof.facts.allocator import caching_allocator
from efprof.facts.allocator.history import history_of
from efprof.facts.allocator.replay import replay
from efprof.facts.allocator.settings import MIB, AllocatorSettings
from efprof.model import NotRecorded
from tests.facts.allocator.recording import Recording, any_size, run_at_random

EXPANDABLE = AllocatorSettings(expandable_segments=True)


def test_a_segment_begins_at_the_lowest_address_that_is_known_of_it() -> None:
    recording = Recording(EXPANDABLE)
    lower, _ = recording.malloc(140 * MIB), recording.malloc(130 * MIB)
    recording.free(lower)
    recording.empty_cache()
    first_entry = len(recording.entries)
    recording.malloc(130 * MIB)
    assert replay(history_of(recording.snapshot(first_entry=first_entry), 0)).match_share == 1


def test_where_the_addresses_of_a_full_device_ran_out_the_replay_is_not_trusted_and_nothing_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trusted = []
    for seed in range(24):
        chance = random.Random(seed)
        with monkeypatch.context() as patched:
            patched.setattr(caching_allocator, "RANGE_BYTES", 675 * MIB)
            recording = Recording(EXPANDABLE, capacity=600 * MIB)
            run_at_random(recording, seed, sizes=any_size, num_operations=300, streams=(0,))
        first_entry = chance.choice([0, len(recording.entries) // 2])
        try:
            trusted.append(replay(history_of(recording.snapshot(first_entry=first_entry), 0)).is_trusted)
        except NotRecorded:
            continue
    assert False in trusted
