"""A model that is trained in evaluation mode."""

from efprof.facts.numbers.lost_updates import Evaluated, trained_as_evaluated
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.model import Examination, Finding, Fix, Gain, Narrative
from efprof.units import format_count

MIN_UPDATES = 10
"""In a row, to the end: fewer may be a phase."""


def training_in_eval_mode(run: Run) -> Examination:
    """Find a model that is trained without its dropout and its batch statistics.

    ## What it finds
    A module whose dropout, and layers with batch statistics, were in evaluation mode, and it itself, in ten updates in
    a row and all after them.

    ## Why it matters
    Nothing is dropped, so the model overfits; batch statistics stay as they were, and no longer fit the weights.

    ## Fix
    `model.train()` before the training goes on.

    ## Predicted gain
    No time and no memory: the regularisation that the model was built with.
    """
    seen = trained_as_evaluated(run)
    found = [event for event in seen if event.num_last >= MIN_UPDATES]
    return Examination(
        looked_at=f"{format_count(len(seen), 'module')} that were trained in evaluation mode at times",
        findings=tuple(_finding(run, event) for event in found),
    )


def _finding(run: Run, event: Evaluated) -> Finding:
    sources, site = run.get(Sources), event.site or event.backward_site or ""
    kinds = ", ".join(event.kinds[:3])
    where = "All updates seen" if event.num_last == event.num_updates else f"All updates seen since step {event.step:,}"
    how = "This line puts it into that mode" if event.site else "It never left that mode"
    return Finding(
        blame=sources.line(site),
        category="numbers",
        headline="A model is trained in evaluation mode",
        message=f"{where} train {event.module} in evaluation mode, so that its "
        f"{format_count(event.num_layers, 'layer')} of {kinds} do nothing of what training needs.",
        why=f"{how}, and no `train()` comes after it.",
        fix=Fix.by_hand("Call `model.train()` before the training goes on, as after each evaluation."),
        gain=Gain.none("no time and no memory; dropout and batch statistics as in training"),
        evidence=(
            Narrative.of(
                f"Of {event.num_updates:,} updates in steps recorded in full the last {event.num_last:,} were such: "
                "the module that was called, and all its layers with dropout or batch statistics, had `training` "
                "False.",
                "Where batch statistics alone are frozen, the module itself is in training mode, which is not told.",
            ),
        ),
        severity="medium",
    )
