"""A map of segments as rectangles in lines: plain data that the page lays out as SVG, which needs no library."""

from collections import defaultdict
from collections.abc import Iterator

from efprof.model import SegmentMap, SegmentRow, SegmentView, Stretch, StretchState, frozen_dataclass
from efprof.report.wording import one_line, sentence, shorten_path
from efprof.units import format_bytes, format_count

LINE_PIXELS = 14
GAP_PIXELS = 3
OWNER_COLOURS = ("forward", "data", "optimizer", "extra", "other")
"""Of the palette, for the owners with most bytes; more could not be told apart."""
BLAMED_COLOUR = "alert"
REST_COLOUR = "window"
OWNER_LETTERS = 56
STATE_WORDS: dict[StretchState, str] = {
    "used": "in use",
    "slack": "rounding and slack behind blocks",
    "pending": "given back, waiting for another stream",
    "stranded": "stranded: free in a segment that something else holds",
    "releasable": "free in a whole segment or page",
}


Rectangle = tuple[float, float, int]
"""What lies on one line: left and width in percent of the line's, and the line's top in pixels."""


@frozen_dataclass
class MapRow:
    """A segment, or several end to end, in the lines of `frames`.

    Of `layers` each has what is filled alike, with a colour of the palette or the hatching of a state, and the places
    of the notes.
    """

    size: str
    label: str
    height: int
    frames: tuple[Rectangle, ...]
    layers: tuple[tuple[str, tuple[tuple[Rectangle, int], ...]], ...]


@frozen_dataclass
class MapView:
    """All segments at one instant."""

    label: str
    summary: str
    rows: tuple[MapRow, ...]


@frozen_dataclass
class SegmentPicture:
    """The legend as (fill, words, whether it is the blamed line), one view per instant, and the notes of rectangles."""

    caption: str
    keys: tuple[tuple[str, str, bool], ...]
    views: tuple[MapView, ...]
    notes: tuple[str, ...]


def segment_picture(segments: SegmentMap) -> SegmentPicture:
    """The map laid out; every string from outside still as it came, but on one line."""
    # The blamed owner's is that of alarm; those that come last share one, unless it would be of one alone.
    free, places = iter(OWNER_COLOURS), range(len(segments.owners))
    colours = [BLAMED_COLOUR if place == segments.highlighted else next(free, REST_COLOUR) for place in places]
    notes: dict[str, int] = {}
    views = tuple(
        MapView(
            label=view.label,
            summary=_summary(view),
            rows=tuple(_row(row, segments, colours, notes) for row in view.rows),
        )
        for view in segments.views
    )
    return SegmentPicture(
        caption=f"A full line is {format_bytes(segments.line_bytes)}. Point at a piece or tap it to see whose it is.",
        keys=tuple(_keys(segments, colours)),
        views=views,
        notes=tuple(notes),
    )


def _keys(segments: SegmentMap, colours: list[str]) -> Iterator[tuple[str, str, bool]]:
    rest = [place for place, colour in enumerate(colours) if colour == REST_COLOUR]
    for place, colour in enumerate(colours):
        if colour != REST_COLOUR or len(rest) == 1:
            yield colour, _owner(segments, place), place == segments.highlighted
    if len(rest) > 1:
        yield REST_COLOUR, format_count(len(rest), "other line"), False
    seen = {state for view in segments.views for state, _ in view.totals}
    yield from ((state, words, False) for state, words in STATE_WORDS.items() if state in seen and state != "used")


def _summary(view: SegmentView) -> str:
    num_segments, num_bytes = sum(row.num_segments for row in view.rows), sum(row.num_bytes for row in view.rows)
    if not num_segments:
        return "Nothing is reserved."
    parts = ", ".join(f"{format_bytes(total)} {STATE_WORDS[state].partition(':')[0]}" for state, total in view.totals)
    return f"{format_bytes(num_bytes)} in {format_count(num_segments, 'segment')}: {parts}."


def _row(row: SegmentRow, segments: SegmentMap, colours: list[str], notes: dict[str, int]) -> MapRow:
    layers = defaultdict[str, list[tuple[Rectangle, int]]](list)
    at, size = 0, format_bytes(row.num_bytes)
    for stretch in row.stretches:
        note = notes.setdefault(_note(stretch, row, segments), len(notes))
        fill = stretch.state if stretch.state != "used" or stretch.owner is None else colours[stretch.owner]
        layers[fill] += [(part, note) for part in _on_lines(at, stretch.num_bytes, segments.line_bytes)]
        at += stretch.num_bytes
    return MapRow(
        size=f"{row.num_segments:,} in {size}" if row.num_segments > 1 else size,
        label=sentence(row.label),
        height=max(1, -(-row.num_bytes // segments.line_bytes)) * (LINE_PIXELS + GAP_PIXELS) - GAP_PIXELS,
        frames=tuple(_on_lines(0, row.num_bytes, segments.line_bytes)),
        layers=tuple((fill, tuple(layers[fill])) for fill in sorted(layers)),
    )


def _on_lines(start: int, num_bytes: int, line_bytes: int) -> Iterator[Rectangle]:
    """Each line's part of these bytes."""
    end = start + num_bytes
    while start < end:
        line, offset = divmod(start, line_bytes)
        part = min(end - start, line_bytes - offset)
        left = round(100 * offset / line_bytes, 3)
        yield left, round(100 * (offset + part) / line_bytes - left, 3), line * (LINE_PIXELS + GAP_PIXELS)
        start += part


def _note(stretch: Stretch, row: SegmentRow, segments: SegmentMap) -> str:
    size = format_bytes(stretch.num_bytes)
    what = STATE_WORDS[stretch.state]
    if stretch.owner is not None:
        owner = _owner(segments, stretch.owner)
        what = f"a block of {owner}: {what}" if stretch.state == "slack" else f"{owner}: {what}"
    if stretch.is_mixed:
        what = f"pieces too small to draw, most of them {what}"
    where = one_line(row.label) + ("" if row.num_segments > 1 else f", {format_bytes(row.num_bytes)}")
    return f"{size}, {what} ({where})"


def _owner(segments: SegmentMap, place: int) -> str:
    return shorten_path(segments.owners[place], OWNER_LETTERS)
