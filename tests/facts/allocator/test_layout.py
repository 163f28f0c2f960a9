"""Layouts: every block once, in its place, and the same sums as the composition of that instant."""

from collections.abc import Callable, Iterable

import pytest

from efprof.artifacts.snapshot import Frames
from efprof.facts.allocator.history import History, history_of
from efprof.facts.allocator.layout import SegmentLayout, play_to, totals_of
from efprof.facts.allocator.replay import Replayer
from efprof.facts.allocator.settings import MIB, AllocatorSettings
from efprof.model import StretchState
from tests.facts.allocator.recording import Recording, any_size, run_at_random

DEFAULT = AllocatorSettings()
EXPANDABLE = AllocatorSettings(expandable_segments=True)


def no_site(frames: Frames) -> str | None:
    return None


def history_from(recording: Recording) -> History:
    return history_of(recording.snapshot(), 0)


def layouts_at(
    history: History, indices: Iterable[int], site_of: Callable[[Frames], str | None]
) -> dict[int, tuple[SegmentLayout, ...]]:
    replayer, layouts = Replayer(history), {}
    for index in sorted(indices):
        layouts[index] = play_to(replayer, history, index, site_of).layouts
    return layouts


def at_end(recording: Recording) -> tuple[SegmentLayout, ...]:
    last = len(recording.entries) - 1
    return layouts_at(history_from(recording), [last], no_site)[last]


def pieces_of(layout: SegmentLayout) -> list[tuple[StretchState, int]]:
    return [(piece.state, piece.num_bytes) for piece in layout.pieces]


def test_a_block_is_followed_by_its_slack_and_what_is_free_and_a_free_segment_is_releasable() -> None:
    recording = Recording(DEFAULT)
    recording.malloc(12 * MIB - 100)  # of 12 MiB; a segment of its own, for it is 10 MiB or more
    recording.malloc(3 * MIB)  # of a segment of 20 MiB
    whole, shared = at_end(recording)
    assert pieces_of(whole) == [("used", 12 * MIB - 100), ("slack", 100)]
    assert pieces_of(shared) == [("used", 3 * MIB), ("stranded", 17 * MIB)]
    recording = Recording(DEFAULT)
    recording.free(recording.malloc(30 * MIB))
    (layout,) = at_end(recording)
    assert pieces_of(layout) == [("releasable", 30 * MIB)]


def test_of_an_expandable_segment_whole_pages_are_releasable_and_parts_of_pages_are_not() -> None:
    recording = Recording(EXPANDABLE)
    first = recording.malloc(30 * MIB)
    recording.malloc(11 * MIB)
    recording.free(first)
    (layout,) = at_end(recording)
    assert layout.is_expandable
    assert pieces_of(layout) == [
        ("releasable", 20 * MIB),
        ("stranded", 10 * MIB),
        ("used", 11 * MIB),
        ("stranded", 19 * MIB),
    ]


def test_what_waits_for_another_stream_is_pending() -> None:
    recording = Recording(DEFAULT)
    recording.free(recording.malloc(40 * MIB))  # a history without any completed free is read in another way
    block = recording.malloc(38 * MIB)
    recording._note("free_requested", block.address, block.requested, block)
    (layout,) = at_end(recording)
    assert pieces_of(layout) == [("pending", 38 * MIB), ("stranded", 2 * MIB)]


def test_kinds_of_segments_and_sites_of_the_stacks_that_asked_are_told() -> None:
    recording = Recording(DEFAULT)
    recording.malloc(512)
    recording.malloc(20 * MIB, private_id=(0, 1))
    small, private = at_end(recording)
    assert (small.is_small, small.is_expandable) == (True, False)
    assert (private.is_small, private.is_expandable) == (False, False)
    last = len(recording.entries) - 1
    site_of = lambda frames: f"{frames[0]['filename']}:{frames[0]['line']}:f"  # noqa: E731
    layouts = layouts_at(history_from(recording), [last], site_of)[last]
    assert [layout.pieces[0].site for layout in layouts] == ["train.py:12:f"] * 2


def test_before_the_first_event_there_is_what_the_recording_found() -> None:
    recording = Recording(DEFAULT)
    recording.malloc(20 * MIB)
    first_entry = len(recording.entries)
    recording.malloc(40 * MIB)
    history = history_of(recording.snapshot(first_entry=first_entry), 0)
    layouts = layouts_at(history, [-1, 1], no_site)
    assert [layout.num_bytes for layout in layouts[-1]] == [20 * MIB]
    assert [layout.num_bytes for layout in layouts[1]] == [20 * MIB, 40 * MIB]


@pytest.mark.parametrize("settings", [DEFAULT, EXPANDABLE], ids=["default", "expandable"])
@pytest.mark.parametrize("seed", range(12))
def test_the_sums_are_those_of_the_composition(settings: AllocatorSettings, seed: int) -> None:
    recording = Recording(settings)
    run_at_random(recording, seed, sizes=any_size, private_ids=((0, 0), (0, 1)))
    history = history_from(recording)
    last = len(history.entries) - 1
    middle = last // 2
    layouts, replayer = layouts_at(history, [last, middle], no_site), Replayer(history)
    for index in (middle, last):
        parts = play_to(replayer, history, index, no_site).composition
        sums = totals_of(layouts[index])
        assert sums.total() == parts.reserved_bytes
        assert sums["used"] == parts.requested_bytes
        assert sums["slack"] == parts.rounding_bytes + parts.slack_bytes
        assert sums["pending"] == parts.pending_bytes
        assert sums["stranded"] == parts.stranded_bytes
        assert sums["releasable"] == parts.releasable_bytes
