"""A loader that is started anew in each step, for one batch or a few."""

from efprof.facts.input.input_waits import restarted_lines, waits_of_only_loader_ms
from efprof.facts.run.run import Run
from efprof.facts.steps.step_times import StepTimes, within_idle
from efprof.model import Examination, Finding, Fix, Gain, Narrative, StallLine
from efprof.units import format_count, format_ms, format_share


def restarted_loader(run: Run) -> Examination:
    """Find loaders whose iterator is made anew in each step.

    ## What it finds
    A line that makes a new iterator of a `DataLoader`, as `next(iter(loader))` does, in at least every second step,
    while the iterator before had batches left.

    ## Why it matters
    Each new iterator starts worker processes again, shuffles again, and has no batch prefetched. Without shuffling it
    gives the first batches again and again.

    ## Fix
    One iterator that is kept, and made anew only at its end.

    ## Predicted gain
    The measured time to make the iterators and to end their workers, and at most the wait for each first batch, where
    that of this loader is known.
    """
    lines, steps = restarted_lines(run), run.get(StepTimes).at_least(1)
    looked_at = f"{format_count(len(steps), 'step')}, {format_count(len(lines), 'line')} that restart a loader in each"
    return Examination(looked_at=looked_at, findings=tuple(_finding(run, *calls) for calls in lines))


def _finding(run: Run, *calls: StallLine) -> Finding:
    inside_ms, waits_ms = sum(call.step_ms for call in calls), waits_of_only_loader_ms(run)
    cost_ms, what, most = inside_ms, "", "the time inside; the wait for each first batch is more"
    if waits_ms > inside_ms:
        cost_ms, what = waits_ms, " and wait for its first batch"
        most = "at most the whole wait: what a batch takes by itself stays"
    share = format_share(cost_ms / max(1e-9, run.get(StepTimes).median_ms()))
    parts = " and ".join(f"`{call.call}` {format_ms(call.step_ms)}" for call in calls)
    workers = "its worker processes end and start again" if len(calls) > 1 else "a new pass over the data begins"
    return Finding(
        blame=calls[0].blame,
        category="time",
        headline="A new iterator of the loader is made in each step",
        message=f"{format_ms(cost_ms)} of each step ({share}) restart a `DataLoader`{what}, at {calls[0].blame}.",
        why=f"With each new iterator {workers}, and no batch is prefetched.",
        fix=Fix.by_hand(
            "Keep one iterator: `batches = iter(loader)` before the loop, `next(batches)` in it, "
            "a new one at `StopIteration`."
        ),
        gain=within_idle(run, Gain.of_step(most, cost_ms)),
        evidence=(
            Narrative.of(
                f"Per step, {parts}: {calls[0].count_per_step:.1f} times. Only an iterator counts whose "
                "predecessor, made at the same line, had batches left.",
            ),
        ),
    )
