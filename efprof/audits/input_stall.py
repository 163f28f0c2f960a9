"""Steps that wait for their data."""

from efprof.facts.gain.replay import gain_or_bound
from efprof.facts.input.input_waits import MAX_HANDOVER_MS, InputWaits, restarted_lines, wait_evidence
from efprof.facts.run.run import Run
from efprof.facts.source.sources import file_of, line_at
from efprof.facts.steps.step_times import StepTimes, within_idle
from efprof.facts.time.loader_lines import with_lines
from efprof.facts.time.python_lines import PythonLines
from efprof.facts.time.trace_input import TraceInput
from efprof.fixes.settings import set_loader_arguments
from efprof.model import Examination, Finding, Fix, Gain, NothingToLookAt, SourceLine, ThinEvidence
from efprof.units import format_share

MIN_STEPS = 5
"""Fewer steady steps say more about the machine than about the loader."""
MIN_SHARE, MIN_MS = 0.1, 1.0
"""A tenth of the step is worth an edit; below a millisecond, handing over a batch from a worker costs as much."""
MIN_SHARE_WITHOUT_CORES = 0.5
"""Where no core is left for a worker, a data set must be rewritten: where training waits longer than it trains."""
KEEP_WORKERS: dict[str, object] = {"persistent_workers": True}
RANDOMNESS = "shuffle order and random augmentations may differ"
"""Workers have seeds of their own; an iterator that is kept draws none from the program's generator (torch 2.13)."""


def input_stall(run: Run) -> Examination:
    """Find a data loader that the training waits for.

    ## What it finds
    A tenth of the step or more spent waiting for its batch, or for workers that are started anew every epoch. Blamed is
    the line that builds the loader; the message names the line inside that takes most of the time, where it is known.

    ## Why it matters
    Nothing is trained meanwhile: the most expensive device of the machine waits for the cheapest.

    ## Fix
    As many workers as make batches at the speed they are used, one core left to the training; `persistent_workers`
    where the waits are those of new epochs.

    ## Predicted gain
    Today's step less the slowest of: its rest, one worker's time over the workers, all CPU time over the cores. Of a
    trace from elsewhere: its steps replayed with batches that are there when asked for.
    """
    if run.is_foreign:
        trace_input = run.get(TraceInput)
        what = "with batches that are there when asked for"
        return trace_input.examination(lambda: gain_or_bound(run, trace_input.events, trace_input.bound, what))
    num_steps = len(run.get(StepTimes).at_least(MIN_STEPS))
    waits = run.get(InputWaits)
    if waits.loader is None and not waits.data_ms:
        raise NothingToLookAt("a DataLoader")
    looked_at = f"{num_steps} steps, which waited {format_share(waits.data_ms / waits.step_ms)} of their time for data"
    if waits.data_ms >= MIN_SHARE * waits.step_ms and not waits.can_win and not waits.num_workers:
        looked_at += "; a worker would save little of it"
    if _is_stalled(waits.alone) != _is_stalled(waits):
        raise ThinEvidence(f"Unclear: {looked_at}, but other programs held {format_share(waits.others)} of the cores.")
    if not _is_stalled(waits) and waits.restart_ms < MIN_SHARE * (waits.step_ms + waits.restart_ms):
        return Examination(looked_at=looked_at)
    if waits.loader is None or waits.loader.site is None:
        raise ThinEvidence(f"{looked_at}, but the loader that made them wait was built where it could not be seen.")
    if restarted_lines(run):
        return Examination(looked_at=f"{looked_at}; a loader is restarted in each step")
    if not waits.num_workers and (python := run.find(PythonLines)) and python.of_data:
        return Examination(looked_at=f"{looked_at}, most of it for Python at {python.of_data.blame}")
    blame = line_at(run, waits.loader.site)
    if _is_stalled(waits):
        found = with_lines(run, waits.loader, waits.data_ms, _of_slow_loader(run, waits, blame))
        return Examination(looked_at=looked_at, findings=(found,))
    return Examination(looked_at=looked_at, findings=(_of_restarts(run, waits, blame),))


def _is_stalled(waits: InputWaits) -> bool:
    """Whether batches come too late, and not only later than at once: taking one from a worker takes time too."""
    least_ms = MAX_HANDOVER_MS if waits.num_workers else MIN_MS
    share = MIN_SHARE if waits.can_win else MIN_SHARE_WITHOUT_CORES
    return waits.data_ms >= max(least_ms, share * waits.step_ms) and (waits.is_out_of_cores or waits.can_win)


def _of_slow_loader(run: Run, waits: InputWaits, blame: SourceLine) -> Finding:
    workers, (message, why) = waits.best_workers, waits.told()
    if not waits.can_win:
        summary = f"Speed up the data set's code: all {waits.num_cpus} cores are busy, more workers will not help."
        gain = Gain.of_step("the whole wait", waits.data_ms)
        return _finding(run, blame, message, why, Fix.by_hand(summary), gain)
    new = {"num_workers": workers} | ({} if waits.num_epochs == 1 or waits.keeps_workers else KEEP_WORKERS)
    gain = Gain(
        basis="model",
        explanation="new step time = the slowest of: training, one worker's time / workers, total CPU time / cores",
        step_ms=waits.saved_ms_with(workers),
        step_ms_interval=waits.saved_interval_ms_with(workers),
    )
    kept = "" if new.keys().isdisjoint(KEEP_WORKERS) else ", persistent_workers=True"
    summary = f"Use `DataLoader(..., num_workers={workers}{kept})`."
    return _finding(run, blame, message, why, _fix(run, waits, blame, new, summary), gain)


def _of_restarts(run: Run, waits: InputWaits, blame: SourceLine) -> Finding:
    fix = _fix(run, waits, blame, KEEP_WORKERS, "Use `DataLoader(..., persistent_workers=True)`.")
    gain = Gain.of_step("the waits where epochs start", waits.restart_ms)
    return _finding(run, blame, *waits.told_of_restarts(), fix, gain)


def _fix(run: Run, waits: InputWaits, blame: SourceLine, new: dict[str, object], summary: str) -> Fix:
    old = {"num_workers": waits.num_workers, "persistent_workers": waits.keeps_workers}
    changes = set_loader_arguments(file_of(run, blame), blame.line, old=old, new=new)
    return Fix(summary=summary, applicability="review", changes=changes, may_change=RANDOMNESS)


def _finding(run: Run, blame: SourceLine, message: str, why: str, fix: Fix, gain: Gain) -> Finding:
    return Finding(
        blame=blame,
        category="time",
        headline="Training waits for its data",
        message=message,
        why=why,
        fix=fix,
        gain=within_idle(run, gain),
        evidence=wait_evidence(run.get(StepTimes)),
    )
