"""Tensors in reference cycles, which only Python's garbage collector frees."""

from collections import Counter

from efprof.facts.cycle_evidence import cycle_evidence, cycle_gain
from efprof.facts.cycle_lines import ClosedCycle, CycleLines
from efprof.facts.cycle_sawtooth import CycleSawtooth
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.facts.step_times import StepTimes
from efprof.fixes.weak_reference import CycleStatement, break_cycle
from efprof.model import Examination, Finding, Severity, ThinEvidence
from efprof.units import format_bytes, format_share, format_value

MEDIUM_SHARE, HIGH_SHARE = 0.2, 0.5
"""Of the run's peak: a fifth is a larger batch, half of it often another device."""


def uncollected_cycle(run: Run) -> Examination:
    """Find memory that piles up as garbage until Python's collector comes by, and the cycle that keeps it.

    What it finds
    -------------
    Steps that leave their tensors in a reference cycle: an object that knows its owner, an error kept with its
    traceback, a closure that names itself. Memory is a sawtooth as high as many steps' tensors.

    Why it matters
    --------------
    The collector counts objects, not bytes: on a device that is nearly full it comes too late.

    Fix
    ---
    Refer back weakly, or take the reference away at the end of the step, at the statement that closes the cycle.

    Predicted gain
    --------------
    The most that was allocated before a collection, less the lowest that is left after one.
    """
    sawtooth = run.get(CycleSawtooth)
    if not sawtooth.garbage.num_read:
        raise ThinEvidence("no collection of garbage was seen, so nobody knows what one frees; record a longer run.")
    looked_at = f"{sawtooth.garbage.num_read} collections of garbage, {sawtooth.garbage.num_large} freed much"
    if not sawtooth.piles_up:
        return Examination(looked_at=looked_at)
    cycles = run.get(CycleLines).cycles
    return Examination(looked_at=looked_at, findings=(_finding(run, sawtooth, cycles[0] if cycles else None),))


def _finding(run: Run, sawtooth: CycleSawtooth, closed: ClosedCycle | None) -> Finding:
    sources = run.get(Sources)
    blame = closed.blame if closed else sources.line(_backward_site(run))
    height, share = sawtooth.height_bytes, sawtooth.height_bytes / sawtooth.peak_bytes
    of_what = f" because of the cycle `{closed.cycle.path}`" if closed else ""
    return Finding(
        blame=blame,
        category="memory",
        headline="Tensors wait for Python's garbage collector",
        message=f"Up to {format_bytes(height)} of garbage ({format_share(share)} of the peak) lies in memory until the "
        f"collector frees it, about every {format_value(round(sawtooth.steps_apart), 'count')} steps{of_what}.",
        fix=break_cycle(_statement(sources, closed)),
        gain=cycle_gain(sawtooth),
        evidence=(sources.snippet(blame), *cycle_evidence(sawtooth, closed)),
        severity=_severity(run, share),
    )


def _statement(sources: Sources, closed: ClosedCycle | None) -> CycleStatement | None:
    """The likeliest one as its fix needs it."""
    if closed is None or not closed.statements:
        return None
    statement, links = closed.statements[0], closed.cycle.links
    tree = sources.tree(statement.file)
    assert tree is not None, "the statement was found in it"
    return CycleStatement(
        file=statement.file,
        lines=sources.files[statement.file],
        tree=tree,
        name=statement.link.name,
        kind=statement.kind,
        value=statement.value,
        can_be_weak=statement.link.can_be_weak and statement.link.kind == "attribute" and not statement.link.through,
        is_tensor=links[(links.index(statement.link) + 1) % len(links)].owner == "Tensor",
    )


def _severity(run: Run, share: float) -> Severity:
    if run.run_file.ended == "out_of_memory" or share >= HIGH_SHARE:
        return "high"
    return "medium" if share >= MEDIUM_SHARE else "low"


def _backward_site(run: Run) -> str:
    sites = Counter(time.record.backward_site for time in run.get(StepTimes).every if time.record.backward_site)
    if not sites:
        raise ThinEvidence("garbage piles up, and no line of the training loop was recorded to point at.")
    return sites.most_common(1)[0][0]
