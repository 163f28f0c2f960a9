"""A request that the device could not serve."""

from contextlib import suppress
from dataclasses import replace
from functools import partial

from efprof.facts.allocator.advice import Trial
from efprof.facts.device.device_evidence import examination_of, what_is_missing, why_it_failed
from efprof.facts.device.device_memory import DeviceHistory, DeviceMemory, Failure
from efprof.facts.device.memory_failure import (
    FailureState,
    evidence_of_device,
    evidence_of_state,
    failure_evidence,
    most_alive_site,
    what_failed,
    what_is_likely,
)
from efprof.facts.device.smaller_step import fit_step, gain_of, shortage_at_end, shortage_on
from efprof.facts.run.run import Run
from efprof.facts.run.run_limits import MemoryFailure, catches_out_of_memory
from efprof.facts.source.sources import Sources
from efprof.fixes.settings import set_allocator
from efprof.model import Examination, Finding, Fix, Gain, NotRecorded, ThinEvidence, UnreadableInput
from efprof.units import format_bytes


def out_of_memory(run: Run) -> Examination:
    """Find why the device could not serve a request, and what would have served it.

    What it finds
    -------------
    The request that failed, whether memory was short or only in pieces, and the lines whose tensors filled the device:
    the line that failed is often not the one that took the memory.

    Why it matters
    --------------
    The run ended there, unless it went on: then a batch may be missing, or a slower algorithm was taken.

    Fix
    ---
    The setting of the allocator under which the recorded requests, the failed one among them, are all served; where
    there is none, the micro-batch that fits and the accumulation that makes up for it, under the user's own keys.

    Predicted gain
    --------------
    What the replay under that setting reserves less, or what the smaller micro-batch is expected to take less.
    """
    devices = _devices(run)
    makes = [partial(_finding, run, device, device.failure) for device in devices if device.failure is not None]
    if not makes and run.run_file.ended == "out_of_memory":
        makes = [partial(_at_end, run, run.get(MemoryFailure))]
    num_requests = sum(device.replay.allocations for device in devices)
    looked_at = f"{num_requests:,} requests on {len(devices)} {'device' if len(devices) == 1 else 'devices'}"
    return examination_of(looked_at if devices else "the error that ended the run", makes)


def _devices(run: Run) -> tuple[DeviceHistory, ...]:
    """None of a run whose end tells of the failure itself, where no snapshot does."""
    try:
        return run.get(DeviceMemory).trusted
    except (NotRecorded, UnreadableInput):
        if run.run_file.ended != "out_of_memory":
            raise
        return ()


def _at_end(run: Run, failure: MemoryFailure) -> Finding:
    """By the device's state where a snapshot shows it, else by the error alone."""
    try:
        state = run.get(FailureState)
    except (NotRecorded, UnreadableInput):
        return _by_error(run, failure)
    on_device = state.device.failure if failure.requested_bytes and failure.site else None
    found = _by_error(run, failure) if on_device is None else _finding(run, state.device, on_device)
    evidence = evidence_of_state(run, state, failure, found.blame)
    return replace(found, message=found.message + what_is_likely(state), evidence=evidence)


def _by_error(run: Run, failure: MemoryFailure) -> Finding:
    site = failure.site or most_alive_site(run, failure)
    if site is None:
        raise ThinEvidence("memory ran out, but no line of yours is in the traceback of the error that says so.")
    blame, shortage = run.get(Sources).line(site), shortage_at_end(run)
    return Finding(
        blame=blame,
        category="memory",
        headline="Out of memory",
        message=what_failed(run, failure),
        fix=fit_step(run, shortage),
        gain=gain_of(run, shortage),
        evidence=(run.get(Sources).snippet(blame), *failure_evidence(run, failure, shortage.kept_bytes)),
        severity="high",
    )


def _finding(run: Run, device: DeviceHistory, failure: Failure) -> Finding:
    site = failure.site or _site_of_error(run, device) or failure.most_held_site
    if site is None:
        raise ThinEvidence(
            f"a request for {format_bytes(failure.requested_bytes)} failed, but no stack of device "
            f"{device.history.device} in {device.file} names a line of yours; record with stacks."
        )
    blame = run.get(Sources).line(site)
    headline = "Out of memory: free memory lies in pieces" if failure.is_fragmentation else "Out of memory"
    is_survived = catches_out_of_memory(run)
    return Finding(
        blame=blame,
        category="memory",
        headline=f"{headline}, and the program went on" if is_survived else headline,
        message=why_it_failed(device, failure),
        fix=_fix(run, device, failure),
        gain=_gain(run, device, failure),
        evidence=evidence_of_device(run, device, failure, blame),
        severity="low" if is_survived else "high",
    )


def _site_of_error(run: Run, device: DeviceHistory) -> str | None:
    """A backward pass asks in a thread without Python; its error comes out of the line that called it."""
    with suppress(NotRecorded):
        error = run.get(MemoryFailure)
        return error.site if device.file.rpartition("/")[0] in ("", error.rank_folder.name) else None
    return None


def _survivor(device: DeviceHistory) -> Trial | None:
    return device.best if device.best is not None and not device.best.outcome.is_out_of_memory else None


def _fix(run: Run, device: DeviceHistory, failure: Failure) -> Fix:
    """The allocator's setting where that alone would have served; the batch then only in words, should it not do."""
    survivor, smaller = _survivor(device), fit_step(run, shortage_on(run, device, failure))
    if survivor is not None:
        old = device.what_if.recorded_configuration
        fallback = f"Should that not be enough: {smaller.summary}" if smaller.changes else ""
        return set_allocator(old, survivor.configuration, caution=" ".join([*survivor.warnings, fallback]).strip())
    tried = f"No setting of the allocator that was tried would have served the request: {what_is_missing(failure)}."
    if not device.trials:
        tried = f"No history tells whether a setting of the allocator would have served it: {what_is_missing(failure)}."
    return replace(smaller, summary=f"{smaller.summary} {tried}" if smaller.changes else f"{tried} {smaller.summary}")


def _gain(run: Run, device: DeviceHistory, failure: Failure) -> Gain:
    if (survivor := _survivor(device)) is None:
        return gain_of(run, shortage_on(run, device, failure))
    return Gain(
        basis="replay",
        explanation="the recorded requests replayed: under these settings all are served, the failed one too",
        peak_bytes=max(0, device.what_if.saved_bytes(survivor.outcome)),
    )
