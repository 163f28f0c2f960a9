"""What a finding shows for itself: a closed union that only the renderers take apart."""

from collections.abc import Iterable, Mapping
from typing import Literal, Self

from efprof.model.data import frozen_dataclass

StretchState = Literal["used", "slack", "pending", "stranded", "releasable"]
"""used: somebody asked for it; slack: behind a block, by rounding or because a large one is not split; pending: given
back, waiting for another stream; stranded: free in a segment that something else holds; releasable: free as a whole."""


@frozen_dataclass
class Number:
    """One value in its base unit (`ms`, `bytes`, `bytes_per_step`, `percent`, `count`, `ratio`, `` for none)."""

    label: str
    value: float
    unit: str
    interval: tuple[float, float] | None = None


NumberRow = tuple[str, float | None, str] | tuple[str, float | None, str, tuple[float, float] | None]
"""Label, value, unit, and an interval where there is one."""


@frozen_dataclass
class Numbers:
    """A few named values."""

    title: str
    numbers: tuple[Number, ...]

    @classmethod
    def of(cls, title: str, *rows: NumberRow) -> Self:
        """A row whose value is None is left out."""
        numbers = [
            Number(label=row[0], value=float(row[1]), unit=row[2], interval=row[3] if len(row) == 4 else None)
            for row in rows
            if row[1] is not None
        ]
        return cls(title=title, numbers=tuple(numbers))


Row = tuple[str | float, ...]


@frozen_dataclass
class Table:
    """Rows under headings; `units[i]` is the base unit of the numbers in column i."""

    title: str
    columns: tuple[str, ...]
    units: tuple[str, ...]
    rows: tuple[Row, ...]

    @classmethod
    def of(cls, title: str, columns: Mapping[str, str], rows: Iterable[Row]) -> Self:
        """With columns by their headings, and the unit of each."""
        return cls(title=title, columns=tuple(columns), units=tuple(columns.values()), rows=tuple(rows))


@frozen_dataclass
class Snippet:
    """Source lines around one that matters; `first_line` is the number of `lines[0]`."""

    title: str
    file: str
    first_line: int
    lines: tuple[str, ...]
    highlighted: int


@frozen_dataclass
class SeriesLine:
    """One named curve; `x` and `y` have the same length.

    `notes` tell of each point which line of the user's program it is, say; there are none, or as many as points. A
    curve of what one stage makes has the colour of that `stage`. In a stacked series a line that `is_over_stack` is no
    part of the stack. Points that have nothing to do with each other `are_apart`.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    is_highlighted: bool = False
    notes: tuple[str, ...] = ()
    stage: str | None = None
    is_over_stack: bool = False
    are_apart: bool = False


@frozen_dataclass
class StageBand:
    """A stretch of the x axis in which one stage of a step ran."""

    start: float
    end: float
    stage: str


@frozen_dataclass
class Series:
    """Curves over one axis, the steps unless it says otherwise; `marks` are (x, label) worth a vertical line.

    The values of one that `is_stepped` hold until the next point.
    """

    title: str
    x_label: str = "step"
    x_unit: str = "count"
    y_label: str
    y_unit: str
    lines: tuple[SeriesLine, ...]
    is_stacked: bool = False
    is_stepped: bool = False
    marks: tuple[tuple[float, str], ...] = ()
    bands: tuple[StageBand, ...] = ()


@frozen_dataclass
class Interval:
    """A stretch of time in milliseconds, in the colour of its stage or cause; `note` says all that is known of it."""

    start_ms: float
    length_ms: float
    label: str
    colour: str
    note: str


@frozen_dataclass
class IntervalRow:
    """What lies side by side: one depth of calls, or one thread or stream."""

    label: str
    intervals: tuple[Interval, ...]


@frozen_dataclass
class Intervals:
    """Rows over one axis of `span_ms` milliseconds."""

    title: str
    caption: str
    span_ms: float
    rows: tuple[IntervalRow, ...]


@frozen_dataclass
class Bar:
    label: str
    num_bytes: int
    is_highlighted: bool = False


@frozen_dataclass
class MemoryMap:
    """What filled the memory at one instant, largest first."""

    title: str
    bars: tuple[Bar, ...]


@frozen_dataclass
class Alternative:
    """What one configuration would need, with the interval that the prediction lies in."""

    label: str
    value: float
    low: float
    high: float
    role: Literal["recorded", "best", "other"] = "other"
    is_out_of_memory: bool = False
    """Then `value` is how far it came."""


@frozen_dataclass
class Alternatives:
    """The same program under several configurations; `limit` is what the device has, with its name."""

    title: str
    unit: str
    alternatives: tuple[Alternative, ...]
    limit: tuple[float, str] | None = None


@frozen_dataclass
class Stretch:
    """Neighbouring bytes of a segment; `owner` is a place in `SegmentMap.owners`, None where nobody has them.

    One that `is_mixed` is of several too short to be told apart, and has the state and the owner of most of them.
    """

    state: StretchState
    num_bytes: int
    owner: int | None = None
    is_mixed: bool = False


@frozen_dataclass
class SegmentRow:
    """A segment and its stretches by address; or several that are too many for a row each, end to end."""

    label: str
    num_bytes: int
    stretches: tuple[Stretch, ...]
    num_segments: int = 1


@frozen_dataclass
class SegmentView:
    """All segments at one instant, the largest first; `totals` are the bytes of each state, before any were mixed."""

    label: str
    rows: tuple[SegmentRow, ...]
    totals: tuple[tuple[StretchState, int], ...]


@frozen_dataclass
class SegmentMap:
    """Where every block lies; `line_bytes` fill a line of the picture, longer segments take several lines.

    `owners` come by the bytes they have, most first; `highlighted` is the place of the blamed one among them.
    """

    title: str
    line_bytes: int
    owners: tuple[str, ...]
    views: tuple[SegmentView, ...]
    highlighted: int | None = None


@frozen_dataclass
class Narrative:
    """Plain sentences: what it means, how we know, when it is wrong."""

    title: str = "What it means, how we know, when it is wrong"
    paragraphs: tuple[str, ...]

    @classmethod
    def of(cls, *paragraphs: str) -> Self:
        """Under the usual title."""
        return cls(paragraphs=paragraphs)


Evidence = Numbers | Table | Snippet | Series | Intervals | MemoryMap | Alternatives | SegmentMap | Narrative
