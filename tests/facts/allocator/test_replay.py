"""Replays: every address and segment of a history is foretold, from whatever state it began with."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from efprof.artifacts.snapshot import DEFAULT_POOL, Entry, Segment, Snapshot, read_snapshot
from efprof.artifacts.snapshot import Block as SnapshotBlock
from efprof.facts.allocator.history import History, devices_of, history_of
from efprof.facts.allocator.replay import Replay, replay
from efprof.facts.allocator.settings import MIB, AllocatorSettings
from efprof.model import NotRecorded
from tests.facts.allocator.recording import Recording, any_size, even_size, run_at_random
from tests.facts.allocator.test_caching_allocator import EVERY_KIND
from tests.support.builders import write_snapshot

SNAPSHOTS = Path(__file__).parents[3].parent / "shared" / "data" / "snapshots"
"""Of real programs, as they were published; too large to be kept here."""

REPLAYABLE = [
    "Constructor-Sun+code_location__52e52b2__memory_snapshot.pickle",
    "HugePandaCoder+octree-nca-groupeq__3e8aa21__mem_snapshots_inference2_peso_oct.pickle",
    "MAGMA27+assignment2-systems__15883f2__memory_snapshot.pickle",
    "Wedsonlin+assignment2-systems__results_medium_1024_training_memory_snapshot.pickle",
    "Wedsonlin+assignment2-systems__results_medium_128_training_memory_snapshot.pickle",
    "Wedsonlin+assignment2-systems__results_medium_256_inference_memory_snapshot.pickle",
    "Wedsonlin+assignment2-systems__results_medium_512_training_memory_snapshot.pickle",
    "bcrafton+assignment2-systems__0c0e8a7__memory_snapshot.pickle",
    "notHanmin+assignment2-systems__bbd2972__memory_snapshot_forward.pickle",
    "notHanmin+assignment2-systems__bbd2972__memory_snapshot_forward_without_mixed.pickle",
    "silmont2000+assignment2-systems__mem_snapshot.pickle",
    "silmont2000+assignment2-systems__memory_forward_bf16_128.pickle",
    "silmont2000+assignment2-systems__memory_forward_fp32_128.pickle",
]
WITHOUT_HISTORY = [
    "Muduard+LayoutEditing__33ade60__dump_snapshot.pickle",
    "SunnySood80+unsupervised_finetune_resnet50__a652958__dump_snapshot.pickle",
    "albi2+thesis-text-to-SQL__dump_snapshot.pickle",
    "angelolmn+HitsBE__1854a6c__my_snapshot.pickle",
]
MADE_BY_HAND = "facebookresearch+mosaic__test_snapshots_output.pickle"

DEFAULT = AllocatorSettings()
KINDS = (
    "default", "expandable", "max_split", "max_split and expandable", "roundup", "large segments", "large pages",
)  # fmt: skip
SEEDS = range(24)


def real(name: str) -> Snapshot:
    path = SNAPSHOTS / name
    if not path.exists():
        pytest.skip(f"needs {path}")
    return read_snapshot(path)


def assert_foretold(result: Replay, seed: int | None = None) -> None:
    assert result.addresses_equal == result.allocations, f"of seed {seed}"
    assert result.segments_equal == result.segments, f"of seed {seed}"
    assert result.peak_reserved_replayed_bytes == result.peak_reserved_recorded_bytes, f"of seed {seed}"
    assert result.is_trusted


def replayed(recording: Recording, first_entry: int = 0) -> Replay:
    return replay(history_of(recording.snapshot(first_entry=first_entry), 0))


# What real programs recorded.


@pytest.mark.parametrize("name", REPLAYABLE)
def test_every_address_and_segment_of_a_real_program_is_foretold(name: str) -> None:
    snapshot = real(name)
    assert devices_of(snapshot)
    for device in devices_of(snapshot):
        result = replay(history_of(snapshot, device))
        assert result.allocations > 0
        assert_foretold(result)


@pytest.mark.parametrize("name", WITHOUT_HISTORY)
def test_a_real_file_without_a_history_says_how_to_record_one(name: str) -> None:
    snapshot = real(name)
    for device in devices_of(snapshot) or [0]:
        with pytest.raises(NotRecorded, match=r"no allocation.*efprof record"):
            history_of(snapshot, device)


def test_a_file_that_was_made_by_hand_is_not_replayed() -> None:
    with pytest.raises(NotRecorded, match=r"do not fit its segments .* made by hand"):
        history_of(real(MADE_BY_HAND), 0)


# Entries of newer torches.


def with_entry(snapshot: Snapshot, action: str, place: int, folder: Path) -> Snapshot:
    """As it is read from a file in which an entry of this kind, of the block before it, stands at this place."""
    (trace,) = snapshot.device_traces
    trace = [*trace[:place], replace(trace[max(0, place - 1)], action=action), *trace[place:]]
    write_snapshot(path := folder / "memory.pickle", replace(snapshot, device_traces=[trace]))
    return read_snapshot(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_given_to_a_block_changes_nothing_wherever_it_comes(kind: str, tmp_path: Path) -> None:
    recording = Recording(EVERY_KIND[kind])
    run_at_random(recording, seed=1, sizes=any_size, num_operations=40)
    known = replayed(recording)
    for place in range(0, len(recording.entries) + 1, 7):
        named = with_entry(recording.snapshot(), "annotate", place, tmp_path)
        assert replay(history_of(named, 0)) == known, f"at {place}"


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_behind_an_unknown_entry_is_replayed_as_if_the_history_began_there(
    kind: str, tmp_path: Path
) -> None:
    recording = Recording(EVERY_KIND[kind])
    run_at_random(recording, seed=1, sizes=any_size, num_operations=40)
    for place in range(0, len(recording.entries) - 20, 7):
        cut = with_entry(recording.snapshot(), "compact", place, tmp_path)
        assert "compact" in cut.newer
        assert replay(history_of(cut, 0)) == replayed(recording, first_entry=place), f"at {place}"


def test_a_history_that_ends_with_an_unknown_entry_is_not_replayed_and_says_by_what(tmp_path: Path) -> None:
    recording = Recording(DEFAULT)
    recording.malloc(MIB)
    cut = with_entry(recording.snapshot(), "compact", len(recording.entries), tmp_path)
    with pytest.raises(NotRecorded, match=r"no allocation.* It has entries of a newer torch: compact;"):
        history_of(cut, 0)


# Whole recordings.


ON_A_FULL_DEVICE = {"capacity": 600 * MIB}
PROGRAMS: list[tuple[str, dict[str, Any], list[tuple[int, int]]]] = [
    *((kind, {}, [DEFAULT_POOL]) for kind in KINDS),
    *((kind, ON_A_FULL_DEVICE, [DEFAULT_POOL]) for kind in [*KINDS, "garbage collected"]),
    *((kind, {}, [DEFAULT_POOL, (0, 1), (3, 0)]) for kind in ("default", "expandable")),  # no event names the pools
    *((kind, {**ON_A_FULL_DEVICE, "names_pools": True}, [DEFAULT_POOL, (0, 1)]) for kind in KINDS),
]
"""The settings, how it is recorded, and the pools."""


@pytest.mark.parametrize(("kind", "recorded", "pools"), PROGRAMS)
def test_a_program_is_foretold_from_its_first_request_on_whatever_pools_it_has_and_on_a_full_device(
    kind: str, recorded: dict[str, Any], pools: list[tuple[int, int]]
) -> None:
    for seed in SEEDS:
        recording = Recording(EVERY_KIND[kind], **recorded)
        run_at_random(recording, seed, sizes=any_size, private_ids=pools)
        assert_foretold(replayed(recording), seed)


# Recordings that begin in the middle, as those of a ring buffer do.


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_is_foretold_from_any_event_on(kind: str) -> None:
    for seed in SEEDS:
        recording = Recording(EVERY_KIND[kind])
        chance = run_at_random(recording, seed, sizes=even_size)
        assert_foretold(replayed(recording, chance.randrange(len(recording.entries) * 3 // 4)), seed)


def test_what_lies_unused_behind_blocks_is_nearly_always_told_by_what_comes_later() -> None:
    total = equal = 0
    for seed in SEEDS:
        recording = Recording(DEFAULT)
        chance = run_at_random(recording, seed, sizes=any_size)
        result = replayed(recording, chance.randrange(len(recording.entries) // 4))
        total, equal = total + result.allocations, equal + result.addresses_equal
    assert equal >= 0.999 * total


def test_a_gap_of_up_to_a_mib_behind_a_block_belongs_to_it_and_a_wider_one_is_free() -> None:
    recording = Recording(DEFAULT)
    block = recording.malloc(11 * MIB)
    first_entry = len(recording.entries)
    recording.free(block)
    recording.malloc(12 * MIB)
    history = history_of(recording.snapshot(first_entry=first_entry), 0)
    assert [live.size for live in history.live] == [12 * MIB]
    recording = Recording(DEFAULT)
    block = recording.malloc(5 * MIB)
    first_entry = len(recording.entries)
    recording.free(block)
    recording.malloc(12 * MIB)
    history = history_of(recording.snapshot(first_entry=first_entry), 0)
    assert [live.size for live in history.live] == [5 * MIB]


def test_a_start_state_holds_what_was_given_back_since_and_what_was_there_all_along() -> None:
    recording = Recording(DEFAULT)
    block = recording.malloc(30 * MIB)
    first_entry = len(recording.entries)
    recording.free(block)
    recording.empty_cache()
    recording.malloc(2 * MIB)
    history = history_of(recording.snapshot(first_entry=first_entry), 0)
    assert [(extent.address, extent.num_bytes) for extent in history.extents] == [(block.address, 30 * MIB)]
    assert [(live.address, live.size) for live in history.live] == [(block.address, 30 * MIB)]
    recording = Recording(DEFAULT)
    kept = recording.malloc(5 * MIB + 1)
    first_entry = len(recording.entries)
    recording.malloc(2 * MIB)
    history = history_of(recording.snapshot(first_entry=first_entry), 0)
    assert [(live.address, live.requested, live.size) for live in history.live] == [
        (kept.address, 5 * MIB + 1, 5 * MIB + 512)
    ]


# Requests that failed.


def test_after_a_release_the_free_blocks_are_not_searched_again() -> None:
    """pytorch/pytorch#189504: the first stretch that could grow serves, though another free block fits better."""
    recording = Recording(AllocatorSettings(expandable_segments=True, max_split_bytes=40 * MIB), capacity=140 * MIB)
    first, low, _, high, _, _ = (recording.malloc(size * MIB) for size in (5, 50, 10, 60, 5, 10))
    recording.free(low)
    recording.free(high)
    block = recording.malloc(11 * MIB)
    assert [entry.action for entry in recording.entries[-3:]] == ["segment_unmap", "segment_unmap", "alloc"]
    assert block.address == first.address + 5 * MIB
    assert_foretold(replayed(recording))


