"""A schedule, or a counter of the program's own, that counts something else than updates."""

from efprof.facts.numbers.lost_updates import Moves, schedule_moves
from efprof.facts.numbers.step_counters import RaisedCounter, raised_counters
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.model import Examination, Finding, Fix, Gain, Narrative, NothingToLookAt
from efprof.units import format_count

MIN_UPDATES, MIN_SHARE = 5, 0.8
"""In fewer of the updates, another thing moves it on now and then, as the end of an epoch."""
AS_LONG = 0.1
"""By which share the moves of a whole training may differ from the length of a schedule that is meant to count them."""


def step_counter_drift(run: Run) -> Examination:
    """Find schedules of the learning rate, and counters of steps, that run ahead of the updates.

    ## What it finds
    A schedule whose `step()` is called between the backward passes of most updates, where batches are accumulated. Not
    where a finished training made as many moves as the schedule is long: then that counts batches. And a whole number
    that is called a step, and grows by the same number greater than one with each update.

    ## Why it matters
    The schedule runs ahead of the updates: its warm-up is too short, and it ends long before the training does.

    ## Fix
    Call its `step()` beside the optimizer's, once for each update.

    ## Predicted gain
    No time and no memory: the learning rate that was asked for at each update.
    """
    counters, seen = [*raised_counters(run)], list[Moves]()
    try:
        seen = schedule_moves(run)
    except NothingToLookAt:
        if not counters:
            raise
    by_site = {one.site: one for one in seen if one.site and _runs_ahead(one) and not _is_as_long(run, one)}
    return Examination(
        looked_at=f"{format_count(len(seen), 'schedule')} of the learning rate, and counters of steps",
        findings=(
            *(_finding(run, site, one) for site, one in by_site.items() if site),
            *(_of_counter(run, one) for one in counters),
        ),
    )


def _of_counter(run: Run, found: RaisedCounter) -> Finding:
    counter, sources = found.counter, run.get(Sources)
    ends = [f"{line} reaches {limit:,} after {limit / counter.by:,.0f} updates" for line, limit in found.limits[:2]]
    read = ", ".join(map(str, found.readers[:4])) or "nothing that was recorded"
    return Finding(
        blame=found.raised,
        category="numbers",
        headline="A counter of steps runs ahead of the updates",
        message=f"`{counter.name}` grows by {counter.by} with each update, {counter.num_alike} of "
        f"{counter.num_updates} seen.",
        why=f"{'; '.join(ends) if ends else f'It is read at {read}'}.",
        fix=Fix.by_hand(f"Raise `{counter.name}` once for each update, where the optimizer steps."),
        gain=Gain.none("no time and no memory; what is read by steps then happens when it was meant to"),
        evidence=(
            *(sources.snippet(line) for line, _ in found.limits[:2]),
            Narrative.of(
                f"It is read at {read}.",
                "It is meant where it counts samples, tokens, or the steps of an environment; then ignore it.",
            ),
        ),
        severity="low",
    )


def _runs_ahead(seen: Moves) -> bool:
    return seen.num_updates >= MIN_UPDATES and seen.num_drifting >= MIN_SHARE * seen.num_updates


def _is_as_long(run: Run, seen: Moves) -> bool:
    if not seen.length or run.run_file.ended != "finished" or not run.steps:
        return False
    num_moves = (run.steps[-1].step + 1) * seen.num_moves / seen.num_updates
    return abs(num_moves / seen.length - 1) < AS_LONG


def _finding(run: Run, site: str, seen: Moves) -> Finding:
    sources = run.get(Sources)
    blame = sources.line(site)
    per_update = seen.num_moves / seen.num_updates
    end = (
        f"; {seen.length_name}={seen.length:,} ends after {seen.length / per_update:,.0f} updates"
        if seen.length
        else ""
    )
    return Finding(
        blame=blame,
        category="numbers",
        headline="The learning rate's schedule runs ahead of the updates",
        message=f"{seen.schedule} moves on {per_update:.3g} times in each update{end}.",
        why=f"{blame} runs with each backward pass, the optimizer's step only after several.",
        fix=Fix.by_hand(f"Move `{blame.text.partition('  #')[0]}` to where the optimizer steps, once for each update."),
        gain=Gain.none("no time and no memory; each update then has the learning rate that was asked for"),
        evidence=(
            Narrative.of(
                f"In {seen.num_drifting:,} of {seen.num_updates:,} updates in steps recorded in full, it moved on "
                "between their backward passes.",
                "It is meant where the schedule's length counts batches; then ignore it.",
            ),
        ),
        severity="medium",
    )
