"""Gradients that nothing clears between the steps of their optimizer."""

import statistics
from collections.abc import Sequence

from efprof.facts.growth.backward_calls import UnclearedOptimizer, uncleared_optimizers
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.fixes.step_calls import clear_gradients
from efprof.model import Examination, Finding, Fix, Gain, Narrative
from efprof.units import format_count

MIN_NORMS = 5
"""In each third of the steps: their median is then no single step's."""
MIN_RISE = 1.5
"""By which the norms of a sum of all steps' gradients rise between the thirds; a step's own seldom rise at all."""

RUNNING_SUM = ": each update used their running sum."
AS_OTHERS = (
    "Call `zero_grad(set_to_none=True)` of the optimizer before this pass too, as the program does before others."
)


def uncleared_gradients(run: Run) -> Examination:
    """Find optimizers that step with the gradients of all steps so far.

    ## What it finds
    A backward pass that adds its gradients to those of the steps before, since nothing clears them in between: no
    `zero_grad`, one outside of the loop, or that of another object. Or one in a branch that never clears them, while
    others do.

    ## Why it matters
    Every update follows the sum of all gradients since the start, the oldest included: it grows from step to step,
    and the training overshoots, swings or diverges.

    ## Fix
    `zero_grad(set_to_none=True)` below the step.

    ## Predicted gain
    No time and no memory: updates that follow the step's own batch.
    """
    num_watched, uncleared = uncleared_optimizers(run)
    looked_at = f"the gradients of {format_count(num_watched, 'optimizer')}"
    by_line: dict[str, list[UnclearedOptimizer]] = {}
    for optimizer in uncleared:
        by_line.setdefault(optimizer.backward_sites[0], []).append(optimizer)
    findings = tuple(_finding(run, site, optimizers) for site, optimizers in by_line.items())
    return Examination(looked_at=looked_at, findings=findings)


def _rise(run: Run) -> float:
    """How many times the median gradient norm of the first third is that of the last; 1 where too few were seen."""
    norms = [float(record.gradient_norm) for record in run.steps if record.gradient_norm is not None]
    third = len(norms) // 3
    first, last = norms[:third], norms[-third:]
    if third < MIN_NORMS or not statistics.median(first):
        return 1.0
    return statistics.median(last) / statistics.median(first)


def _finding(run: Run, site: str, optimizers: Sequence[UnclearedOptimizer]) -> Finding:
    sources = run.get(Sources)
    blame = sources.line(site)
    names = " and ".join(dict.fromkeys(one.optimizer for one in optimizers))
    num_steps, is_harmful = min(one.num_steps for one in optimizers), _rise(run) >= MIN_RISE
    sites = [place for one in optimizers for place in (*one.backward_sites, one.step_site) if place is not None]
    others = dict.fromkeys(line for line in map(sources.line, sites) if line != blame)
    num_cleared = min(one.num_cleared for one in optimizers)
    # No pass for another optimizer's step may add to the gradients that are cleared there.
    alone = [None if one.num_earlier_backwards else one.step_site for one in optimizers]
    return Finding(
        blame=blame,
        category="numbers",
        headline="Gradients are not cleared before this pass" if num_cleared else "Gradients are never cleared",
        message=f"In {num_steps} watched steps nothing cleared the gradients of {names}"
        + (f" before this pass, in {num_cleared} others something did." if num_cleared else RUNNING_SUM),
        why="This backward pass added to what earlier ones left"
        f"{', and the norm of the gradients rises with the steps' if is_harmful else ''}.",
        fix=Fix.by_hand(AS_OTHERS)
        if num_cleared
        else clear_gradients([None if at is None else sources.line(at) for at in alone], sources.file),
        gain=Gain.none(
            "no time and no memory; each update then follows its own step's gradients, not all since the start"
        ),
        evidence=(
            *map(sources.snippet, others),
            Narrative.of(
                "Where the optimizer stepped and where each backward pass began and ended, the numbers that the step "
                "had used were still there, and the pass added to them.",
                f"It is meant where a program sums gradients over more than {num_steps} steps; then ignore it.",
            ),
        ),
        severity="high" if is_harmful else "medium",
    )
