"""Requests for device memory that succeed only after the allocator gave its cache back."""

from collections import Counter

from efprof.facts.device.allocation_retries import (
    AllocationRetries,
    how_much_slower,
    retried_requests,
    retry_evidence,
    retry_trials,
)
from efprof.facts.device.device_memory import RetryTrials, recorded_devices
from efprof.facts.device.headroom import smaller_micro_batch
from efprof.facts.growth.leaks import backward_line
from efprof.facts.run.run import Run
from efprof.facts.source.sources import line_at
from efprof.facts.steps.step_times import within_idle
from efprof.fixes.settings import set_allocator
from efprof.model import Examination, Finding, Fix, Gain, SourceLine
from efprof.units import format_share

MIN_STEPS = 3
"""Steps with a retry after warm-up, and one in either half of them: once or twice is a start, or the largest batch."""


def allocation_retries(run: Run) -> Examination:
    """Find a training that keeps running into the end of its device's memory.

    ## What it finds
    Steps after warm-up in which the allocator ran out, waited for the device, gave its cache back and tried again; the
    line whose request it was where a history was recorded, else the stage.

    ## Why it matters
    Each retry stops the device, what was given back is asked for again by slow calls, and the next may fail for good.

    ## Fix
    The setting of the allocator that spares the retries in a replay; else a micro-batch that leaves a tenth free.

    ## Predicted gain
    By how much the median step with a retry takes longer, times the share of such steps.
    """
    retries = run.get(AllocationRetries)
    looked_at = f"{retries.num_steps} steps, {retries.num_retries} of the allocator's retries"
    if retries.num_retried < MIN_STEPS or not retries.goes_on:
        return Examination(looked_at=looked_at)
    return Examination(looked_at=looked_at, findings=(_finding(run, retries),))


def _finding(run: Run, retries: AllocationRetries) -> Finding:
    tried, gain = retry_trials(run), within_idle(run, _gain(retries))
    blame, whose = _blame(run, retries)
    stage, count = retries.by_stage[0]
    often = f"{retries.num_retries / retries.num_steps:.2g} times per step"
    where = f"{format_share(count / retries.num_retries)} of them came in the {stage} stage"
    return Finding(
        blame=blame,
        category="memory",
        headline="The allocator runs out and tries again",
        message=f"The device's memory ran out {often}{how_much_slower(retries)}.",
        why=f"Each time the allocator gave its cache back to go on. {where}; {whose}.",
        fix=_fix(run, tried),
        gain=gain,
        evidence=retry_evidence(retries, tried),
    )


def _blame(run: Run, retries: AllocationRetries) -> tuple[SourceLine, str]:
    """The line of the requests that a history holds, else that of the stage; and which of the two it is."""
    requests = ((device, entry) for device in recorded_devices(run) for entry in retried_requests(device.history))
    sites = Counter(device.lines.site(entry.frames) for device, entry in requests)  # None is a thread without Python
    known = [site for site, _ in sites.most_common() if site is not None]
    if known:
        return line_at(run, known[0]), "most often it was this line that asked"
    is_backward = retries.by_stage[0][0] == "backward"
    said = "this line runs that stage" if is_backward else "of that stage no line is known: this runs backward"
    return backward_line(run), said


def _gain(retries: AllocationRetries) -> Gain:
    (low, high), share = retries.slower_interval_ms, retries.num_retried / retries.num_steps
    if retries.slower_ms is None:
        return Gain.none("too few steps of either kind differ to tell what a retry costs")
    why = "what the median step with a retry takes longer, times the share of such steps"
    return Gain.of_step(why, share * retries.slower_ms, (share * low, share * high))


def _fix(run: Run, tried: RetryTrials | None) -> Fix:
    if tried is not None and (best := tried.best) is not None:
        recorded = tried.what_if.compared.calls.num_retries
        retries = f"{best.outcome.calls.num_retries} instead of {recorded} retries"
        caution = " ".join([f"Replayed under it, the recorded requests need {retries}.", *best.warnings])
        return set_allocator(tried.what_if.history.configuration, best.configuration, caution=caution)
    return Fix.by_hand(smaller_micro_batch(run))
