"""What memory growth shows for itself: the staircase, the slope, the holders, and how we know."""

import contextlib

from efprof.facts.growth import LEAST_SLOPE, Fit
from efprof.facts.growth_causes import how_the_line_is_known, meaning_of_growth, why_it_grows
from efprof.facts.growth_suspects import GrowthSuspect
from efprof.facts.holder_lines import HolderGrowth, HolderLines
from efprof.facts.holder_staircase import HolderStaircase, Staircase
from efprof.facts.memory_growth import MemoryGrowth
from efprof.facts.run import Run
from efprof.facts.run_limits import RunLimits
from efprof.facts.sources import Sources
from efprof.model import Evidence, Gain, Narrative, NotRecorded, Number, Numbers, Series, SeriesLine, Severity, Table
from efprof.units import format_about, format_bytes, format_interval, in_brackets

MOST_HOLDERS = 5
SOON_STEPS = 10_000
"""Nearly every training takes more steps than that: it will meet its end."""
LATE_STEPS = 1_000_000
"""Hardly any takes as many."""
FARTHEST_OUTLOOK = 100
"""Times the steps recorded: a rate that was seen for a hundredth of the way may change before its end, and nobody
trains so much longer than a recording that is meant to stand for the training."""


def growth_evidence(run: Run, suspect: GrowthSuspect) -> tuple[Evidence, ...]:
    """All of it, the curve first."""
    growth, sources = run.get(MemoryGrowth), run.get(Sources)
    return (
        growth_series(growth.fit, "Memory retained after each step", "allocated"),
        sources.snippet(suspect.blame),
        growth_numbers(growth.fit, run.get(RunLimits)),
        *holder_series(run, suspect),
        *holder_table(run),
        how_growth_is_known(growth.fit, suspect, counted_holders(run)),
    )


def counted_holders(run: Run) -> tuple[str, ...] | None:
    """The holders that were seen to grow, most bytes first; None where none were counted."""
    with contextlib.suppress(NotRecorded):
        return tuple(growth.holder.path for growth in run.get(HolderLines).holders)
    return None


def growth_message(run: Run, suspect: GrowthSuspect) -> str:
    """How fast, why, and where it ends."""
    fit, limits = run.get(MemoryGrowth).fit, run.get(RunLimits)
    low, high = (suspect.share * end for end in (fit.trend.low, fit.trend.high))
    slope, ends = format_bytes(suspect.share * fit.trend.slope), format_interval(low, high, "bytes")
    rate = f"{slope} per step{in_brackets(ends)}"
    grows = f"Memory {'grows' if fit.read_until is None else 'grew'} {rate}"
    why, end = why_it_grows(suspect), _end(limits, fit)
    # A cause (`because ...`) belongs to the growth, another sentence comes after its end.
    return f"{grows}{f'{end}{why}' if why.startswith(';') else f'{why}{end}'}{_last_reading(fit)}."


def is_foreseeable(end_step: int, num_steps: int) -> bool:
    """Whether a recording of so many steps can tell that memory is used up at that step."""
    return end_step < SOON_STEPS or end_step <= FARTHEST_OUTLOOK * num_steps


def growth_severity(run: Run) -> Severity:
    """By the step at which memory is used up; one that is not foreseeable makes nothing severe."""
    limits, fit = run.get(RunLimits), run.get(MemoryGrowth).fit
    end = limits.end_step(fit.trend.slope)
    if limits.ran_out or end < SOON_STEPS:
        return "high"
    return "medium" if end < LATE_STEPS and is_foreseeable(end, fit.num_steps) else "low"


def growth_gain(fit: Fit, share: float, *, left_per_step: float = 0.0, caution: str = "") -> Gain:
    """What the peak loses with what the recorded steps kept, as far as read, but for what a fix leaves of it per step.

    The interval is that of the slope, give or take what one step keeps. What is left is counted and the slope measured:
    their difference is known as well as the least slope that counts as growth, and no better.
    """
    num_steps, one_step = fit.steps[-1] - fit.steps[0], max(0.0, share * fit.trend.slope - left_per_step)
    low, value, high = (
        _off_the_peak(fit, slope, share, left_per_step) for slope in (fit.trend.low, fit.trend.slope, fit.trend.high)
    )
    unsure = one_step + min(left_per_step, LEAST_SLOPE) * num_steps
    missing = share * fit.rise_bytes - left_per_step * num_steps - value
    less = f", less {format_bytes(missing)}, as an earlier step needs more than the last ones" * (missing > one_step)
    return Gain(
        basis="measured bound",
        explanation=f"the measured slope {fit.stretch}, and no more than the rise that was measured{less}{caution}; "
        "its interval is that of the slope, and one step more or less, as a step's peak may come before what it keeps",
        peak_bytes=round(max(0.0, value)),
        peak_bytes_interval=(max(0.0, low - unsure), max(0.0, high) + one_step),
        until_step=fit.read_until,
    )


def growth_series(fit: Fit, title: str, label: str) -> Series:
    """The staircase: bytes after each step outside windows, the trend, and where its fit begins."""
    ends = (float(fit.steps[fit.first_steady]), float(fit.steps[-1]))
    measured = SeriesLine(
        label=f"{label} after the step",
        x=tuple(float(step) for step in fit.steps),
        y=tuple(float(num_bytes) for num_bytes in fit.sizes),
        is_highlighted=True,
    )
    trend = SeriesLine(label="trend", x=ends, y=tuple(fit.trend.level + fit.trend.slope * step for step in ends))
    return Series(
        title=title,
        x_label="step",
        x_unit="count",
        y_label=label,
        y_unit="bytes",
        lines=(measured, trend),
        marks=((ends[0], "fit begins"),),
    )


