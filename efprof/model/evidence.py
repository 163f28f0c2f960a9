"""What a finding shows for itself: a closed union that only the renderers take apart."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Number:
    """One value in its base unit (`ms`, `bytes`, `bytes_per_step`, `percent`, `count`, `ratio`, `` for none)."""

    label: str
    value: float
    unit: str
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Numbers:
    """A few named values."""

    title: str
    numbers: tuple[Number, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows under headings; `units[i]` is the base unit of the numbers in column i."""

    title: str
    columns: tuple[str, ...]
    units: tuple[str, ...]
    rows: tuple[tuple[str | float, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Snippet:
    """Source lines around one that matters; `first_line` is the number of `lines[0]`."""

    title: str
    file: str
    first_line: int
    lines: tuple[str, ...]
    highlighted: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesLine:
    """One named curve; `x` and `y` have the same length."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    is_highlighted: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Curves over one axis; `marks` are (x, label) of instants worth a vertical line."""

    title: str
    x_label: str
    x_unit: str
    y_label: str
    y_unit: str
    lines: tuple[SeriesLine, ...]
    is_stacked: bool = False
    marks: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A stretch of time on a track, in milliseconds from the picture's start."""

    track: str
    label: str
    start_ms: float
    end_ms: float
    is_highlighted: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Intervals:
    """What ran when, one row per track."""

    title: str
    intervals: tuple[Interval, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One owner of memory and its bytes."""

    label: str
    num_bytes: int
    is_highlighted: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryMap:
    """What filled the memory at one instant, largest first."""

    title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Narrative:
    """Plain sentences: what it means, how we know, when it is wrong."""

    title: str
    paragraphs: tuple[str, ...]


Evidence = Numbers | Table | Snippet | Series | Intervals | MemoryMap | Narrative
