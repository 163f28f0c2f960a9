"""What memory growth shows for itself: the staircase, the slope, the holders, and how we know."""

import contextlib

from efprof.facts.growth import Fit
from efprof.facts.growth_suspects import GrowthSuspect
from efprof.facts.holder_lines import HolderGrowth, HolderLines
from efprof.facts.holder_staircase import HolderStaircase, Staircase
from efprof.facts.memory_growth import MemoryGrowth
from efprof.facts.run import Run
from efprof.facts.run_limits import RunLimits
from efprof.facts.sources import Sources, place_of
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
        how_growth_is_known(growth.fit, suspect, is_counted=is_counted(run)),
    )


def is_counted(run: Run) -> bool:
    """Whether Python's holders were counted, though none that grew was found."""
    with contextlib.suppress(NotRecorded):
        return bool(run.get(HolderLines).steps)
    return False


def growth_message(run: Run, suspect: GrowthSuspect) -> str:
    """How fast, why, and where it ends."""
    fit, limits = run.get(MemoryGrowth).fit, run.get(RunLimits)
    low, high = (suspect.share * end for end in (fit.trend.low, fit.trend.high))
    slope, ends = format_bytes(suspect.share * fit.trend.slope), format_interval(low, high, "bytes")
    rate = f"{slope} per step{in_brackets(ends)}"
    grows = f"Memory {'grows' if fit.read_until is None else 'grew'} {rate}"
    return f"{grows}{why_it_grows(suspect)}{_end(limits, fit)}{_last_reading(fit)}."


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


def growth_gain(fit: Fit, share: float) -> Gain:
    """What the recorded steps kept of it, as far as memory was read."""
    low, high = fit.rise_interval
    return Gain(
        basis="measured bound",
        explanation=f"the measured slope {fit.stretch}, and no more than the rise that was measured",
        peak_bytes=round(share * fit.rise_bytes),
        peak_bytes_interval=(share * low, share * high),
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
        blamed = suspect.holder.holder.path if suspect.holder else None
        if not holders:
            return ()
        return (
            Series(
                title="What each holder has" if len(holders) > 1 else f"What {holders[0].path} has",
                x_label="step",
                x_unit="count",
                y_label="held",
                y_unit="bytes",
                lines=tuple(_staircase(one, is_blamed=one.path == blamed) for one in holders),
            ),
        )
    return ()


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
        case "cycle":
            assert suspect.cycle is not None
            return (
                f" because the gradient that this call gives `{suspect.cycle.tensor}` has a graph that leads back to it"
            )
        case "survivors":
            return "; most of it is allocated by this line and still alive a step later"
    return "; what holds it is not known, so this is the line that runs backward"


def how_growth_is_known(fit: Fit, suspect: GrowthSuspect, *, is_counted: bool) -> Narrative:
    """What it means, how we know, and when it is wrong."""
    ends = format_interval(fit.trend.low, fit.trend.high, "bytes")
    steps = "the run" if fit.read_until is None else "these steps"
    return Narrative(
        title="What it means, how we know, when it is wrong",
        paragraphs=(
            _meaning(suspect),
            f"The lowest points of {len(fit.blocks)} equal stretches after warm-up were compared: the "
            f"median of the slopes between them, the longer counting more, is {format_bytes(fit.trend.slope)} per step"
            f"{in_brackets(f'95 % interval {ends}' if ends else '')}, and both halves of {steps} show it. "
            f"{_how_the_line_is_known(suspect, is_counted=is_counted)}",
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
    if suspect.cycle is not None:
        return (
            f"By the text: each step makes `{suspect.cycle.tensor}` at {place_of(suspect.cycle.made_at)}, this call of "
            "backward gives it a gradient with a graph, and no line takes that away. Tensor, gradient and graph keep "
            "each other alive through C++, where Python's garbage collector does not see them."
        )
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
