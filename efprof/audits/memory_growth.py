"""Memory that every step leaves behind, and no variable of the program is seen to keep."""

import contextlib

from efprof.facts.cycle_sawtooth import CycleSawtooth
from efprof.facts.growth_evidence import counted_holders, growth_evidence, growth_gain, growth_message, growth_severity
from efprof.facts.growth_suspects import GrowthSuspect, GrowthSuspects
from efprof.facts.host_growth import may_be_pointers
from efprof.facts.host_growth_lines import WAYS_TO_BOUND, HostGrowthLines
from efprof.facts.library_feeders import how_to_end, is_log
from efprof.facts.memory_growth import MemoryGrowth
from efprof.facts.run import Run
from efprof.fixes.keep_less import listed
from efprof.model import Examination, Finding, Fix, NotRecorded, ThinEvidence


def memory_growth(run: Run) -> Examination:
    """Find memory that is more after every step, where nobody knows what keeps it.

    What it finds
    -------------
    Memory still allocated after the optimizer's step that rises steadily from step to step, and is held by no
    variable that was counted: `retained_graph` and `growing_tensors` tell of those. Where `backward(create_graph=True)`
    gives a tensor of the step a gradient whose graph leads back to it, that call is blamed, and so is a line that gives
    an object of torch more in every step (`add_param_group`), or a log handler that keeps its records a tensor. On a
    CPU arrays and long texts count too: where no variable keeps more tensors, the one container that is never emptied.

    Why it matters
    --------------
    The run ends out of memory, at a step that can be told now.

    Fix
    ---
    Find what the result of the line is kept in: the surviving memory is allocated there.

    Predicted gain
    --------------
    The measured slope times the steps recorded, and never more than the rise that was measured.
    """
    growth = run.get(MemoryGrowth)
    looked_at = f"memory retained {growth.fit.looked_at}"
    if not growth.is_growing or _is_sawtooth(run):
        return Examination(looked_at=looked_at)
    unheld = [suspect for suspect in run.get(GrowthSuspects).suspects if suspect.holder is None]
    if unheld and all(suspect.known_by in {"container", "loop"} for suspect in unheld) and may_be_pointers(run):
        return Examination(looked_at=f"{looked_at}, which grows no more than what Python's objects may take of it")
    return Examination(looked_at=looked_at, findings=tuple(_finding(run, growth, suspect) for suspect in unheld))


def _is_sawtooth(run: Run) -> bool:
    """Whether it is what the garbage collector frees now and then: `uncollected_cycle` tells of that."""
    with contextlib.suppress(NotRecorded, ThinEvidence):
        return run.get(CycleSawtooth).piles_up
    return False


def _finding(run: Run, growth: MemoryGrowth, suspect: GrowthSuspect) -> Finding:
    return Finding(
        blame=suspect.blame,
        category="memory",
        headline=_headline(suspect),
        message=growth_message(run, suspect),
        fix=_fix(run, suspect),
        gain=growth_gain(growth.fit, suspect.share),
        evidence=growth_evidence(run, suspect),
        severity=growth_severity(run),
    )


def _headline(suspect: GrowthSuspect) -> str:
    if suspect.cycle is not None:
        return f"`{suspect.cycle.tensor}.grad` leads back to its own tensor"
    if suspect.fed is not None and is_log(suspect.fed.holder):
        return "A log handler keeps tensors with its records"
    if suspect.fed is not None:
        return f"`{suspect.fed.holder.path}` is given more and more"
    if suspect.container is not None:
        return f"`{suspect.container}` is filled, and never emptied"
    return "Memory is left behind by every step"


def _fix(run: Run, suspect: GrowthSuspect) -> Fix:
    if suspect.cycle is not None:
        tensor = suspect.cycle.tensor
        summary = f"Take the gradient by `torch.autograd.grad(..., {tensor}, create_graph=True)`, which leaves none in "
        summary += f"`{tensor}`, or set `{tensor}.grad = None` once the step has used it."
    elif suspect.fed is not None:
        summary = how_to_end(suspect.fed.holder)
    elif suspect.container is not None:
        summary = f"Bound `{suspect.container}` {WAYS_TO_BOUND}. If it takes little, look for an object that only C++ "
        summary += "holds."
    elif holders := counted_holders(run):
        summary = f"Find what feeds `{holders[0]}`, which was counted and grew: no line of the program that does is "
        summary += "known."
    elif holders is not None:
        summary = (
            "Find what this line's result is kept in: no variable that was counted; look for a cache, a hook that "
        )
        summary += f"each step registers anew, or an object that only C++ holds.{_filled(run)}"
    else:
        summary = "Find what this line's result is kept in: `efprof record --holders` counts what each variable keeps."
    return Fix(summary=summary, applicability="manual")


def _filled(run: Run) -> str:
    """On a CPU what is no tensor counts too, but no line is sure."""
    with contextlib.suppress(ThinEvidence):
        lines = run.get(HostGrowthLines)
        filled = [
            f"`{name}` at {at}" for name, at in zip(lines.names, lines.statements, strict=True) if name is not None
        ]
        if filled and "CUDA" not in run.run_file.memory_source:
            return f" Arrays and long texts count as well: nothing empties {listed(filled)}."
    return ""
