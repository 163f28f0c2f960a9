"""A request that the device could not serve."""

from dataclasses import replace
from functools import partial

from efprof.facts.device.device_evidence import replayed_gain
from efprof.facts.device.device_memory import DeviceHistory, DeviceMemory, DeviceStates, Failure
from efprof.facts.device.memory_failure import (
    FailureState,
    blamed_site,
    evidence_of_device,
    evidence_of_state,
    failure_evidence,
    most_alive_site,
    what_failed,
    what_failed_on,
    what_filled,
    why_it_failed_on,
    why_no_setting_helps,
)
from efprof.facts.device.smaller_step import fit_step, gain_of, missing_memory_at_end, missing_memory_on
from efprof.facts.run.run import Run
from efprof.facts.run.run_limits import MemoryFailure, catches_out_of_memory
from efprof.facts.source.sources import line_at
from efprof.fixes.settings import set_allocator
from efprof.model import Examination, Finding, Fix, Gain, NotRecorded, ThinEvidence, UnreadableInput
from efprof.units import format_count


def out_of_memory(run: Run) -> Examination:
    """Find why the device could not serve a request, and what would have served it.

    ## What it finds
    The request that failed, whether memory was short or only in pieces, and the lines whose tensors filled the device.

    ## Why it matters
    The run ended there, or went on without a batch or with a slower algorithm.

    ## Fix
    The setting of the allocator under which all recorded requests are served; else the micro-batch that fits and the
    accumulation that makes up for it, under the user's own keys.

    ## Predicted gain
    What the replay under that setting reserves less, or what the smaller micro-batch is expected to take less.
    """
    devices: tuple[DeviceHistory, ...] = ()
    try:
        devices = run.get(DeviceStates).devices
        if not any(device.has_history or device.failure for device in devices):
            devices = run.get(DeviceMemory).trusted  # which says what is missing
    except (NotRecorded, UnreadableInput):
        if run.run_file.ended != "out_of_memory":  # else that tells of the failure itself
            raise
    makes = [partial(_finding, run, device, device.failure) for device in devices if device.failure is not None]
    if not makes and run.run_file.ended == "out_of_memory":
        makes = [partial(_at_end, run, run.get(MemoryFailure))]
    num_requests = sum(device.replay.allocations for device in devices)
    looked_at = f"{num_requests:,} requests on {format_count(len(devices), 'device')}"
    return Examination.of(looked_at if devices else "the error that ended the run", makes)


def _at_end(run: Run, failure: MemoryFailure) -> Finding:
    """By the device's state where a snapshot shows it, else by the error alone."""
    try:
        state = run.get(FailureState)
    except (NotRecorded, UnreadableInput):
        return _by_error(run, failure)
    on_device = state.device.failure if failure.requested_bytes and failure.site else None
    found = _by_error(run, failure) if on_device is None else _finding(run, state.device, on_device)
    return replace(found, evidence=evidence_of_state(run, state, failure))


def _by_error(run: Run, failure: MemoryFailure) -> Finding:
    site = failure.site or most_alive_site(run, failure)
    if site is None:
        raise ThinEvidence("memory ran out, but no line of yours is in the traceback of the error that says so.")
    missing = missing_memory_at_end(run)
    return Finding(
        blame=line_at(run, site),
        category="memory",
        headline="Out of memory",
        message=what_failed(failure),
        why=what_filled(run, failure),
        fix=fit_step(run, missing),
        gain=gain_of(run, missing),
        evidence=failure_evidence(run, failure, missing.kept_bytes),
        severity="high",
    )


def _finding(run: Run, device: DeviceHistory, failure: Failure) -> Finding:
    missing = missing_memory_on(run, device, failure)
    headline = "Out of memory: free memory lies in pieces" if failure.is_fragmentation else "Out of memory"
    is_survived = catches_out_of_memory(run)
    gain = gain_of(run, missing) if device.best is None else replayed_gain(device, device.best)
    return Finding(
        blame=line_at(run, blamed_site(run, device, failure)),
        category="memory",
        headline=f"{headline}, and the program went on" if is_survived else headline,
        message=what_failed_on(device, failure),
        why=why_it_failed_on(failure),
        fix=_fix(device, failure, fit_step(run, missing)),
        gain=Gain.none("the program caught it and went on") if is_survived else gain,
        evidence=evidence_of_device(run, device, failure),
        severity="low" if is_survived else "high",
    )


def _fix(device: DeviceHistory, failure: Failure, smaller: Fix) -> Fix:
    """The allocator's setting where that alone would have served; the batch then only in words, should it not do."""
    survivor = device.best
    if survivor is not None:
        old = device.what_if.history.configuration
        fallback = f"Should that not be enough: {smaller.summary}" if smaller.changes else ""
        return set_allocator(old, survivor.configuration, caution=" ".join([*survivor.warnings, fallback]).strip())
    sentences = [why_no_setting_helps(device, failure), smaller.summary]
    return replace(smaller, summary=" ".join(reversed(sentences) if smaller.changes else sentences))