def rate_numbers(fit: Fit) -> tuple[Number, ...]:
    """The slope with its interval, and the rise."""
    trend = fit.trend
    return (
        Number(label="growth per step", value=trend.slope, unit="bytes_per_step", interval=(trend.low, trend.high)),
        Number(label=f"rise {fit.stretch}", value=fit.rise_bytes, unit="bytes"),
    )


def growth_numbers(fit: Fit, limits: RunLimits) -> Numbers:
    """The same, and where it leads as far as that can be foreseen."""
    end = limits.end_step(fit.trend.slope)
    used_up = Number(label="step at which it is used up", value=end, unit="count")
    return Numbers(
        title="Growth",
        numbers=(
            *rate_numbers(fit),
            Number(label=f"memory of {limits.name}", value=limits.total_bytes, unit="bytes"),
            *([used_up] if is_foreseeable(end, fit.num_steps) else []),
        ),
    )


def holder_series(run: Run, suspect: GrowthSuspect) -> tuple[Series, ...]:
    """What each holder had at every count, the blamed one highlighted; nothing where no census was taken."""
    with contextlib.suppress(NotRecorded):
        holders = run.get(HolderStaircase).holders
        blamed = {growth.holder.path for growth in suspect.holders}
        if not holders:
            return ()
        return (
            Series(
                title="What each holder has" if len(holders) > 1 else f"What {holders[0].path} has",
                x_label="step",
                x_unit="count",
                y_label="held",
                y_unit="bytes",
                lines=tuple(_staircase(one, is_blamed=one.path in blamed) for one in holders),
            ),
        )
    return ()


def holder_table(run: Run) -> tuple[Table, ...]:
    """Every holder that grew, one table for each span of steps; none where no census was taken, or nothing grew."""
    with contextlib.suppress(NotRecorded):
        holders = run.get(HolderLines).holders[:MOST_HOLDERS]
        return tuple(
            Table(
                title=f"What grew between step {first:,} and step {last:,}",
                columns=("held by", "type", "tensors", "graph nodes", "growth per step"),
                units=("", "", "", "", "bytes_per_step"),
                rows=tuple(_row(growth) for growth in holders if growth.steps == (first, last)),
            )
            for first, last in sorted({growth.steps for growth in holders}, reverse=True)
        )
    return ()


def how_growth_is_known(fit: Fit, suspect: GrowthSuspect, counted: tuple[str, ...] | None) -> Narrative:
    """What it means, how we know, and when it is wrong."""
    ends = format_interval(fit.trend.low, fit.trend.high, "bytes")
    steps = "the run" if fit.read_until is None else "these steps"
    return Narrative(
        title="What it means, how we know, when it is wrong",
        paragraphs=(
            meaning_of_growth(suspect),
            f"The lowest points of {len(fit.blocks)} equal stretches after warm-up were compared: the "
            f"median of the slopes between them, the longer counting more, is {format_bytes(fit.trend.slope)} per step"
            f"{in_brackets(f'95 % interval {ends}' if ends else '')}, and both halves of {steps} show it. "
            f"{how_the_line_is_known(suspect, counted)}",
            *unread_steps(fit),
            "A cache that is still filling at the end of the recording, batches that get longer from step to step, or "
            "reference cycles that Python's garbage collector has not reached yet, look the same: record more steps to "
            "tell.",
        ),
    )


def unread_steps(fit: Fit) -> tuple[str, ...]:
    """What is not known of the steps after the last one that was read; nothing where there are few."""
    if fit.read_until is None:
        return ()
    return (
        f"Memory was read after {len(fit.steps):,} steps, the last of them step {fit.read_until:,} of "
        f"{fit.last_step:,}: short steps are read now and then. Whether it went on growing is not known; a longer "
        "recording tells.",
    )


def _off_the_peak(fit: Fit, slope: float, share: float, left_per_step: float) -> float:
    """How much lower the highest instant is without its share of growth at that slope.

    Less than what was kept by then where early steps need more than late ones, by longer batches or by what training
    changes: the peak that a fix leaves lies there.
    """
    highest, mended = 0.0, 0.0
    for step, needed in zip(fit.steps, fit.within or (0,) * len(fit.steps), strict=True):
        rise = fit.rise_until(step, slope)
        saved = share * rise - left_per_step * (step - fit.steps[0])
        highest, mended = max(highest, rise + needed), max(mended, rise + needed - saved)
    return highest - mended


def _staircase(one: Staircase, *, is_blamed: bool) -> SeriesLine:
    return SeriesLine(
        label=one.path,
        x=tuple(float(step) for step, _ in one.sizes),
        y=tuple(float(num_bytes) for _, num_bytes in one.sizes),
        is_highlighted=is_blamed,
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


def _end(limits: RunLimits, fit: Fit) -> str:
    if limits.ran_out:
        return f" and ended this run at step {limits.last_step:,}"
    end, total = limits.end_step(fit.trend.slope), f"{format_bytes(limits.total_bytes)} of {limits.name}"
    if not is_foreseeable(end, fit.num_steps):
        return ""
    if end >= SOON_STEPS:
        return f"; at this rate the {total} would last until step {format_about(end)}"
    if fit.read_until is not None:
        return f"; if it goes on, it ends this run at step {format_about(end)} ({total})"
    return f" and will end this run at step {format_about(end)} ({total})"


def _last_reading(fit: Fit) -> str:
    if fit.read_until is None:
        return ""
    return f"; memory was last read after step {fit.read_until:,} of {fit.last_step:,}"
