"""What is shown of a device's memory: what reserved memory consists of, who has it, other settings, other users."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from efprof.artifacts.readings import DeviceUse, read_device_use
from efprof.facts.allocator.layout import Instant
from efprof.facts.allocator.what_if import Outcome
from efprof.facts.device.device_lines import NO_LINE
from efprof.facts.device.device_memory import DeviceHistory, Failure
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources, place_of
from efprof.model import (
    Alternative,
    Alternatives,
    Bar,
    Evidence,
    Examination,
    Finding,
    MemoryMap,
    Narrative,
    NotRecorded,
    Numbers,
    Series,
    SeriesLine,
    SourceLine,
    ThinEvidence,
)
from efprof.units import format_bytes, format_share

DEFAULT = "torch's default"
COLD = "as recorded, cold"
"""Of the recorded settings from the cold start that all others begin with: what these are to be compared with."""
ONE_LAYOUT = (
    "A recording as long as this is tried in one layout of addresses only, so the band does not tell how far another "
    "moves the peak: of 36 recordings in nearly all not at all, in one by 7 %."
)
MOST_BARS = 8


def examination_of(looked_at: str, makes: Sequence[Callable[[], Finding]]) -> Examination:
    """The findings of several devices that can be made, and why others cannot; raises ThinEvidence where none can."""
    findings, reasons = [], []
    for make in makes:
        try:
            findings.append(make())
        except ThinEvidence as thin:
            reasons.append(str(thin).rstrip("."))
    if reasons and not findings:
        raise ThinEvidence(f"{'; '.join(reasons)}.")
    return Examination(looked_at="; ".join([looked_at, *reasons]), findings=tuple(findings))


def line_of(sources: Sources, instant: Instant) -> SourceLine | None:
    """The user's line that holds most of the segments with free memory in them; None where no stack names one."""
    held = [(owner.stranding_bytes, owner.num_bytes, owner.site) for owner in instant.owners if owner.site is not None]
    return sources.line(max(held)[2]) if held else None


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
    shown = [(label, float(value), "bytes") for label, value in numbers if value or label == "reserved"]
    return Numbers.of(title, *shown)


def owner_map(instant: Instant, blame: SourceLine | None, title: str) -> MemoryMap:
    owners, rest = instant.owners[:MOST_BARS], instant.owners[MOST_BARS:]
    labels = [NO_LINE if owner.site is None else place_of(owner.site) for owner in owners]
    bars = [
        Bar(label=label, num_bytes=owner.num_bytes, is_highlighted=blame is not None and label == str(blame))
        for label, owner in zip(labels, owners, strict=True)
    ]
    if rest:
        bars.append(Bar(label=f"{len(rest)} other lines", num_bytes=sum(owner.num_bytes for owner in rest)))
    free = instant.composition.stranded_bytes + instant.composition.releasable_bytes
    bars.append(Bar(label="nobody: cached by the allocator", num_bytes=free))
    return MemoryMap(title=title, bars=tuple(sorted(bars, key=lambda bar: -bar.num_bytes)))


def trial_bars(device: DeviceHistory) -> Alternatives:
    """The same settings as bars: what each would reserve, between which ends, and what the device has."""
    what_if, best = device.what_if, device.best
    recorded = [_alternative(what_if.recorded_configuration, what_if.recorded, "recorded")]
    recorded += [] if what_if.recorded_cold is None else [_alternative(COLD, what_if.recorded_cold, "other")]
    trials = [
        _alternative(trial.configuration, trial.outcome, "best" if trial is best else "other")
        for trial in device.trials
    ]  # fmt: skip
    return Alternatives(
        title="Peak of reserved memory under other settings, as the replay predicts it",
        unit="bytes",
        alternatives=(*recorded, *trials),
        limit=None if what_if.capacity is None else (float(what_if.capacity), "what the device has for this program"),
    )


def reserved_series(
    device: DeviceHistory, marks: tuple[tuple[float, str], ...], blame: SourceLine | None = None
) -> Series:
    """Reserved memory, and below it what tensors asked for, by the user's line, over the recorded events.

    The blamed one is highlighted, as it is in the map of the segments.
    """
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
            *(replace(curve, stage="other") if curve.label == NO_LINE else curve for curve in curves),
            SeriesLine(label="reserved", x=found.num_events, y=found.reserved, is_over_stack=True),
        ),
        is_stacked=True,
        is_stepped=True,
        marks=marks,
    )


