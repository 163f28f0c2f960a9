"""Memory that every step leaves behind, and no variable of the program is seen to keep."""

import contextlib

from efprof.facts.cycle_sawtooth import CycleSawtooth
from efprof.facts.growth import MemoryGrowth
from efprof.facts.growth_evidence import growth_evidence, growth_gain, growth_message, growth_severity, is_counted
from efprof.facts.growth_suspects import GrowthSuspect, GrowthSuspects
from efprof.facts.run import Run
from efprof.model import Examination, Finding, Fix, NotRecorded, ThinEvidence


def memory_growth(run: Run) -> Examination:
    """Find memory that is more after every step, where nobody knows what keeps it.

    What it finds
    -------------
    Memory still allocated after the optimizer's step that rises steadily from step to step, and is held by no
    variable that was counted: `retained_graph` and `growing_tensors` tell of those.

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
    looked_at = f"memory retained after each of {len(growth.steps)} steps"
    if not growth.is_growing or _is_sawtooth(run):
        return Examination(looked_at=looked_at)
    unheld = [suspect for suspect in run.get(GrowthSuspects).suspects if suspect.holder is None]
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
        headline="Memory is left behind by every step",
        message=growth_message(run, suspect),
        fix=Fix(
            summary="Find what this line's result is kept in: "
            + (
                "no variable that was counted; look for a cache, a hook, or an object that only C++ holds."
                if is_counted(run)
                else "`efprof record --holders` counts what each variable keeps."
            ),
            applicability="manual",
        ),
        gain=growth_gain(growth, suspect.share),
        evidence=growth_evidence(run, suspect),
        severity=growth_severity(run),
    )
