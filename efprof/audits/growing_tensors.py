"""A variable that keeps more tensors after every step, none of them with a graph."""

from efprof.facts.bounded_holders import bound_of
from efprof.facts.growth_evidence import growth_evidence, growth_gain, growth_message, growth_severity
from efprof.facts.growth_suspects import GrowthSuspect, GrowthSuspects
from efprof.facts.holder_keys import shown_name
from efprof.facts.memory_growth import MemoryGrowth
from efprof.facts.run import Run
from efprof.facts.run_limits import RunLimits
from efprof.facts.sources import Sources
from efprof.fixes.keep_less import keep_fewer
from efprof.model import Examination, Finding


def growing_tensors(run: Run) -> Examination:
    """Find the variable that keeps plain tensors from step to step, and the statement that feeds it.

    What it finds
    -------------
    Tensors that survive their step without a graph: a list of outputs or batches, a cache that is never emptied, one
    tensor that is joined with the next. The holder is known by counting what each variable keeps, twice. A container
    that the program itself bounds (`maxlen`, entries taken out while it grows, a limit of its length) only fills up:
    it is left out, and named with that line.

    Why it matters
    --------------
    The run ends out of memory, at a step that can be told now.

    Fix
    ---
    Keep so many that they take a hundredth of the memory, or none.

    Predicted gain
    --------------
    The measured slope times the steps recorded, and never more than the rise that was measured.
    """
    growth = run.get(MemoryGrowth)
    looked_at = f"memory retained {growth.fit.looked_at}"
    if not growth.is_growing:
        return Examination(looked_at=looked_at)
    keeping = []
    for suspect in run.get(GrowthSuspects).suspects:
        if suspect.holder is None or suspect.keeps_graphs:
            continue
        bound = bound_of(suspect.holder, run.get(Sources))
        if bound is None:
            keeping.append(suspect)
        else:
            looked_at += f"; `{shown_name(suspect.holder.holder)}` keeps tensors, and is bounded at {bound}"
    return Examination(looked_at=looked_at, findings=tuple(_finding(run, growth, suspect) for suspect in keeping))


def _finding(run: Run, growth: MemoryGrowth, suspect: GrowthSuspect) -> Finding:
    assert suspect.holder is not None
    holder, most = suspect.holder.holder, run.get(RunLimits).most_kept(suspect.share * growth.fit.trend.slope)
    return Finding(
        blame=suspect.blame,
        category="memory",
        headline=f"`{shown_name(holder)}` keeps tensors",
        message=growth_message(run, suspect),
        fix=keep_fewer(shown_name(holder), holder.type, most),
        gain=growth_gain(growth.fit, suspect.share),
        evidence=growth_evidence(run, suspect),
        severity=growth_severity(run),
    )
