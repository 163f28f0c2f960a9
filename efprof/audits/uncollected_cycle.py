"""Tensors in reference cycles, which only Python's garbage collector frees."""

import ast

from efprof.facts.growth.leaks import backward_line
from efprof.facts.growth.reference_cycles import (
    ClosedCycle,
    CycleSawtooth,
    closed_cycle,
    cycle_gain,
    how_the_cycle_is_known,
)
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.fixes.keep_less import caught_error, without_traceback
from efprof.model import Examination, Finding, Fix, ThinEvidence
from efprof.units import format_bytes, format_share, format_value


def uncollected_cycle(run: Run) -> Examination:
    """Find memory that piles up as garbage until Python's collector comes by, and the cycle that keeps it.

    ## What it finds
    Steps that leave tensors in a reference cycle (an object that knows its owner, an error kept with its traceback):
    memory is a sawtooth as high as many steps' tensors.

    ## Why it matters
    The collector counts objects, not bytes: on a device that is nearly full it comes too late.

    ## Fix
    Refer back weakly, or take the reference away at the end of the step, at the statement that closes the cycle.

    ## Predicted gain
    The most that was allocated before a collection, less the lowest that is left after one.
    """
    sawtooth = run.get(CycleSawtooth)
    if not sawtooth.garbage.num_read:
        raise ThinEvidence("no collection of garbage was seen, so what one frees is not known; record a longer run.")
    looked_at = f"{sawtooth.garbage.num_read} collections of garbage, {sawtooth.garbage.num_large} freed much"
    if not sawtooth.piles_up:
        return Examination(looked_at=looked_at)
    return Examination(looked_at=looked_at, findings=(_finding(run, sawtooth, closed_cycle(run)),))


def _finding(run: Run, sawtooth: CycleSawtooth, closed: ClosedCycle | None) -> Finding:
    height, share = sawtooth.height_bytes, sawtooth.height_bytes / sawtooth.peak_bytes
    of_what = f"the cycle `{closed.cycle.path}`" if closed else "a reference cycle"
    return Finding(
        blame=closed.blame if closed else backward_line(run),
        category="memory",
        headline="Tensors wait for Python's garbage collector",
        message=f"Up to {format_bytes(height)} of garbage ({format_share(share)} of the peak) lies in memory until the "
        f"collector frees it, about every {format_value(round(sawtooth.steps_apart), 'count')} steps.",
        why=f"Only the garbage collector frees {of_what}; reference counts never reach zero.",
        fix=_fix(run.get(Sources), closed),
        gain=cycle_gain(sawtooth),
        evidence=(how_the_cycle_is_known(closed),),
        severity="high" if run.run_file.ended == "out_of_memory" else "low",
    )


def _fix(sources: Sources, closed: ClosedCycle | None) -> Fix:
    """An edit where a caught error is kept; else what a person must write."""
    if closed is None or not closed.statements:
        return Fix.by_hand("Take one reference of the circle away at the end of the step: `del`, or set it to None.")
    statement, links = closed.statements[0], closed.cycle.links
    link, value, file, name = statement.link, statement.value, sources.file(statement.file), statement.link.name
    if link.through == "method":
        return Fix.by_hand(f"Keep `{name}` as `weakref.WeakMethod(...)`, or look the method up when it is called.")
    if error := caught_error(value, file.tree):
        return without_traceback(file, name, error)
    is_tensor = links[(links.index(link) + 1) % len(links)].owner == "Tensor"
    is_context = link.owner.endswith("Backward") and not name.startswith("self.")
    if is_tensor and is_context and value is not None:  # of an autograd function
        saved = f"`ctx.save_for_backward({ast.unparse(value)})`"
        return Fix.by_hand(f"Save it by {saved}, and take it from `ctx.saved_tensors` in backward.")
    if is_tensor:
        return Fix.by_hand(
            f"Take the tensor out of `{name}` once the step has used it (`del`), or keep it `.detach()`ed."
        )
    weakly = ", or make it a `weakref.proxy` where somebody else keeps the object"
    return Fix.by_hand(f"Set `{name}` to None at the end of the step{weakly if link.can_be_weak else ''}.")
