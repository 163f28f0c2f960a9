"""A device's memory, to be seen: over time, by lines, by segments, under other settings, and what others have of it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from efprof.artifacts.readings import read_device_use
from efprof.facts.allocator.layout import FREE, Instant, Piece, SegmentLayout, totals_of
from efprof.facts.allocator.what_if import Outcome, Trial
from efprof.facts.device.device_lines import BEFORE_IT, NO_LINE, label_of
from efprof.facts.device.device_memory import DeviceHistory, DeviceStates, RetryTrials
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.model import (
    Alternative,
    Alternatives,
    Bar,
    Evidence,
    Gain,
    MemoryMap,
    Narrative,
    Numbers,
    SegmentMap,
    SegmentRow,
    SegmentView,
    Series,
    SeriesLine,
    SourceLine,
    Stretch,
    StretchState,
)
from efprof.units import format_bytes

MAX_BARS = 8
MAX_ROWS = 24
"""The largest segments have a row each, all others one together. The recordings of public programs that were looked at
had 2 to 1,722."""
WRAPPED_LINES = 16
"""A row with much of the memory is wrapped so that all of it would fill so many lines: an expandable segment may be all
there is, and a line of 50 GiB would show nothing that is smaller than 50 MiB."""
PIXELS_PER_LINE = 1000
"""A line is about as many pixels wide on a desk: what is shorter than that is mixed with its neighbours."""
STATES: tuple[StretchState, ...] = ("used", "slack", "pending", "stranded", "releasable")

DEFAULT = "torch's default"
COLD = "as recorded, cold"
"""Of the recorded settings from the cold start that all others begin with: what these are to be compared with."""

Owners = dict[str | None, int]
"""The place of each line (`file:line`) among the owners of a map."""


def segment_map(
    device: DeviceHistory, instant: Instant, label: str, blame: SourceLine | None, title: str
) -> SegmentMap:
    """The segments at the peak or a failure, which `label` says, and at the end where that is another state."""
    views = [(label, instant.layouts)]
    if device.end.layouts != instant.layouts:
        views.append(("at the end of the recording", device.end.layouts))
    return map_of(views, None if blame is None else str(blame), title)


def device_overview(run: Run) -> tuple[Evidence, ...]:
    """What a run's snapshots show of each device; raises NotRecorded, UnreadableInput."""
    shown: list[Evidence] = []
    for device in run.get(DeviceStates).devices:
        name, mark, when = f"Device {device.history.device}", (float(device.peak_index + 1), "peak"), _when(device)
        shown += [
            *([reserved_series(device, (mark,))] if device.has_history else []),
            owner_map(device.peak, None, f"{name}: who has it {when}"),
            composition_numbers(device.peak, f"{name}: reserved memory {when}"),
            segment_map(device, device.peak, when, None, f"{name}, segment by segment"),
            *([trial_bars(device)] if device.has_history else []),
        ]
    return tuple(shown)


def _when(device: DeviceHistory) -> str:
    return "at the peak" if device.has_history else "at the end"


def device_use_evidence(run: Run) -> tuple[Numbers, ...]:
    """The last reading taken apart, and how far the outside has risen; empty where none were made."""
    every = read_device_use(run.rank_folder) if run.rank_folders else []
    if not every:
        return ()
    last = every[-1]
    first = next(reading for reading in every if reading.device == last.device)
    numbers = [
        ("in use of the device, by all", last.used_bytes),
        ("reserved by PyTorch", last.reserved_bytes),
        ("outside PyTorch: CUDA context, NCCL, libraries, other processes", last.outside_bytes),
    ]
    if last.outside_bytes > first.outside_bytes:
        numbers.append((f"risen since step {first.step:,}", last.outside_bytes - first.outside_bytes))
    title = f"In use outside PyTorch's allocator, at step {last.step:,}"
    return (Numbers.of(title, *((label, value, "bytes") for label, value in numbers)),)


def reserved_series(
    device: DeviceHistory, marks: tuple[tuple[float, str], ...], blame: SourceLine | None = None
) -> Series:
    """What is reserved, and below it what tensors asked for, by line, over the recorded events."""
    found = device.lines_over_time
    curves = (
        SeriesLine(label=label, x=found.num_events, y=sizes, is_highlighted=f"/{blame}".endswith(f"/{label}"))
        for label, sizes in found.curves
    )
    return Series(
        title=f"Memory of device {device.history.device} over the recorded events, by your lines",
        x_label="event of the allocator",
        x_unit="count",
        y_label="memory",
        y_unit="bytes",
        lines=(
            *(replace(curve, stage="other") if curve.label in (NO_LINE, BEFORE_IT) else curve for curve in curves),
            SeriesLine(label="reserved", x=found.num_events, y=found.reserved, is_over_stack=True),
        ),
        is_stacked=True,
        is_stepped=True,
        marks=marks,
    )


