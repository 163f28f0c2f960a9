"""A variable that keeps more tensors after every step, none of them with a graph."""

from efprof.facts.bounded_holders import bound_of
from efprof.facts.growth import Fit
from efprof.facts.growth_causes import who_keeps
from efprof.facts.growth_evidence import growth_evidence, growth_gain, growth_message, growth_severity
from efprof.facts.growth_suspects import GrowthSuspect, GrowthSuspects, only_of
from efprof.facts.holder_entries import size_of_entry
from efprof.facts.holder_keys import shown_name
from efprof.facts.holder_lines import HolderGrowth
from efprof.facts.memory_growth import MemoryGrowth
from efprof.facts.run import Run
from efprof.facts.run_limits import RunLimits
from efprof.facts.sources import Sources
from efprof.fixes.keep_less import Bound, keep_copy_of_part, keep_fewer
from efprof.model import Examination, Finding, Fix, Gain


def growing_tensors(run: Run) -> Examination:
    """Find the variable that keeps plain tensors from step to step, and the statement that feeds it.

    What it finds
    -------------
    Tensors that survive their step without a graph: a list of outputs or batches, a cache that is never emptied, one
    tensor that is joined with the next. The holder is known by counting what each variable keeps, twice. A container
    that the program itself bounds (`maxlen`, entries taken out while it grows, a limit of its length) only fills up:
    it is left out, and named with that line. A bound that should have acted while the container was counted to grow,
    as one behind a switch that is off, is none.

    Why it matters
    --------------
    The run ends out of memory, at a step that can be told now.

    Fix
    ---
    Keep so many that they take a hundredth of the memory, or none; of a slice, which keeps all of its tensor, a copy.

    Predicted gain
    --------------
    The measured slope times the steps recorded, and never more than the rise that was measured: what is saved where
    none are kept. What copies of slices take is not recorded, so that only the most that they save is told.
    """
    growth = run.get(MemoryGrowth)
    looked_at = f"memory retained {growth.fit.looked_at}"
    if not growth.is_growing:
        return Examination(looked_at=looked_at)
    keeping = []
    for suspect in run.get(GrowthSuspects).suspects:
        if suspect.holder is None or suspect.keeps_graphs:
            continue
        bounds = [(one, bound_of(one, run)) for one in suspect.holders]
        unbounded = [one for one, bound in bounds if bound is None]
        if unbounded:
            keeping.append(only_of(suspect, unbounded))
        for one, bound in bounds:
            if bound is not None:
                looked_at += f"; `{shown_name(one.holder)}` keeps tensors, and is bounded {bound}"
    return Examination(looked_at=looked_at, findings=tuple(_finding(run, growth, suspect) for suspect in keeping))


def _finding(run: Run, growth: MemoryGrowth, suspect: GrowthSuspect) -> Finding:
    names = [shown_name(one.holder) for one in suspect.holders]
    copied = _copy_of_part(run, suspect.holders[0], names) if _is_one_value(suspect) else None
    bounds = [_bound(run, suspect, one, growth.fit.trend.slope) for one in suspect.holders]
    return Finding(
        blame=suspect.blame,
        category="memory",
        headline=f"{who_keeps(names)} tensors",
        message=growth_message(run, suspect),
        fix=copied or keep_fewer(bounds),
        gain=_gain_of_copies(growth.fit, suspect.share) if copied else _gain(growth.fit, suspect.share),
        evidence=growth_evidence(run, suspect),
        severity=growth_severity(run),
    )


def _is_one_value(suspect: GrowthSuspect) -> bool:
    """Whether all holders of the line are given the same."""
    return len({(one.statements[0].value.lineno, one.statements[0].value.col_offset) for one in suspect.holders}) == 1


def _copy_of_part(run: Run, growth: HolderGrowth, names: list[str]) -> Fix | None:
    """None where the likeliest statement keeps no slice."""
    statement, sources = growth.statements[0], run.get(Sources)
    tree = sources.tree(statement.file)
    assert tree is not None, "the statement was found in it"
    return keep_copy_of_part(names, statement.file, sources.files[statement.file], tree, statement.value)


def _bound(run: Run, suspect: GrowthSuspect, growth: HolderGrowth, slope: float) -> Bound:
    limits, (num_bytes, unit) = run.get(RunLimits), size_of_entry(suspect, growth, slope)
    return Bound(
        name=shown_name(growth.holder),
        kind=growth.holder.type,
        most=limits.most_kept(num_bytes),
        unit=unit,
        is_on_device=limits.is_device,
    )


def _gain(fit: Fit, share: float) -> Gain:
    return growth_gain(fit, share, caution=", all of it: what a bound goes on keeping is not saved")


def _gain_of_copies(fit: Fit, share: float) -> Gain:
    return Gain(
        basis="measured bound",
        explanation=f"the measured slope {fit.stretch}, less what the copies take, whose size was not recorded",
        peak_bytes=growth_gain(fit, share).peak_bytes,
    )
