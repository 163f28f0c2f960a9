"""Memory that every step leaves behind, and no variable of the program is seen to keep."""

from efprof.facts.growth.leaks import EXPLAINED, Leaks, may_be_filling
from efprof.facts.growth.memory_growth import MemoryGrowth, are_batches_growing, growth_gain, growth_words
from efprof.facts.growth.reference_cycles import CycleSawtooth
from efprof.facts.growth.unheld_growth import UnattributedGrowth, is_of_what_fills, may_be_pointers
from efprof.facts.run.run import Run
from efprof.facts.run.run_limits import RunLimits
from efprof.fixes.keep_less import WAYS_TO_BOUND, end_feeding, known_advice
from efprof.model import Examination, Finding, Fix, ThinEvidence
from efprof.units import with_capital


def memory_growth(run: Run) -> Examination:
    """Find memory that is more after every step, where nothing that was counted keeps it.

    ## What it finds
    Memory after the optimizer's step that rises steadily, or unevenly with a container that grew at every count, and is
    held by no variable that was counted (`retained_graph` and `growing_tensors` tell of those). Blamed is the line
    whose allocations were seen to survive, or the call of backward whose gradients keep their tensors alive
    (`create_graph=True`); on a CPU also a container that grew.

    ## Why it matters
    The run ends out of memory, at a step that can be told now.

    ## Fix
    Find what the result of the line is kept in: the surviving memory is allocated there.

    ## Predicted gain
    The measured slope times the steps recorded, and never more than the rise that was measured.
    """
    growth, leaks = run.get(MemoryGrowth), run.get(Leaks)
    looked_at = f"memory retained {growth.fit.looked_at}"
    sawtooth = run.find(CycleSawtooth, ThinEvidence)  # what the collector frees now and then is `uncollected_cycle`'s
    if not (growth.is_growing or growth.is_rising) or (sawtooth and sawtooth.piles_up):
        return Examination(looked_at=looked_at)
    if growth.is_rising and not run.get(UnattributedGrowth).is_counted(growth.fit.trend.slope):
        raise ThinEvidence(f"{looked_at} rises, but not as steadily as a leak does; record a longer run to tell.")
    if leaks.explained >= EXPLAINED:
        return Examination(looked_at=f"{looked_at}: what grows was counted to be kept by a variable")
    if is_of_what_fills(run):
        return Examination(looked_at=f"{looked_at}: what outlives a step is kept by a variable that may be filling")
    if leaks.grown.num_counts:
        leaks.abstain_if_unclear("graphs")
        leaks.abstain_if_unclear("tensors")
    if leaks.is_bounded:
        return Examination(looked_at=f"{leaks.looked_at()}: that is what grows")
    if are_batches_growing(run):
        raise ThinEvidence(f"Unclear: {looked_at} rises, but so do the elements of the batches.")
    if may_be_pointers(run):
        return Examination(looked_at=f"{looked_at}, which grows no more than what Python's objects may take of it")
    return Examination(looked_at=looked_at, findings=(_finding(run, growth, 1.0 - leaks.explained),))


def _finding(run: Run, growth: MemoryGrowth, share: float) -> Finding:
    unheld, fit = run.get(UnattributedGrowth), growth.fit
    return Finding(
        blame=unheld.blame,
        category="memory",
        headline=unheld.headline,
        message=growth_words(run, fit, fit.trend),
        why=f"{with_capital(unheld.why)}.",
        fix=_fix(unheld),
        gain=growth_gain(fit, share),
        evidence=unheld.evidence(run),
        severity=run.get(RunLimits).severity(fit.trend.slope),
        may_be_filling=unheld.container is not None and may_be_filling(run, unheld.container),
    )


def _fix(unheld: UnattributedGrowth) -> Fix:
    one = unheld.container
    if one is None:
        return Fix.by_hand(known_advice(unheld.blame.text) or unheld.advice)
    if one.is_fed_by_library:
        return end_feeding(one.name, one.type, unheld.blame.text)
    return Fix.by_hand(f"Bound `{one.name}` {WAYS_TO_BOUND}.")
