"""What memory growth shows for itself: the staircase, the slope, the holders, and how we know."""

import contextlib

from efprof.facts.growth import MemoryGrowth
from efprof.facts.growth_suspects import GrowthSuspect
from efprof.facts.holder_lines import HolderGrowth, HolderLines
from efprof.facts.run import Run
from efprof.facts.run_limits import RunLimits
from efprof.facts.sources import Sources
from efprof.model import Evidence, Gain, Narrative, NotRecorded, Number, Numbers, Series, SeriesLine, Severity, Table
from efprof.units import format_about, format_bytes

MOST_HOLDERS = 5
SOON_STEPS = 10_000
"""Nearly every training takes more steps than that: it will meet its end."""
LATE_STEPS = 1_000_000
"""Hardly any takes as many."""


def growth_evidence(run: Run, suspect: GrowthSuspect) -> tuple[Evidence, ...]:
    """All of it, the curve first."""
    growth, sources = run.get(MemoryGrowth), run.get(Sources)
    return (
        growth_series(growth),
        sources.snippet(suspect.blame),
        growth_numbers(growth, run.get(RunLimits)),
        *holder_table(run),
        how_growth_is_known(growth, suspect, is_counted=is_counted(run)),
    )


def is_counted(run: Run) -> bool:
    """Whether Python's holders were counted, though none that grew was found."""
    with contextlib.suppress(NotRecorded):
        return bool(run.get(HolderLines).steps)
    return False


def growth_message(run: Run, suspect: GrowthSuspect) -> str:
    """How fast, why, and where it ends."""
    growth, limits = run.get(MemoryGrowth), run.get(RunLimits)
    low, high = (suspect.share * end for end in (growth.trend.low, growth.trend.high))
    slope = format_bytes(suspect.share * growth.trend.slope)
    about = (
        "" if format_bytes(low) == slope == format_bytes(high) else f" ({format_bytes(low)} to {format_bytes(high)})"
    )
    return f"Memory grows {slope} per step{about}{why_it_grows(suspect)}{_end(limits, growth)}."


def growth_severity(run: Run) -> Severity:
    """By the step at which memory is used up."""
    limits = run.get(RunLimits)
    end = limits.end_step(run.get(MemoryGrowth).trend.slope)
    return "high" if limits.ran_out or end < SOON_STEPS else "medium" if end < LATE_STEPS else "low"


def growth_gain(growth: MemoryGrowth, share: float) -> Gain:
    """What the recorded steps kept of it."""
    low, high = growth.rise_interval
    return Gain(
        basis="measured bound",
        explanation="the measured slope over the recorded steps, and no more than the rise that was measured",
        peak_bytes=round(share * growth.rise_bytes),
        peak_bytes_interval=(share * low, share * high),
    )


def growth_series(growth: MemoryGrowth) -> Series:
    """The staircase: bytes retained after each step outside windows, the trend, and where its fit begins."""
    ends = (float(growth.steps[growth.first_steady]), float(growth.steps[-1]))
    measured = SeriesLine(
        label="allocated after the step",
        x=tuple(float(step) for step in growth.steps),
        y=tuple(float(num_bytes) for num_bytes in growth.retained_bytes),
        is_highlighted=True,
    )
    trend = SeriesLine(label="trend", x=ends, y=tuple(growth.trend.level + growth.trend.slope * step for step in ends))
    return Series(
        title="Memory retained after each step",
        x_label="step",
        x_unit="count",
        y_label="allocated",
        y_unit="bytes",
        lines=(measured, trend),
        marks=((ends[0], "fit begins"),),
    )


def growth_numbers(growth: MemoryGrowth, limits: RunLimits) -> Numbers:
    """The slope with its interval, the rise, and where it leads."""
    trend = growth.trend
    return Numbers(
        title="Growth",
        numbers=(
            Number(label="growth per step", value=trend.slope, unit="bytes_per_step", interval=(trend.low, trend.high)),
            Number(label="rise over the recorded steps", value=growth.rise_bytes, unit="bytes"),
            Number(label=f"memory of {limits.name}", value=limits.total_bytes, unit="bytes"),
            Number(label="step at which it is used up", value=limits.end_step(trend.slope), unit="count"),
        ),
    )