def composition_numbers(instant: Instant, title: str) -> Numbers:
    parts = instant.composition
    numbers = [
        ("reserved", parts.reserved_bytes),
        ("asked for by tensors", parts.requested_bytes),
        ("rounding", parts.rounding_bytes),
        ("slack behind large blocks, which are not split for less than 1 MiB", parts.slack_bytes),
        ("given back, waiting for another stream", parts.pending_bytes),
        ("stranded: free in segments that something else holds", parts.stranded_bytes),
        ("releasable: free in whole segments", parts.releasable_bytes),
        ("largest free block", parts.largest_free_bytes),
    ]
    shown = [(label, value, "bytes") for label, value in numbers if value or label == "reserved"]
    return Numbers.of(title, *shown)


def owner_map(instant: Instant, blame: SourceLine | None, title: str) -> MemoryMap:
    owners, rest = instant.owners[:MAX_BARS], instant.owners[MAX_BARS:]
    labels = [label_of(owner.site) for owner in owners]
    bars = [
        Bar(label=label, num_bytes=owner.num_bytes, is_highlighted=blame is not None and label == str(blame))
        for label, owner in zip(labels, owners, strict=True)
    ]
    if rest:
        bars.append(Bar(label=f"{len(rest)} other lines", num_bytes=sum(owner.num_bytes for owner in rest)))
    bars.append(Bar(label="free, cached by the allocator", num_bytes=instant.composition.free_bytes))
    return MemoryMap(title=title, bars=tuple(sorted(bars, key=lambda bar: -bar.num_bytes)))


def line_of(sources: Sources, instant: Instant) -> SourceLine | None:
    """The user's line that holds most of the segments with free memory in them; None where no stack names one."""
    held = [(owner.stranding_bytes, owner.num_bytes, owner.site) for owner in instant.owners if owner.site]
    return sources.line(max(held)[2]) if held else None


def trial_bars(tried: DeviceHistory | RetryTrials) -> Alternatives:
    """What each setting would reserve, between which ends, and what the device has."""
    what_if = tried.what_if
    recorded = [_alternative(what_if.history.configuration, what_if.recorded, "recorded")]
    recorded += [] if what_if.recorded_cold is None else [_alternative(COLD, what_if.recorded_cold, "other")]
    others = [
        _alternative(trial.configuration, trial.outcome, "best" if trial is tried.best else "other")
        for trial in tried.trials
    ]
    return Alternatives(
        title="Peak of reserved memory under other settings, as the replay predicts it",
        unit="bytes",
        alternatives=(*recorded, *others),
        limit=None
        if (limit := what_if.limit_bytes) is None
        else (float(limit), "what the device has for this program"),
    )


def how_replay_is_known(device: DeviceHistory) -> Narrative:
    replay = device.replay
    cold = "" if not device.what_if.script.num_live else (
        " The recording began when memory was in use already: under other settings the replay starts cold with what "
        f"was allocated then, as in '{COLD}', which they are to be compared with; 'at most' adds what that cold start "
        "misses under the recorded settings."
    )  # fmt: skip
    return Narrative.of(
        f"{device.file} was replayed by the allocator's own rules: {replay.addresses_equal:,} of "
        f"{replay.allocations:,} blocks lie at the address they had, {replay.segments_equal:,} of "
        f"{replay.segments:,} segments and mappings have their size.{cold}",
        "Frees keep the order they were recorded in; a setting that changes when another stream is done may change "
        "that. A band goes over several layouts of addresses.",
    )


def replayed_gain(device: DeviceHistory, survivor: Trial) -> Gain:
    """Of a setting under which no request fails."""
    return Gain(
        basis="replay",
        explanation="the recorded requests replayed: under these settings all are served, the failed one too",
        peak_bytes=max(0, device.what_if.saved_bytes(survivor.outcome)),
        of_bytes=device.what_if.recorded.peak_reserved_bytes,
    )


