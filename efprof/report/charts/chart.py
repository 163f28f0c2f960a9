"""A picture as plain data, which the page draws with plotly."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal, TypeGuard

from efprof.model import frozen_dataclass
from efprof.units import GIB, KIB, MIB

COLOURS = {
    "data": ("#e69f00", "#f0b53c"),
    "forward": ("#0072b2", "#56b4e9"),
    "backward": ("#d55e00", "#f58a4b"),
    "optimizer": ("#009e73", "#35c79b"),
    "other": ("#8c939d", "#98a1ad"),
    "accent": ("#0b5cad", "#79b8ff"),
    "alert": ("#b3261e", "#ff8a80"),
    "extra": ("#a8558a", "#d88fbc"),
    "muted": ("#5d6571", "#9aa4b1"),
    "grid": ("#e3e6ea", "#2c333c"),
    "window": ("#6b4fbb", "#b39ddb"),
    "text": ("#1b1f24", "#e6e9ed"),
    "ground": ("#ffffff", "#161a1f"),
}
"""By name: on a light ground, and on a dark one."""
LIGHT, DARK = ({name: colours[ground] for name, colours in COLOURS.items()} for ground in (0, 1))
SERIES = ("forward", "data", "optimizer", "extra", "backward", "window", "other", "muted")
"""The order in which curves without a colour of their own take theirs."""


LayerKind = Literal["line", "fill", "stack", "bar", "points"]
"""line: a curve; fill: closed outlines with gaps between them; stack, bar: on top of each other; points: markers."""

MAX_POINTS = 1500
"""Points per curve: more than a screen has columns, and a page of ten pictures still opens at once."""


MAX_BAND_ROWS = 3
"""Rows of labels at the top of a picture: more would cover what it shows."""

MAX_BAND_LETTERS = 22
"""A note inside the picture must leave room for others on a phone."""

Unit = tuple[float, float, str]
UNITS: dict[str, tuple[Unit, ...]] = {
    "bytes": ((GIB, GIB, "GiB"), (MIB, MIB, "MiB"), (KIB, KIB, "KiB"), (0, 1, "B")),
    "ms": ((300_000, 60_000, "min"), (1000, 1000, "s"), (1, 1, "ms"), (0, 0.001, "us")),
}
"""Of a base unit those of an axis, each from which value on: a short axis in minutes would be labelled
with fractions of them."""
PLAIN = {"percent": "%", "count": "", "ratio": ""}
PER_STEP = "_per_step"


@frozen_dataclass
class Layer:
    """One curve; `colour` names a colour of the palette, `notes` say what each point is; y None is a gap.

    The values of one that `is_stepped` hold until the next point.
    """

    kind: LayerKind
    label: str
    colour: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    notes: tuple[str, ...] = ()
    is_strong: bool = False
    is_stepped: bool = False


@frozen_dataclass
class Band:
    """A stretch of the x axis; one of a stage has its colour, and a strip of it at the top that no curve hides."""

    start: float
    end: float
    label: str
    stage: str | None = None


@frozen_dataclass
class Chart:
    """Layers over one pair of axes; `marks` are vertical lines.

    `y_range` is what the y axis shows at first; `has_zero` begins it at zero, as amounts need and a loss does not.
    """

    title: str
    caption: str
    x_label: str
    y_label: str
    y_unit: str
    layers: tuple[Layer, ...]
    bands: tuple[Band, ...] = ()
    marks: tuple[tuple[float, str], ...] = ()
    y_range: tuple[float, float] | None = None
    has_zero: bool = True


@frozen_dataclass
class AxisScale:
    """What to divide the numbers of an axis by, and the unit they then have."""

    factor: float
    unit: str


def scale_for(values: Iterable[float | None], unit: str) -> AxisScale:
    """The largest unit in which the largest value is at least one; minutes from five on."""
    top = max((abs(value) for value in values if is_drawable(value)), default=0.0)
    units = UNITS.get(unit.removesuffix(PER_STEP), ((0, 1, PLAIN.get(unit, unit)),))
    factor, name = next((factor, name) for least, factor, name in units if top >= least)
    return AxisScale(factor=factor, unit=name + "/step" * unit.endswith(PER_STEP))


def axis_label(label: str, unit: str) -> str:
    """`allocated (GiB)`."""
    return f"{label} ({unit})" if unit and unit != label else label


def scaled(values: Sequence[float | None], scale: AxisScale) -> tuple[float | None, ...]:
    """The values in the unit of the axis; what is not finite becomes a gap."""
    return tuple(value / scale.factor if is_drawable(value) else None for value in values)


def x_range(chart: Chart) -> tuple[float, float]:
    """From the first point to the last, with room for half a bar or for half a line."""
    places = [x for layer in chart.layers for x in layer.x] or [0.0]
    has_bars = any(layer.kind == "bar" for layer in chart.layers)
    room = 0.5 if has_bars else (max(places) - min(places)) * 0.005 or 0.5
    return min(places) - room, max(places) + room


def labelled_bands(chart: Chart) -> list[Band]:
    """The first band of each label, as far as rows reach: one row from the top for each, in order."""
    first: dict[str, Band] = {}
    for band in chart.bands:
        first.setdefault(band.label, band)
    return [band for label, band in first.items() if label][:MAX_BAND_ROWS]


def thin(values: Sequence[float | None], limit: int = MAX_POINTS) -> list[int]:
    """Indices of at most `limit` points: the first, the last, and each stretch's lowest and highest."""
    if len(values) <= limit:
        return list(range(len(values)))
    num_stretches = (limit - 2) // 2
    kept = {0, len(values) - 1}
    for stretch in range(num_stretches):
        start, end = (len(values) * at // num_stretches for at in (stretch, stretch + 1))
        seen = [index for index in range(start, end) if is_drawable(values[index])]
        if seen:
            kept |= {min(seen, key=lambda i: values[i] or 0.0), max(seen, key=lambda i: values[i] or 0.0)}
    return sorted(kept)


def thinned_caption(num_drawn: int, num_all: int) -> str:
    """Says that points were left out; empty where none was."""
    return f" Drawn from {num_drawn:,} of {num_all:,} samples, highs and lows kept." if num_drawn < num_all else ""


def has_curve(chart: Chart) -> bool:
    """Whether there is anything to see: two points make a curve, one makes an empty frame."""
    return any(sum(map(is_drawable, layer.y)) > 1 for layer in chart.layers)


def is_drawable(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)
