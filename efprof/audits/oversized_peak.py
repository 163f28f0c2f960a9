"""A peak of memory above what there is for it."""

from efprof.facts.peak.peak_composition import (
    PeakComposition,
    PeakReduction,
    budget_after_failure,
    how_peak_is_known,
    lower_peak,
    most_by_line,
    peak_bars,
    table_of_ways,
)
from efprof.facts.peak.window_memory import WindowMemory
from efprof.facts.run.run import Run
from efprof.facts.source.sources import file_of, line_at
from efprof.fixes.step_calls import checkpoint_call
from efprof.model import CodeEdit, Examination, Finding, Gain, NothingToLookAt, NotRecorded
from efprof.units import format_bytes, format_share


def oversized_peak(run: Run) -> Examination:
    """Find what fills a peak that is above the budget, and the cheapest way below it.

    ## What it finds
    The categories and lines whose memory makes the peak, where that is more than `efprof report --budget` allows, or
    where the run ended out of memory in a step that took about as much as a recorded one.

    ## Why it matters
    The run does not fit the device it is meant for, or the batch cannot grow.

    ## Fix
    Checkpoint the call whose activations pay for it, accumulate gradients over micro-batches, or both.

    ## Predicted gain
    The recorded allocations replayed as if the call were checkpointed.
    """
    peak = run.get(PeakComposition)
    budget = run.budget_bytes
    if budget is None and run.run_file.ended != "out_of_memory":
        raise NothingToLookAt("a budget (`efprof report --budget 24GiB`)")
    if budget is None:
        budget = budget_after_failure(run, peak)
    looked_at = f"a peak of {format_bytes(peak.peak_bytes)} against {format_bytes(budget)}"
    is_above = peak.peak_bytes > budget
    return Examination(looked_at=looked_at, findings=(_finding(run, peak, budget),) if is_above else ())


def _finding(run: Run, peak: PeakComposition, budget: int) -> Finding:
    way, edit = _best(run, peak, budget)
    category, size = peak.largest
    made_of = f"{format_bytes(size)} of it ({format_share(size / peak.peak_bytes)}) are {category}"
    which = "" if run.budget_bytes is not None else ", below which the step that failed would have been served"
    return Finding(
        blame=line_at(run, way.site if way and way.site else _largest_line(run, peak)),
        category="memory",
        headline="The peak of memory is above the budget",
        message=f"The peak is {format_bytes(peak.peak_bytes)}, {format_bytes(peak.peak_bytes - budget)} above "
        f"{format_bytes(budget)}{which}.",
        why=f"{made_of}.",
        fix=lower_peak(peak, budget, way, edit),
        gain=Gain(
            basis="replay",
            explanation="the recorded allocations replayed as if this were done",
            peak_bytes=peak.peak_bytes - way.peak_bytes if way else None,
        ),
        evidence=(
            run.get(WindowMemory).series,
            peak_bars(run, peak, way.site if way else None),
            table_of_ways(peak, budget),
            how_peak_is_known(peak),
        ),
        severity="high",
    )


def _best(run: Run, peak: PeakComposition, budget: int) -> tuple[PeakReduction | None, CodeEdit | None]:
    """The cheapest way within the budget, one that is known to the letter first; else the one that saves most."""
    fitting = sorted(
        (way for way in peak.ways if way.peak_bytes <= budget and way.is_offered),
        key=lambda way: (way.site is None, way.extra_ms),
    )
    others = sorted((way for way in peak.ways if way.site is not None), key=lambda way: way.peak_bytes)
    ways = fitting or others
    for way in ways:
        blame = line_at(run, way.site) if way.site else None
        edit = checkpoint_call(file_of(run, blame), blame.line) if blame else None
        if edit is not None:
            return way, edit
    return (ways[0] if ways else None), None


def _largest_line(run: Run, peak: PeakComposition) -> str:
    for (site, _), _ in most_by_line(run, peak):
        if site is not None:
            return site
    raise NotRecorded("no line of the program made any of what is alive at the peak; record a window of typical steps.")