def map_of(views: Sequence[tuple[str, Sequence[SegmentLayout]]], highlighted: str | None, title: str) -> SegmentMap:
    """The map of these instants, all to one scale; `highlighted` is the `file:line` of an owner."""
    groups = [_groups(layouts) for _, layouts in views]
    line_bytes = max(map(_line_bytes, groups), default=1)
    pixel_bytes = max(1, line_bytes // PIXELS_PER_LINE)
    owners = _owners([layout for _, layouts in views for layout in layouts])
    return SegmentMap(
        title=title,
        line_bytes=line_bytes,
        owners=tuple(NO_LINE if place is None else place for place in owners),
        highlighted=None if highlighted is None else owners.get(highlighted),
        views=tuple(
            SegmentView(
                label=label,
                rows=tuple(_row(group, owners, pixel_bytes) for group in grouped),
                totals=_totals(layouts),
            )
            for (label, layouts), grouped in zip(views, groups, strict=True)
        ),
    )


def _alternative(configuration: str, outcome: Outcome, role: Literal["recorded", "best", "other"]) -> Alternative:
    return Alternative(
        label=configuration or DEFAULT,
        value=float(outcome.peak_reserved_bytes),
        low=float(outcome.peak_reserved_low_bytes),
        high=float(outcome.peak_reserved_high_bytes),
        role=role,
        is_out_of_memory=outcome.is_out_of_memory,
    )


def _groups(layouts: Sequence[SegmentLayout]) -> list[list[SegmentLayout]]:
    """What shares a row, the most bytes first: each of the largest segments has its own."""
    by_size = sorted(layouts, key=lambda one: (-one.num_bytes, one.address))
    rest = by_size[MAX_ROWS:]
    return [*([layout] for layout in by_size[:MAX_ROWS]), *([rest] if rest else [])]


def _line_bytes(groups: list[list[SegmentLayout]]) -> int:
    sizes = [_bytes_of(group) for group in groups]
    return max(1, min(max(sizes, default=0), -(-sum(sizes) // WRAPPED_LINES)))


def _owners(layouts: list[SegmentLayout]) -> Owners:
    """By the bytes they have at all the instants together, most first."""
    held = Counter[str | None]()
    for layout in layouts:
        for piece in layout.pieces:
            if piece.state not in FREE:
                held[_place(piece)] += piece.num_bytes
    return {place: number for number, (place, _) in enumerate(held.most_common())}


def _totals(layouts: Sequence[SegmentLayout]) -> tuple[tuple[StretchState, int], ...]:
    totals = totals_of(layouts)
    return tuple((state, totals[state]) for state in STATES if totals[state])


def _row(group: list[SegmentLayout], owners: Owners, pixel_bytes: int) -> SegmentRow:
    largest, sizes = group[0], f"{format_bytes(group[-1].num_bytes)} to {format_bytes(group[0].num_bytes)}"
    kind = "mapped stretch of an expandable segment" if largest.is_expandable else "segment"
    alone = f"{kind} for {'small' if largest.is_small else 'large'} blocks"
    stretches = (
        Stretch(
            state=piece.state, num_bytes=piece.num_bytes, owner=None if piece.state in FREE else owners[_place(piece)]
        )
        for layout in group
        for piece in layout.pieces
    )
    return SegmentRow(
        label=f"{len(group):,} segments of {sizes}" if len(group) > 1 else alone,
        num_bytes=_bytes_of(group),
        num_segments=len(group),
        stretches=tuple(_merge_short(stretches, pixel_bytes)),
    )


def _bytes_of(group: list[SegmentLayout]) -> int:
    return sum(layout.num_bytes for layout in group)


def _merge_short(stretches: Iterable[Stretch], pixel_bytes: int) -> Iterator[Stretch]:
    """Mix neighbours that are shorter than a pixel until they are as long as one."""
    short: list[Stretch] = []
    for stretch in stretches:
        if short and (stretch.num_bytes >= pixel_bytes or sum(one.num_bytes for one in short) >= pixel_bytes):
            yield _merged(short)
            short = []
        short.append(stretch)
    if short:
        yield _merged(short)


def _merged(stretches: list[Stretch]) -> Stretch:
    if len(stretches) == 1:
        return stretches[0]
    sums = Counter[tuple[StretchState, int | None]]()
    for stretch in stretches:
        sums[stretch.state, stretch.owner] += stretch.num_bytes
    (state, owner), _ = sums.most_common(1)[0]
    return Stretch(state=state, num_bytes=sums.total(), owner=owner, is_mixed=len(sums) > 1)


def _place(piece: Piece) -> str | None:
    return None if piece.site is None else label_of(piece.site)
