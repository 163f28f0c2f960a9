"""A model that is trained in evaluation mode."""

from efprof.facts.numbers.lost_updates import Evaluated, trained_as_evaluated
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.model import Examination, Finding, Fix, Gain, Narrative
from efprof.units import format_count, format_share

MIN_UPDATES = 10
"""In a row to the end, or in all: fewer may be a phase."""
MIN_ENTRIES, MIN_SHARE = 2, 0.2
"""Times that a training came into that mode, and of all updates seen: a training may begin with frozen layers, once."""


def training_in_eval_mode(run: Run) -> Examination:
    """Find a model that is trained without its dropout and its batch statistics.

    ## What it finds
    A module whose dropout, and layers with batch statistics, were in evaluation mode, and it itself, in ten updates in
    a row and all after them; or in a fifth of all, into which it came from training mode twice or more.

    ## Why it matters
    Nothing is dropped, so the model overfits; batch statistics stay as they were, and no longer fit the weights.

    ## Fix
    `model.train()` before the training goes on.

    ## Predicted gain
    No time and no memory: the regularisation that the model was built with.
    """
    seen = trained_as_evaluated(run)
    found = [event for event in seen if event.num_last >= MIN_UPDATES or _is_often(event)]
    return Examination(
        looked_at=f"{format_count(len(seen), 'module')} that were trained in evaluation mode at times",
        findings=tuple(_finding(run, event) for event in found),
    )


def _is_often(event: Evaluated) -> bool:
    least = max(MIN_UPDATES, MIN_SHARE * event.num_updates)
    return event.num_entries >= MIN_ENTRIES and event.num_evaluated >= least


def _finding(run: Run, event: Evaluated) -> Finding:
    sources, site = run.get(Sources), event.site or event.backward_site or ""
    kinds = ", ".join(event.kinds[:3])
    where = "All updates seen" if event.num_last == event.num_updates else f"All updates seen since step {event.step:,}"
    if _is_often(event):
        where = f"{format_share(event.num_evaluated / event.num_updates)} of the updates seen"
    how = "This line puts it into that mode" if event.site else "It never left that mode"
    return Finding(
        blame=sources.line(site),
        category="numbers",
        headline="A model is trained in evaluation mode",
        message=f"{where} train {event.module} in evaluation mode, so that its "
        f"{format_count(event.num_layers, 'layer')} of {kinds} do nothing of what training needs.",
        why=f"{how}, and no `train()` comes before the next update.",
        fix=Fix.by_hand("Call `model.train()` before the training goes on, as after each evaluation."),
        gain=Gain.none("no time and no memory; dropout and batch statistics as in training"),
        evidence=(
            Narrative.of(
                f"Of {event.num_updates:,} updates in steps recorded in full {event.num_evaluated:,} were such, "
                f"{event.num_last:,} of them at the end: the module that was called, and all its layers with dropout "
                "or batch statistics, had `training` False.",
                "Where batch statistics alone are frozen, the module itself is in training mode, which is not told.",
            ),
        ),
        severity="medium",
    )
