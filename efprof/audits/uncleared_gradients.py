"""Gradients that nothing clears between the steps of their optimizer."""

from collections.abc import Sequence

from efprof.facts.growth.backward_calls import UnclearedOptimizer, uncleared_optimizers
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.fixes.step_calls import clear_gradients
from efprof.model import Examination, Finding, Gain, Narrative


def uncleared_gradients(run: Run) -> Examination:
    """Find optimizers that step with the gradients of all steps so far.

    ## What it finds
    A backward pass that adds its gradients to those of the steps before, since nothing clears them in between: no
    `zero_grad`, one outside of the loop, or that of another object.

    ## Why it matters
    Every update follows the sum of all gradients since the start, the oldest included: it grows from step to step,
    and the training overshoots, swings or diverges.

    ## Fix
    `zero_grad(set_to_none=True)` below the step.

    ## Predicted gain
    No time and no memory: updates that follow the step's own batch.
    """
    num_watched, uncleared = uncleared_optimizers(run)
    looked_at = f"the gradients of {num_watched} optimizer{'s' * (num_watched != 1)}"
    by_line: dict[str, list[UnclearedOptimizer]] = {}
    for optimizer in uncleared:
        by_line.setdefault(optimizer.backwards[0].key, []).append(optimizer)
    findings = tuple(_finding(run, optimizers) for optimizers in by_line.values())
    return Examination(looked_at=looked_at, findings=findings)


def _finding(run: Run, optimizers: Sequence[UnclearedOptimizer]) -> Finding:
    sources, blame = run.get(Sources), optimizers[0].backwards[0]
    names = " and ".join(dict.fromkeys(one.name for one in optimizers))
    num_steps = min(one.num_steps for one in optimizers)
    places = dict.fromkeys(
        line for one in optimizers for line in (*one.backwards, one.step) if line not in (None, blame)
    )
    return Finding(
        blame=blame,
        category="numbers",
        headline="Gradients are never cleared",
        message=f"Nothing clears the gradients of {names}: before each of the {num_steps} steps that were watched, "
        "this backward pass added to what the steps before had left.",
        fix=clear_gradients([one.step if one.is_alone else None for one in optimizers], sources.file),
        gain=Gain.none(
            "no time and no memory; each update then follows its own step's gradients, not all since the start"
        ),
        evidence=(
            *(sources.snippet(place) for place in places if place is not None),
            Narrative.of(
                "Where the optimizer stepped and where each backward pass began and ended, the numbers that the step "
                "had used were still there, and the pass added to them.",
                f"It is meant where a program sums gradients over more than {num_steps} steps; then ignore it.",
            ),
        ),
        severity="high",
    )
