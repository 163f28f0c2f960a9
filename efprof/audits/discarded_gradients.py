"""Gradients that are cleared before any optimizer has used them."""

from efprof.facts.numbers.discarded_gradients import Discarded, clearing_line, discarded_passes
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.model import Examination, Finding, Fix, Gain, Narrative, Severity
from efprof.units import format_count

MIN_UPDATES, MIN_SHARE = 5, 0.8
"""In fewer of the updates it is something that is done now and then, as an estimate of the Fisher information."""
HIGH_SHARE = 0.5
"""Of the passes: more work is thrown away than is used."""


def discarded_gradients(run: Run) -> Examination:
    """Find backward passes whose gradients are thrown away.

    ## What it finds
    A line that calls backward several times for each update, where the gradients of all but the last of these passes
    are cleared unused: batches were to be accumulated, and `zero_grad` runs in each of them.

    ## Why it matters
    Each update follows its last batch alone, as with a smaller batch; the other passes were for nothing.

    ## Fix
    Call `zero_grad` once for each update, below the optimizer's step.

    ## Predicted gain
    No time and no memory: the passes that are thrown away count.
    """
    seen = discarded_passes(run)
    found = [one for one in seen if _is_usual(one)]
    return Examination(
        looked_at=f"the passes of {format_count(len(seen), 'line')} before updates",
        findings=tuple(_finding(run, one) for one in found),
    )


def _is_usual(seen: Discarded) -> bool:
    return seen.num_updates >= MIN_UPDATES and seen.num_discarding >= MIN_SHARE * seen.num_updates


def _severity(seen: Discarded) -> Severity:
    """What writes to the gradients itself may have read them all, as PCGrad does."""
    if 2 * seen.num_rewritten >= seen.num_updates:
        return "low"
    return "high" if seen.num_discarded >= HIGH_SHARE * seen.num_passes else "medium"


def _finding(run: Run, seen: Discarded) -> Finding:
    sources = run.get(Sources)
    backward, call = sources.line(seen.site), clearing_line(sources, seen)
    step = sources.line(seen.step_site) if seen.step_site else None
    blame = call or backward
    what = f"`{call.text.partition('  #')[0]}`" if call else "what clears the gradients"
    others = [line for line in dict.fromkeys((backward, step)) if line not in (None, blame)]
    return Finding(
        blame=blame,
        category="numbers",
        headline="Gradients are cleared before any update used them",
        message=f"{seen.num_discarded:,} of {seen.num_passes:,} backward passes seen at {backward} were thrown away: "
        "their gradients were cleared before an update.",
        why="Each update follows its last pass alone: "
        + (f"{blame} clears them with each." if call else "they are gone."),
        fix=Fix.by_hand(f"Move {what} below {step or 'the optimizer step'}, to run once for each update."),
        gain=Gain.none(f"no time and no memory; {seen.num_discarded:,} of {seen.num_passes:,} passes count then"),
        evidence=(
            *(sources.snippet(line) for line in others if line is not None),
            Narrative.of(
                f"Before {seen.num_discarding:,} of {seen.num_updates:,} updates in steps recorded in full, gradients "
                "that a pass had left were gone as the next pass of that line began. No optimizer had stepped, and the "
                "parameters were as before.",
                "It is meant where the program reads each pass's gradients before it clears them.",
            ),
        ),
        severity=_severity(seen),
    )