# Files that tell less, or wrong.


def history_of_entries(entries: list[Entry], segments: list[Segment]) -> History:
    return history_of(Snapshot(segments=segments, device_traces=[entries]), 0)


@pytest.mark.parametrize("device", [-1, 1, 7])
def test_devices_are_those_with_memory_or_a_history_and_another_has_none(device: int) -> None:
    recording = Recording(DEFAULT)
    recording.malloc(512)
    with pytest.raises(NotRecorded):
        history_of(recording.snapshot(), device)
    block = SnapshotBlock(size=512, state="inactive", address=0)
    segments = [Segment(total_size=512, blocks=[block], device=3)]
    traces = [[], [Entry(action="alloc", size=1)], []]
    assert devices_of(Snapshot(segments=segments, device_traces=traces)) == [1, 3]


def test_a_request_for_nothing_is_placed_nowhere_and_what_is_never_freed_is_no_history() -> None:
    recording = Recording(DEFAULT)
    recording.malloc(MIB)
    recording.entries.append(Entry(action="alloc", size=0, addr=0))
    result = replayed(recording)
    assert result.allocations == 1
    assert_foretold(result)
    entries = [Entry(action="alloc", size=512, addr=4096 * number) for number in range(100)]
    with pytest.raises(NotRecorded, match="100 of 100"):
        history_of_entries(entries, [])


