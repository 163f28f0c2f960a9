"""The picture of segments: every byte drawn once, in its place and colour, and what is told of it."""

import json
import re
from collections.abc import Sequence

import pytest

from efprof.model import SegmentMap, SegmentRow, SegmentView, Stretch
from efprof.report.charts.segment_picture import GAP_PIXELS, LINE_PIXELS, MapRow, SegmentPicture, segment_picture
from tests.report.page.test_html import Page, page_of
from tests.report.report_sample import HOSTILE

MIB = 1024**2
PIECES = (
    Stretch(state="used", num_bytes=60 * MIB, owner=0),
    Stretch(state="slack", num_bytes=10 * MIB, owner=0),
    Stretch(state="used", num_bytes=80 * MIB, owner=1),
    Stretch(state="stranded", num_bytes=100 * MIB),
)


def row_of(*stretches: Stretch, num_segments: int = 1) -> SegmentRow:
    return SegmentRow(
        label="segment for large blocks",
        num_bytes=sum(one.num_bytes for one in stretches),
        stretches=stretches,
        num_segments=num_segments,
    )


def map_of(
    *rows: SegmentRow, owners: Sequence[str] = ("train.py:3", "train.py:9"), highlighted: int | None = 1
) -> SegmentMap:
    totals = (("used", 140 * MIB), ("slack", 10 * MIB), ("stranded", 100 * MIB))
    view = SegmentView(label="at the peak", rows=rows, totals=totals)
    return SegmentMap(
        title="Where it lies", line_bytes=100 * MIB, owners=tuple(owners), views=(view,), highlighted=highlighted
    )


def picture_of(*rows: SegmentRow) -> SegmentPicture:
    return segment_picture(map_of(*rows))


def only_row(picture: SegmentPicture) -> MapRow:
    (view,) = picture.views
    (row,) = view.rows
    return row


def drawn(page: Page) -> list[dict[str, str | None]]:
    return [tag for tag in page.all("rect") if "data-n" in tag]


def notes_of(page: Page) -> str:
    (script,) = [script for name, script in page.scripts.items() if name.endswith("-notes")]
    return script


def test_widths_add_up_to_the_lines_of_the_segment_and_a_piece_goes_on_in_the_next() -> None:
    row = only_row(picture_of(row_of(*PIECES)))
    rectangles = [one for _, layer in row.layers for one in layer]
    assert sum(width for (_, width, _), _ in rectangles) == pytest.approx(250)  # two lines and a half
    assert row.frames == ((0, 100, 0), (0, 100, LINE_PIXELS + GAP_PIXELS), (0, 50, 2 * (LINE_PIXELS + GAP_PIXELS)))
    assert row.height == 3 * LINE_PIXELS + 2 * GAP_PIXELS
    (blamed,) = [layer for fill, layer in row.layers if fill == "alert"]
    assert [rectangle for rectangle, _ in blamed] == [(70, 30, 0), (0, 50, LINE_PIXELS + GAP_PIXELS)]
    assert len({note for _, note in blamed}) == 1


def test_fills_tell_owner_and_state_and_the_legend_has_words_for_all() -> None:
    picture = picture_of(row_of(*PIECES))
    fills = [fill for fill, _ in only_row(picture).layers]
    assert sorted(fills) == ["alert", "forward", "slack", "stranded"]
    assert picture.keys == (
        ("forward", "train.py:3", False),
        ("alert", "train.py:9", True),
        ("slack", "rounding and slack behind blocks", False),
        ("stranded", "stranded: free in a segment that something else holds", False),
    )


def test_what_is_told_has_size_owner_state_and_segment_and_mixed_pieces_say_so() -> None:
    notes = picture_of(row_of(*PIECES)).notes
    assert notes[0] == "60.0 MiB, train.py:3: in use (segment for large blocks, 250 MiB)"
    assert notes[1].startswith("10.0 MiB, a block of train.py:3: rounding and slack behind blocks")
    assert notes[2].startswith("80.0 MiB, train.py:9: in use")
    assert notes[3].startswith("100 MiB, stranded: free in a segment that something else holds")
    mixed = Stretch(state="used", num_bytes=MIB, owner=0, is_mixed=True)
    (note,) = picture_of(row_of(mixed)).notes
    assert note.startswith("1.00 MiB, pieces too small to draw, most of them train.py:3: in use")


def test_segments_that_share_a_row_are_counted() -> None:
    assert only_row(picture_of(row_of(*PIECES, num_segments=90))).size == "90 in 250 MiB"


def test_every_hatching_that_is_used_is_defined_and_hostile_owners_stay_text() -> None:
    pending = Stretch(state="pending", num_bytes=MIB, owner=0)
    page = page_of(map_of(row_of(*PIECES, pending), owners=(HOSTILE, f"</script>{HOSTILE}")))
    used = {found for tag in page.all("g") for found in re.findall(r"url\(#([^)]+)\)", str(tag.get("style")))}
    assert len(used) == 3
    assert used <= set(page.ids)
    assert page.open == []
    assert "<" not in notes_of(page)
    assert "</textarea>{{ 7 * 7 }}" in json.loads(notes_of(page))[0]
