"""What growth of host memory shows for itself: the curve, its slope, where it ends, and how the line is known."""

from efprof.artifacts.steps import read_steps
from efprof.facts.growth_evidence import (
    LATE_STEPS,
    SOON_STEPS,
    growth_series,
    is_foreseeable,
    rate_numbers,
    unread_steps,
)
from efprof.facts.host_growth import HostGrowth
from efprof.facts.host_growth_lines import HostGrowthLines
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.model import Evidence, Narrative, Number, Numbers, Series, Severity, Table
from efprof.units import format_about, format_bytes, format_interval, in_brackets

MOST_LINES = 8
KEPT_SHARE = 0.01
"""Of the host's memory: what a log or a cache may well take."""


def host_growth_evidence(run: Run) -> tuple[Evidence, ...]:
    """All of it, the curve first."""
    growth, lines = run.get(HostGrowth), run.get(HostGrowthLines)
    return (
        _series(growth),
        run.get(Sources).snippet(lines.blame),
        _numbers(run, growth),
        *_candidates(lines),
        _narrative(growth, lines),
    )


def host_growth_message(run: Run) -> str:
    """How fast, why, and where it ends."""
    growth, lines = run.get(HostGrowth), run.get(HostGrowthLines)
    trend, total = growth.fit.trend, _total_bytes(run)
    slope = f"{format_bytes(trend.slope)} per step{in_brackets(format_interval(trend.low, trend.high, 'bytes'))}"
    what = "memory outside of tensors" if growth.is_heap_read else "memory on the host"
    why = "what holds it is not known, so this is the line that runs backward"
    if lines.name is not None:
        why = f"`{lines.name}` is the one container that the loop fills and never empties"
    elif lines.statements:
        why = f"{len(lines.statements)} lines fill containers that nothing empties, and this is the one of backward"
    end = f"; at this rate the {format_bytes(total)} of the host last until step {format_about(_end_step(run))}"
    return f"The process's {what} grows {slope}: {why}{end if _is_end_foreseeable(run) else ''}."


def host_growth_severity(run: Run) -> Severity:
    """By the step at which the host's memory is used up."""
    end = _end_step(run) if _total_bytes(run) else LATE_STEPS
    if end < SOON_STEPS:
        return "high"
    return "medium" if end < LATE_STEPS and is_foreseeable(end, run.get(HostGrowth).fit.num_steps) else "low"


def most_steps_kept(run: Run) -> int | None:
    """How many steps' worth takes a hundredth of the host's memory; None where its size is not known."""
    total = _total_bytes(run)
    return max(1, int(KEPT_SHARE * total / run.get(HostGrowth).fit.trend.slope)) if total else None


def _total_bytes(run: Run) -> int:
    host = run.run_file.host
    return host.total_bytes if host else 0


def _end_step(run: Run) -> int:
    growth = run.get(HostGrowth)
    resident = next((one.rss_bytes for one in reversed(read_steps(run.rank_folder)[0]) if one.rss_bytes), 0)
    return growth.fit.last_step + int(max(0, _total_bytes(run) - resident) / growth.fit.trend.slope)


def _is_end_foreseeable(run: Run) -> bool:
    return bool(_total_bytes(run)) and is_foreseeable(_end_step(run), run.get(HostGrowth).fit.num_steps)


def _series(growth: HostGrowth) -> Series:
    title = (
        "Memory of the process outside of tensors and the C heap, after each step"
        if growth.is_heap_read
        else "Resident memory of the process after each step"
    )
    return growth_series(growth.fit, title, "resident")


def _numbers(run: Run, growth: HostGrowth) -> Numbers:
    numbers = list(rate_numbers(growth.fit))
    if _total_bytes(run):
        numbers.append(Number(label="memory of the host", value=float(_total_bytes(run)), unit="bytes"))
    if _is_end_foreseeable(run):
        numbers.append(Number(label="step at which it is used up", value=float(_end_step(run)), unit="count"))
    return Numbers(title="Growth of host memory", numbers=tuple(numbers))


def _candidates(lines: HostGrowthLines) -> tuple[Table, ...]:
    if len(lines.statements) < 2:
        return ()
    return (
        Table(
            title="Lines of the loop that fill what nothing empties",
            columns=("line", "statement"),
            units=("", ""),
            rows=tuple((str(line), line.text) for line in lines.statements[:MOST_LINES]),
        ),
    )


def _narrative(growth: HostGrowth, lines: HostGrowthLines) -> Narrative:
    line = (
        "The sources as they ran hold one statement that every step runs, that fills a container made before the loop, "
        "and whose container nothing empties: by its text, not by a count of what it holds."
        if lines.name is not None
        else "No single statement of the sources explains it."
    )
    return Narrative(
        title="What it means, how we know, when it is wrong",
        paragraphs=(
            "Every step leaves memory behind that no tensor explains: Python's small objects (numbers, short texts, "
            "lists, dictionaries) lie in memory of their own, which no counter of an allocator shows.",
            f"The lowest points of {len(growth.fit.blocks)} equal stretches after warm-up were compared: the median of "
            f"the slopes between them, the longer counting more, is {format_bytes(growth.fit.trend.slope)} per step. "
            f"{line}",
            *unread_steps(growth.fit),
            "A cache that is still filling, files that are mapped into memory and read for the first time, or a heap "
            "that breaks into pieces look the same: record more steps to tell.",
        ),
    )