def test_events_of_another_thread_do_not_matter_and_an_order_that_cannot_be_is_not_trusted() -> None:
    recording = Recording(DEFAULT)
    run_at_random(recording, 0, sizes=even_size)
    recording.entries.append(Entry(action="alloc", size=512, addr=1 << 50))
    assert replayed(recording).is_trusted
    recording = Recording(DEFAULT)
    run_at_random(recording, 0, sizes=any_size)
    snapshot = recording.snapshot()
    allocations = [entry for entry in recording.entries if entry.action == "alloc"]
    for entry, other in zip(allocations, reversed(allocations), strict=True):
        entry.size = other.size
    assert not replay(history_of(snapshot, 0)).is_trusted


@pytest.mark.parametrize("kind", ["default", "expandable", "max_split"])
def test_an_event_that_is_missing_or_comes_twice_breaks_nothing(kind: str) -> None:
    for seed in SEEDS:
        recording = Recording(EVERY_KIND[kind])
        chance = run_at_random(recording, seed, sizes=any_size)
        index = chance.randrange(len(recording.entries))
        recording.entries[index : index + 1] = recording.entries[index : index + 1] * chance.choice([0, 2])
        try:
            result = replayed(recording)
        except NotRecorded:
            continue
        assert result.allocations > 0


def test_a_request_beyond_any_device_in_memory_that_is_not_there_ends_in_a_sentence() -> None:
    recording = Recording(EVERY_KIND["expandable"])
    run_at_random(recording, 1, sizes=any_size)
    entry = next(entry for entry in recording.entries if entry.action == "alloc")
    entry.size, entry.addr = 1 << 41, 1 << 50
    with pytest.raises(NotRecorded, match=r"2,199,023,255,552 bytes that was served, more than the device can have"):
        replayed(recording)


def test_segment_events_that_were_left_out_are_named_as_what_is_missing() -> None:
    recording = Recording(EVERY_KIND["default"])
    run_at_random(recording, 1, sizes=any_size)
    recording.entries = [entry for entry in recording.entries if not entry.action.startswith("segment_")]
    with pytest.raises(NotRecorded, match=r"`skip_actions` left segment events out of the history"):
        replayed(recording)
    recording = Recording(EVERY_KIND["default"])
    recording.free(recording.malloc(40 * MIB))
    recording.malloc(25 * MIB)  # in the segment of 40: the one of 30, which fits better, is not there yet
    recording.malloc(30 * MIB)
    recording.entries = [entry for entry in recording.entries if not entry.action.startswith("segment_")]
    assert not replayed(recording).is_trusted
