"""The map of segments: every byte once, by address, and small pieces mixed, not dropped."""

from efprof.facts.allocator.layout import Piece, SegmentLayout
from efprof.facts.device.device_evidence import MAX_ROWS, NO_LINE, PIXELS_PER_LINE, map_of
from efprof.model import SegmentMap, SegmentRow, Stretch
from efprof.units import MIB

A, B = "train.py:3:step", "train.py:9:step"


def segment(address: int, *pieces: Piece, is_small: bool = False) -> SegmentLayout:
    return SegmentLayout(address=address, is_small=is_small, is_expandable=False, pieces=tuple(pieces))


def used(num_bytes: int, site: str | None = A) -> Piece:
    return Piece(state="used", num_bytes=num_bytes, site=site)


def stranded(num_bytes: int) -> Piece:
    return Piece(state="stranded", num_bytes=num_bytes)


def only_rows(found: SegmentMap) -> tuple[SegmentRow, ...]:
    (view,) = found.views
    return view.rows


def assert_whole(found: SegmentMap) -> None:
    for view in found.views:
        assert all(sum(one.num_bytes for one in row.stretches) == row.num_bytes for row in view.rows)
        assert sum(total for _, total in view.totals) == sum(row.num_bytes for row in view.rows)


def test_a_segment_is_a_row_with_its_pieces_by_address() -> None:
    layouts = [
        segment(0, used(8 * MIB), Piece(state="slack", num_bytes=MIB, site=A), stranded(11 * MIB)),
        segment(1, used(40 * MIB, B)),
    ]
    found = map_of([("now", layouts)], "train.py:9", "map")
    large, small = only_rows(found)
    assert found.owners == ("train.py:9", "train.py:3")
    assert found.highlighted == 0
    assert large.stretches == (Stretch(state="used", num_bytes=40 * MIB, owner=0),)
    assert small.stretches == (
        Stretch(state="used", num_bytes=8 * MIB, owner=1),
        Stretch(state="slack", num_bytes=MIB, owner=1),
        Stretch(state="stranded", num_bytes=11 * MIB),
    )
    assert_whole(found)


def test_all_fills_at_least_sixteen_lines_and_alike_segments_take_a_line_each() -> None:
    found = map_of([("now", [segment(0, used(1598 * MIB)), segment(2000 * MIB, used(2 * MIB))])], None, "map")
    assert found.line_bytes == 100 * MIB
    found = map_of([("now", [segment(n * MIB, used(20 * MIB)) for n in range(20)])], None, "map")
    assert (found.line_bytes, len(only_rows(found))) == (20 * MIB, 20)


def test_segments_beyond_the_rows_share_one_end_to_end() -> None:
    layouts = [segment(n, used((1000 + n) * MIB), used(MIB, B)) for n in range(MAX_ROWS + 10)]
    found = map_of([("now", layouts)], None, "map")
    rows = only_rows(found)
    assert len(rows) == MAX_ROWS + 1
    last = rows[-1]
    assert (last.num_segments, last.label) == (10, "10 segments of 1001 MiB to 1010 MiB")
    assert [(one.owner, one.num_bytes) for one in last.stretches[:2]] == [(0, 1009 * MIB), (1, MIB)]
    assert_whole(found)
    assert map_of([("now", [segment(0, used(MIB, None))])], None, "map").owners == (NO_LINE,)


def test_pieces_too_short_to_draw_are_mixed_and_have_the_owner_of_most() -> None:
    pieces = [used(1, A), used(3, B), stranded(1)] * 20_000
    found = map_of([("now", [segment(0, *pieces)])], None, "map")
    (row,) = only_rows(found)
    place = found.owners.index("train.py:9")
    assert len(row.stretches) <= 2 * PIXELS_PER_LINE * 16
    assert all(one.is_mixed and one.owner == place for one in row.stretches[:-1])
    assert_whole(found)


def test_both_instants_are_drawn_to_one_scale_and_a_device_without_memory_has_no_rows() -> None:
    later = [segment(n, used(20 * MIB)) for n in range(8)]
    earlier = [segment(n, used(80 * MIB)) for n in range(8)]
    found = map_of([("peak", earlier), ("end", later)], None, "map")
    assert found.line_bytes == 40 * MIB
    assert [view.label for view in found.views] == ["peak", "end"]
    found = map_of([("now", [])], "train.py:3", "map")
    assert only_rows(found) == ()
    assert found.highlighted is None
