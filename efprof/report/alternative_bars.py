"""What each configuration would need as bars from zero, with the band of the prediction and the limit."""

from dataclasses import dataclass

from efprof.model import Alternative, Alternatives
from efprof.report.wording import one_line, show, show_interval


@dataclass(frozen=True, kw_only=True, slots=True)
class AlternativeBar:
    """One configuration: places and widths are percent of the picture; `tags` are words on what it is."""

    label: str
    value: str
    band: str
    tags: tuple[str, ...]
    width: float
    band_left: float
    band_width: float
    kind: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AlternativeBars:
    """All of them to one scale; `limit` is the place of the limit in percent, and its words."""

    title: str
    bars: tuple[AlternativeBar, ...]
    limit: tuple[float, str] | None


def alternative_bars(evidence: Alternatives) -> AlternativeBars:
    """The recorded one first, the others by what they need, those that fail last."""
    ordered = sorted(evidence.alternatives, key=_order)
    limit = evidence.limit
    top = max([0.0 if limit is None else limit[0], *(max(one.value, one.high) for one in ordered)]) or 1.0
    return AlternativeBars(
        title=evidence.title,
        bars=tuple(_bar(one, evidence.unit, top) for one in ordered),
        limit=None if limit is None else (_percent(limit[0], top), f"{limit[1]}: {show(limit[0], evidence.unit)}"),
    )


def _order(one: Alternative) -> tuple[bool, bool, float, bool]:
    return one.role != "recorded", one.is_out_of_memory, one.value, one.role != "best"


def _bar(one: Alternative, unit: str, top: float) -> AlternativeBar:
    tags = {"recorded": ("as recorded",), "best": ("best",), "other": ()}[one.role]
    has_band = one.low < one.high
    return AlternativeBar(
        label=one_line(one.label),
        value=f"fails at {show(one.value, unit)}" if one.is_out_of_memory else show(one.value, unit),
        band=show_interval((one.low, one.high), unit) if has_band else "",
        tags=(*tags, *(("out of memory",) if one.is_out_of_memory else ())),
        width=_percent(one.value, top),
        band_left=_percent(one.low, top),
        band_width=round(_percent(one.high, top) - _percent(one.low, top), 2) if has_band else 0.0,
        kind="failing" if one.is_out_of_memory else one.role,
    )


def _percent(value: float, top: float) -> float:
    return round(100 * max(0.0, value) / top, 2)
