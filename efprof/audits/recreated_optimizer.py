"""An optimizer that is built again, and loses the state of the one before."""

from collections.abc import Sequence

from efprof.facts.numbers.lost_updates import BuiltOptimizer, built_optimizers, rebuilt_optimizers
from efprof.facts.run.run import Run
from efprof.facts.source.sources import line_at
from efprof.model import Examination, Finding, Fix, Gain, Narrative
from efprof.units import format_count


def recreated_optimizer(run: Run) -> Examination:
    """Find optimizers that are built again while the training goes on.

    ## What it finds
    An optimizer that is built for exactly the parameters for which another of its class had state already: in each
    epoch, at each change of the learning rate, in each call of a function that trains for a while.

    ## Why it matters
    Adam's moments and SGD's momentum begin at zero again. The next updates follow single batches, and Adam's first are
    as large as the learning rate lets them be.

    ## Fix
    Build it once, ahead of the loop, and hand it on; a learning rate is changed in its `param_groups`.

    ## Predicted gain
    No time and no memory: updates that use what was learned of the gradients before.
    """
    looked_at = format_count(len(built_optimizers(run)), "optimizer")
    findings = tuple(_finding(run, site, events) for site, events in rebuilt_optimizers(run).items())
    return Examination(looked_at=looked_at, findings=findings)


def _finding(run: Run, site: str, events: Sequence[BuiltOptimizer]) -> Finding:
    blame = line_at(run, site)
    last = events[-1]
    steps = ", ".join(f"{event.step:,}" for event in events[:5])
    return Finding(
        blame=blame,
        category="numbers",
        headline="The optimizer is built again and forgets its state",
        message=f"{last.optimizer} was built again {format_count(len(events), 'time')} at {blame}; each time it lost "
        f"the state of {format_count(last.num_lost, 'parameter')}.",
        why="The new optimizer starts from zero: its averages of earlier gradients are gone.",
        fix=Fix.by_hand(
            f"Build `{last.optimizer}(...)` once, before the loop, and pass it on; change a learning rate by "
            "`optimizer.param_groups[0]['lr'] = ...`."
        ),
        gain=Gain.none("no time and no memory; each update then uses what was learned before it"),
        evidence=(
            Narrative.of(
                "As it was built, an optimizer of the same class had state for exactly these parameters, and this one "
                "was not given it by `load_state_dict`; nor had a module loaded other values in between. The "
                f"first at step {steps}.",
                "It is meant where each phase is a training of its own, as for tasks that are learned in turn.",
            ),
        ),
        severity="high",
    )