def how_replay_is_known(device: DeviceHistory) -> Narrative:
    replay, script = device.replay, device.what_if.script
    cold = "" if not script.num_live else (
        " The recording began when memory was in use already: under other settings the replay starts cold with what "
        f"was allocated then, as in '{COLD}', which they are to be compared with; 'at most' adds what that cold start "
        "misses under the recorded settings."
    )  # fmt: skip
    layouts = f" {ONE_LAYOUT}" if device.what_if.num_layouts == 1 else ""
    capacity = (
        "It does not tell how much memory the device has, so no setting runs out of it here."
        if script.capacity is None
        else "How much memory the device has is taken from the failure, or the retry, that was recorded."
    )
    return Narrative.of(
        f"{device.file} was replayed by the allocator's own rules: {replay.addresses_equal:,} of "
        f"{replay.allocations:,} blocks lie at the address they had, {replay.segments_equal:,} of "
        f"{replay.segments:,} segments and mappings have their size.{cold}",
        f"{capacity} Frees keep the order they were recorded in; a setting that changes when another stream is "
        f"done may change that.{layouts}",
        "'efprof allocator what-if' on the snapshot tells how many calls of the driver each setting makes, and how "
        "many retries.",
    )


def why_it_failed(device: DeviceHistory, failure: Failure) -> str:
    """In one or two sentences: what was asked for, what there was, and who had the rest."""
    parts = failure.instant.composition
    driver = failure.device_free_bytes
    rest = "" if driver is None else f", and the driver had {format_bytes(driver)}"
    why = "memory was there, but in pieces" if failure.is_fragmentation else "memory was truly short"
    elsewhere = failure.free_bytes - failure.usable_bytes
    where = f" ({format_bytes(elsewhere)} of that for other sizes, streams or pools)" if elsewhere else ""
    most = next((owner for owner in failure.instant.owners if owner.site is not None), None)
    held = ""
    if most is not None and most.site is not None:
        share = format_share(most.num_bytes / max(1, parts.reserved_bytes))
        of_what = "Most" if most is failure.instant.owners[0] else "Of what stacks tell of, most"
        held = f". {of_what} was held by {place_of(most.site)}: {format_bytes(most.num_bytes)} ({share})"
    return (
        f"Device {device.history.device} could not give {format_bytes(failure.requested_bytes)}: of "
        f"{format_bytes(parts.reserved_bytes)} reserved {format_bytes(failure.free_bytes)} were free"
        f"{where}, the largest piece {format_bytes(max(failure.piece_bytes, default=0))}{rest}; {why}{held}"
    )


def what_is_missing(failure: Failure) -> str:
    """What must change at the line that holds most."""
    most = failure.instant.owners[0].site if failure.instant.owners else None
    where = f" at {place_of(most)}, which holds most" if most else ""
    if failure.is_fragmentation:
        return f"keep less{where}, so that larger pieces are free"
    missing = failure.requested_bytes - (failure.device_free_bytes or 0) - failure.usable_bytes
    return f"it is {format_bytes(missing)} short at that moment; keep less{where}"


def device_use_evidence(run: Run) -> tuple[Evidence, ...]:
    """The numbers, and the curve where there are several readings; empty where none were made."""
    try:
        every = read_device_use(run.rank_folder)
    except NotRecorded:
        return ()
    if not every:
        return ()
    readings = [reading for reading in every if reading.device == every[-1].device]
    return (_numbers(readings), _series(readings)) if len(readings) > 1 else (_numbers(readings),)


def _alternative(configuration: str, outcome: Outcome, role: Literal["recorded", "best", "other"]) -> Alternative:
    return Alternative(
        label=configuration or DEFAULT,
        value=float(outcome.peak_reserved_bytes),
        low=float(outcome.peak_reserved_low_bytes),
        high=float(outcome.peak_reserved_high_bytes),
        role=role,
        is_out_of_memory=outcome.is_out_of_memory,
    )


def _numbers(readings: list[DeviceUse]) -> Numbers:
    """The last reading taken apart, and how far the outside has risen."""
    first, last = readings[0], readings[-1]
    numbers = [
        ("in use of the device, by all", last.used_bytes),
        ("reserved by PyTorch", last.reserved_bytes),
        ("outside PyTorch", last.outside_bytes),
    ]
    if last.process_bytes is not None:
        own = max(0, last.process_bytes - last.reserved_bytes)
        others = max(0, last.used_bytes - last.process_bytes)
        numbers.append(("of it this process: CUDA context, NCCL, workspaces of libraries", own))
        numbers.append(("of it other processes", others))
    if last.outside_bytes > first.outside_bytes:
        numbers.append((f"risen since step {first.step:,}", last.outside_bytes - first.outside_bytes))
    return Numbers.of(
        f"In use outside PyTorch's allocator, at step {last.step:,}",
        *((label, float(value), "bytes") for label, value in numbers),
    )


def _series(readings: list[DeviceUse]) -> Series:
    """What PyTorch reserved and what lies outside, one on the other."""
    steps = tuple(float(reading.step) for reading in readings)
    reserved = tuple(float(reading.reserved_bytes) for reading in readings)
    outside = tuple(float(reading.outside_bytes) for reading in readings)
    return Series(
        title=f"Device {readings[0].device} as a whole",
        x_unit="",
        y_label="in use",
        y_unit="bytes",
        lines=(
            SeriesLine(label="reserved by PyTorch", x=steps, y=reserved),
            SeriesLine(label="outside PyTorch", x=steps, y=outside, is_highlighted=True),
        ),
        is_stacked=True,
    )
