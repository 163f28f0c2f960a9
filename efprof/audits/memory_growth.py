"""Memory that every step leaves behind."""

from efprof.facts.growth import MemoryGrowth
from efprof.facts.growth_evidence import growth_numbers, growth_series, holder_table, how_growth_is_known, why_it_grows
from efprof.facts.growth_suspects import GrowthSuspect, GrowthSuspects
from efprof.facts.run import Run
from efprof.facts.run_limits import RunLimits
from efprof.facts.sources import Sources
from efprof.fixes.keep_less import KeepingStatement, keep_fewer, keep_without_graph
from efprof.model import Examination, Finding, Fix, Gain, Severity
from efprof.units import format_about, format_bytes

SOON_STEPS = 10_000
"""Nearly every training takes more steps than that: it will meet its end."""
LATE_STEPS = 1_000_000
"""Hardly any takes as many."""


def memory_growth(run: Run) -> Examination:
    """Find what keeps more memory after every step.

    What it finds
    -------------
    Memory still allocated after the optimizer's step that rises steadily from step to step, and the statement
    that keeps it: a list of losses with their graphs, a running total, a state handed on without a cut.

    Why it matters
    --------------
    The run ends out of memory, at a step that can be told now.

    Fix
    ---
    Keep the value without its graph (`.detach()`) at that statement, or keep fewer of them.

    Predicted gain
    --------------
    The measured slope times the steps recorded, and never more than the rise that was measured.
    """
    growth = run.get(MemoryGrowth)
    looked_at = f"memory retained after each of {len(growth.steps)} steps"
    if not growth.is_growing and not growth.is_growing_slowly:
        return Examination(looked_at=looked_at)
    suspects = run.get(GrowthSuspects).suspects
    if not growth.is_growing:
        suspects = tuple(one for one in suspects if one.keeps_graphs)
    return Examination(looked_at=looked_at, findings=tuple(_finding(run, growth, suspect) for suspect in suspects))


def _finding(run: Run, growth: MemoryGrowth, suspect: GrowthSuspect) -> Finding:
    sources, limits = run.get(Sources), run.get(RunLimits)
    slope = suspect.share * growth.trend.slope
    return Finding(
        blame=suspect.blame,
        category="memory",
        headline=_headline(suspect),
        message=f"Memory grows {format_bytes(slope)} per step{why_it_grows(suspect)}{_end(limits, growth)}.",
        fix=_fix(sources, limits, suspect, slope),
        gain=_gain(growth, suspect.share),
        evidence=(
            growth_series(growth),
            sources.snippet(suspect.blame),
            growth_numbers(growth, limits),
            *holder_table(run),
            how_growth_is_known(growth, suspect),
        ),
        severity=_severity(limits, growth),
    )


def _headline(suspect: GrowthSuspect) -> str:
    if suspect.holder is None:
        return "Memory is left behind by every step"
    what = "tensors with their graphs" if suspect.holder.keeps_graphs else "tensors"
    return f"`{suspect.holder.holder.name}` keeps {what}"


def _end(limits: RunLimits, growth: MemoryGrowth) -> str:
    if limits.ran_out:
        return f" and ended this run at step {limits.last_step:,}"
    end, total = limits.end_step(growth.trend.slope), f"{format_bytes(limits.total_bytes)} of {limits.name}"
    if end < SOON_STEPS:
        return f" and will end this run at step {format_about(end)} ({total})"
    return f"; at this rate the {total} would last until step {format_about(end)}"


def _severity(limits: RunLimits, growth: MemoryGrowth) -> Severity:
    end = limits.end_step(growth.trend.slope)
    return "high" if limits.ran_out or end < SOON_STEPS else "medium" if end < LATE_STEPS else "low"


def _fix(sources: Sources, limits: RunLimits, suspect: GrowthSuspect, bytes_per_step: float) -> Fix:
    tree = sources.tree(suspect.blame.file)
    if suspect.holder is None or not suspect.holder.statements or tree is None:
        return Fix(
            summary="Find what this line's result is kept in, and keep it without its graph: `.detach()` or `.item()`.",
            applicability="manual",
        )
    holder, kept = suspect.holder.holder, suspect.holder.statements[0]
    statement = KeepingStatement(
        file=kept.file,
        line=kept.line,
        name=holder.name,
        kind=holder.type,
        value=kept.value,
        carried=kept.carried,
        readers=suspect.holder.readers,
    )
    if not suspect.holder.keeps_graphs:
        return keep_fewer(statement, limits.most_kept(bytes_per_step))
    return keep_without_graph(statement, sources.files[kept.file], tree)


def _gain(growth: MemoryGrowth, share: float) -> Gain:
    low, high = growth.rise_interval
    return Gain(
        basis="measured bound",
        explanation="the measured slope over the recorded steps, and no more than the rise that was measured",
        peak_bytes=round(share * growth.rise_bytes),
        peak_bytes_interval=(share * low, share * high),
    )
