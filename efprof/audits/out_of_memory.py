"""A request that the device could not serve."""

from efprof.facts.allocator.advice import Trial
from efprof.facts.device_evidence import (
    composition_numbers,
    how_replay_is_known,
    owner_map,
    reserved_series,
    trial_bars,
    trial_table,
    what_is_missing,
    why_it_failed,
)
from efprof.facts.device_memory import DeviceHistory, DeviceMemory, Failure
from efprof.facts.run import Run
from efprof.facts.segment_evidence import segment_map
from efprof.facts.sources import Sources
from efprof.fixes.allocator_setting import set_allocator
from efprof.model import Examination, Finding, Fix, Gain, ThinEvidence
from efprof.units import format_bytes


def out_of_memory(run: Run) -> Examination:
    """Find why the device could not serve a request, and what would have served it.

    What it finds
    -------------
    The request that failed, whether memory was short or only in pieces, and the lines whose tensors filled the device:
    the line that failed is often not the one that took the memory.

    Why it matters
    --------------
    The run ended there.

    Fix
    ---
    The setting of the allocator under which the recorded requests, the failed one among them, are all served; where
    there is none, keeping less at the line that holds most.

    Predicted gain
    --------------
    What the replay under that setting reserves less; where memory is short, nothing is claimed.
    """
    devices = run.get(DeviceMemory).trusted
    num_requests = sum(device.replay.allocations for device in devices)
    looked_at = f"{num_requests:,} requests on {len(devices)} {'device' if len(devices) == 1 else 'devices'}"
    failed = [(device, device.failure) for device in devices]
    findings = tuple(_finding(run, device, failure) for device, failure in failed if failure is not None)
    return Examination(looked_at=looked_at, findings=findings)


def _finding(run: Run, device: DeviceHistory, failure: Failure) -> Finding:
    sources, instant = run.get(Sources), failure.instant
    most = failure.most_held_site
    site = failure.site or most
    if site is None:
        raise ThinEvidence(
            f"a request for {format_bytes(failure.requested_bytes)} failed, but no stack in {device.file} names a line "
            "of yours; record with stacks."
        )
    blame, most_held = sources.line(site), sources.line(most) if most else None
    return Finding(
        blame=blame,
        category="memory",
        headline="Out of memory: free memory lies in pieces" if failure.is_fragmentation else "Out of memory",
        message=why_it_failed(device, failure),
        fix=_fix(device, failure),
        gain=_gain(device),
        evidence=(
            reserved_series(device, ((float(instant.index + 1), "the request that failed"),)),
            sources.snippet(blame),
            owner_map(instant, most_held, "What filled the device"),
            composition_numbers(instant, "Reserved memory when the request failed"),
            segment_map(device, instant.index, "when the request failed", most_held, "Where it lay"),
            trial_bars(device),
            trial_table(device),
            how_replay_is_known(device),
        ),
        severity="high",
    )


def _survivor(device: DeviceHistory) -> Trial | None:
    return device.best if device.best is not None and not device.best.outcome.is_out_of_memory else None


def _fix(device: DeviceHistory, failure: Failure) -> Fix:
    survivor = _survivor(device)
    if survivor is not None:
        old, caution = device.what_if.recorded_configuration, " ".join(survivor.warnings)
        return set_allocator(old, survivor.configuration, caution=caution)
    return Fix(
        summary="No setting of the allocator that was tried would have served the request: "
        f"{what_is_missing(failure)}, or take smaller micro-batches and accumulate.",
        applicability="manual",
    )


def _gain(device: DeviceHistory) -> Gain:
    survivor = _survivor(device)
    if survivor is None:
        return Gain(basis="replay", explanation="none of the settings that were tried serves the request")
    saved = device.what_if.recorded.peak_reserved_bytes - survivor.outcome.peak_reserved_bytes
    return Gain(
        basis="replay",
        explanation="the recorded requests replayed: under these settings all are served, the failed one too",
        peak_bytes=max(0, saved),
    )
