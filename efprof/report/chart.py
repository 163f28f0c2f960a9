"""A picture as plain data, which the page draws with plotly and the printer with matplotlib."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from efprof.units import GIB, KIB, MIB

LayerKind = Literal["line", "fill", "stack", "bar", "points"]
"""line: a curve; fill: closed outlines with gaps between them; stack, bar: on top of each other; points: markers."""

MAX_POINTS: Final = 1500
"""Points per curve: more than a screen has columns, and a page of ten pictures still opens at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One curve; `colour` names a colour of the palette, `notes` say what each point is; y None is a gap."""

    kind: LayerKind
    label: str
    colour: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    notes: tuple[str, ...] = ()
    is_strong: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """A stretch of the x axis."""

    start: float
    end: float
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """Layers over one pair of axes; `marks` are vertical lines, `level` a horizontal one.

    `y_top` ends the y axis at first; `has_zero` begins it at zero, as amounts need and a loss does not.
    """

    title: str
    caption: str
    x_label: str
    y_label: str
    y_unit: str
    layers: tuple[Layer, ...]
    bands: tuple[Band, ...] = ()
    marks: tuple[tuple[float, str], ...] = ()
    level: tuple[float, str] | None = None
    y_top: float | None = None
    has_zero: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A stretch of time on a track."""

    track: str
    label: str
    start: float
    end: float
    is_strong: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackChart:
    """What ran when, one row per track, from the top."""

    title: str
    caption: str
    x_label: str
    tracks: tuple[str, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class AxisScale:
    """What to divide the numbers of an axis by, and the unit they then have."""

    factor: float
    unit: str


def scale_for(values: Iterable[float | None], unit: str) -> AxisScale:
    """The largest unit in which the largest value is at least one."""
    top = max((abs(value) for value in values if value is not None and math.isfinite(value)), default=0.0)
    match unit:
        case "bytes" | "bytes_per_step":
            steps = [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")]
            size, name = next(((f, n) for f, n in steps if top >= f), (1, "B"))
            return AxisScale(factor=size, unit=name + ("/step" if unit == "bytes_per_step" else ""))
        case "ms":
            factors = [(60_000.0, "min"), (1000.0, "s"), (1.0, "ms")]
            factor, name = next(((f, n) for f, n in factors if top >= f), (0.001, "us"))
            return AxisScale(factor=factor, unit=name)
        case "percent":
            return AxisScale(factor=1, unit="%")
        case "count" | "ratio":
            return AxisScale(factor=1, unit="")
        case _:
            return AxisScale(factor=1, unit=unit)


def axis_label(label: str, unit: str) -> str:
    """`allocated (GiB)`."""
    return f"{label} ({unit})" if unit and unit != label else label


def scaled(values: Sequence[float | None], scale: AxisScale) -> tuple[float | None, ...]:
    """The values in the unit of the axis; what is not finite becomes a gap."""
    return tuple(value / scale.factor if value is not None and math.isfinite(value) else None for value in values)


def x_range(chart: Chart) -> tuple[float, float]:
    """From the first point to the last, with room for half a bar or for half a line."""
    places = [x for layer in chart.layers for x in layer.x] or [0.0]
    has_bars = any(layer.kind == "bar" for layer in chart.layers)
    room = 0.5 if has_bars else (max(places) - min(places)) * 0.005 or 0.5
    return min(places) - room, max(places) + room


def thin(values: Sequence[float | None], limit: int = MAX_POINTS) -> list[int]:
    """Indices of at most `limit` points: the first, the last, and each stretch's lowest and highest."""
    if len(values) <= limit:
        return list(range(len(values)))
    num_stretches = (limit - 2) // 2
    kept = {0, len(values) - 1}
    for stretch in range(num_stretches):
        start, end = (len(values) * at // num_stretches for at in (stretch, stretch + 1))
        seen = [index for index in range(start, end) if _is_drawable(values[index])]
        if seen:
            kept |= {min(seen, key=lambda i: values[i] or 0.0), max(seen, key=lambda i: values[i] or 0.0)}
    return sorted(kept)


def thinned_caption(num_drawn: int, num_all: int) -> str:
    """Says that points were left out; empty where none was."""
    return f" Drawn from {num_drawn:,} of {num_all:,} samples, highs and lows kept." if num_drawn < num_all else ""


def _is_drawable(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