def holder_table(run: Run) -> tuple[Table, ...]:
    """The holders that grew between two counts; nothing where no census was taken."""
    with contextlib.suppress(NotRecorded):
        found = run.get(HolderLines)
        first, last = found.steps
        if not found.holders:
            return ()
        return (
            Table(
                title=f"What grew between step {first:,} and step {last:,}",
                columns=("held by", "type", "tensors", "graph nodes", "growth per step"),
                units=("", "", "", "", "bytes_per_step"),
                rows=tuple(_row(growth) for growth in found.holders[:MOST_HOLDERS]),
            ),
        )
    return ()


def why_it_grows(suspect: GrowthSuspect) -> str:
    """The cause as a clause of the message, as sure as the evidence is."""
    match suspect.known_by:
        case "holder":
            assert suspect.holder is not None
            what = "tensors with their graphs" if suspect.holder.keeps_graphs else "tensors"
            return f" because `{suspect.holder.holder.path}` keeps {what}"
        case "survivors":
            return "; most of it is allocated by this line and still alive a step later"
    return "; what holds it is not known, so this is the line that runs backward"


def how_growth_is_known(growth: MemoryGrowth, suspect: GrowthSuspect, *, is_counted: bool) -> Narrative:
    """What it means, how we know, and when it is wrong."""
    return Narrative(
        title="What it means, how we know, when it is wrong",
        paragraphs=(
            _meaning(suspect),
            f"The lowest points of {growth.num_blocks} equal stretches after warm-up were compared: the "
            f"median of their slopes is {format_bytes(growth.trend.slope)} per step (95 % interval "
            f"{format_bytes(growth.trend.low)} to {format_bytes(growth.trend.high)}), and both halves of the run show "
            f"it. {_how_the_line_is_known(suspect, is_counted=is_counted)}",
            "A cache that is still filling at the end of the recording, or reference cycles that Python's garbage "
            "collector has not reached yet, look the same: record more steps to tell.",
        ),
    )


def _row(growth: HolderGrowth) -> tuple[str | float, ...]:
    holder = growth.holder
    return (
        holder.path,
        holder.type,
        f"{holder.tensors_before:,} -> {holder.tensors_after:,}",
        f"{holder.graph_nodes_before:,} -> {holder.graph_nodes_after:,}",
        growth.bytes_per_step,
    )


def _meaning(suspect: GrowthSuspect) -> str:
    if suspect.holder is None:
        return "Every step leaves memory behind that nothing releases."
    holder = suspect.holder.holder
    if suspect.holder.keeps_graphs:
        return (
            f"`{holder.path}` holds on to results together with the autograd graphs that made them: every tensor that "
            "those graphs saved for backward stays alive as long as it does."
        )
    return f"`{holder.path}` holds more tensors after every step, and nothing takes any out."


def _how_the_line_is_known(suspect: GrowthSuspect, *, is_counted: bool) -> str:
    if suspect.holder is None and is_counted:
        return (
            "Python's objects were counted twice, and no variable of the program keeps it: a cache of a library, an "
            "object that only C++ holds, or a gradient whose graph leads back to it may."
        )
    if suspect.holder is None:
        return (
            "No count of Python's holders was taken in this run, so the line is where the surviving memory was "
            "allocated, not what keeps it."
            if suspect.known_by == "survivors"
            else "Neither a count of Python's holders nor an allocation window says what keeps it."
        )
    likeliest = suspect.holder.statements[: suspect.holder.num_likeliest]
    if len(likeliest) == 1:
        return "Python's objects were counted twice, and this is the one statement that makes the holder grow."
    others = ", ".join(f"{statement.file}:{statement.line}" for statement in likeliest[1:4])
    return (
        "Python's objects were counted twice; the holder is known, its line less surely: "
        f"{others} could make it grow as well."
    )


def _end(limits: RunLimits, growth: MemoryGrowth) -> str:
    if limits.ran_out:
        return f" and ended this run at step {limits.last_step:,}"
    end, total = limits.end_step(growth.trend.slope), f"{format_bytes(limits.total_bytes)} of {limits.name}"
    if end < SOON_STEPS:
        return f" and will end this run at step {format_about(end)} ({total})"
    return f"; at this rate the {total} would last until step {format_about(end)}"
