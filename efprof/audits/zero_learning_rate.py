"""Training whose learning rate is zero."""

from efprof.facts.numbers.learning_rates import LearningRates
from efprof.facts.run.run import Run
from efprof.facts.source.sources import line_at
from efprof.model import Examination, Finding, Fix, Gain, Narrative
from efprof.units import format_count

MIN_UPDATES, MIN_FROM_START = 20, 40
"""In a row: a schedule may touch zero at its end, and a warm-up may begin there."""
MIN_READ = 3
"""Steps of these whose rate is known: a rate that goes up and down may be at zero in two of them."""
MIN_SHARE = 0.05
"""Of all steps, at the end of a run: the weights that it ends with are older than it says."""


def zero_learning_rate(run: Run) -> Examination:
    """Find updates whose learning rate is zero.

    ## What it finds
    Twenty updates in a row, or forty from the start of the run, in which every step whose learning rate was read has a
    rate of zero in all groups: a schedule that is shorter than the training, or a warm-up that is never stepped.

    ## Why it matters
    These updates leave the weights as they are: their time is lost.

    ## Fix
    Give the schedule the number of updates that there are; start it above zero, and step it.

    ## Predicted gain
    No time and no memory: updates that change the weights.
    """
    rates = run.get(LearningRates)
    steps = rates.zero_steps
    least = MIN_FROM_START if rates.rate_before is None else MIN_UPDATES
    is_long = len(steps) >= MIN_READ and steps[-1] - steps[0] + 1 >= least
    findings = (_finding(run, rates, rates.site),) if is_long and rates.site else ()
    return Examination(looked_at=f"the learning rate of {format_count(rates.num_read, 'step')}", findings=findings)


def _finding(run: Run, rates: LearningRates, site: str) -> Finding:
    first, last = rates.zero_steps[0], rates.zero_steps[-1]
    is_lasting = not rates.has_recovered and last - first + 1 >= MIN_SHARE * rates.num_steps
    builder = f"the {rates.schedule}" if rates.schedule else "the optimizer"
    before = "It was never above 0 before" if rates.rate_before is None else f"It was {rates.rate_before:.2g} before"
    return Finding(
        blame=line_at(run, site),
        category="numbers",
        headline="The learning rate is zero",
        message=f"The learning rate is 0 from step {first:,} to {last:,} of {rates.num_steps:,}: these updates leave "
        "the weights as they are.",
        why=f"{before}; this line builds {builder} that it comes from.",
        fix=Fix.by_hand(_remedy(rates)),
        gain=Gain.none("no time and no memory; these updates then change the weights"),
        evidence=(
            Narrative.of(
                f"It was read in {format_count(len(rates.zero_steps), 'step')} of these, of all groups of each "
                "optimizer that stepped, and was 0 in each.",
                "It is meant where batch statistics alone are updated.",
            ),
        ),
        severity="high" if is_lasting else "medium",
    )


def _remedy(rates: LearningRates) -> str:
    if rates.rate_before is None:
        return "Begin above 0, and call the schedule's `step()` after each update, not after each epoch."
    return (
        f"Give the schedule as many steps as it is stepped in all (this run: {rates.num_steps:,} updates), or end the "
        "training where it ends."
    )
