"""Device memory that is reserved, free, and of no use."""

from functools import partial

from efprof.facts.allocator.what_if import Trial
from efprof.facts.device.device_evidence import (
    composition_numbers,
    how_replay_is_known,
    line_of,
    owner_map,
    reserved_series,
    segment_map,
    trial_bars,
)
from efprof.facts.device.device_memory import DeviceHistory, DeviceMemory
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.fixes.settings import set_allocator
from efprof.model import Examination, Finding, Gain, ThinEvidence
from efprof.units import MIB, format_bytes, format_share

MIN_SAVED_SHARE = 0.05
"""Of the reserved peak. Of 36 public recordings the best setting saved a median of 2 %, and 26 % at most."""
MIN_SAVED_BYTES = 64 * MIB
"""Three segments of the usual size: less is not what a device runs out of memory for."""


def fragmented_reserve(run: Run) -> Examination:
    """Find reserved memory that other settings of the allocator would not need.

    ## What it finds
    Free memory in segments that something small keeps from other use, and the lines whose tensors hold those segments.

    ## Why it matters
    The device runs out of memory although enough of it is free, only not in one piece.

    ## Fix
    The setting of the allocator that reserves least when this very program is replayed under it.

    ## Predicted gain
    The recorded requests replayed under both settings; the band is over layouts that the driver may choose.
    """
    devices = run.get(DeviceMemory).trusted
    num_requests = sum(device.replay.allocations for device in devices)
    looked_at = f"{num_requests:,} requests replayed under {1 + max(len(device.trials) for device in devices)} settings"
    better = [(device, best) for device in devices if (best := _better(device)) is not None]
    return Examination.of(looked_at, [partial(_finding, run, device, best) for device, best in better])


def _better(device: DeviceHistory) -> Trial | None:
    best = device.best
    if best is None or device.what_if.recorded.is_out_of_memory:  # that is another audit's
        return None
    saved, parts = device.what_if.saved_bytes(best.outcome), device.peak.composition
    least = max(MIN_SAVED_BYTES, MIN_SAVED_SHARE * device.what_if.recorded.peak_reserved_bytes)
    # Whole free segments are the cache: they go back to the driver when it is asked for more than it has.
    return best if min(saved, parts.stranded_bytes + parts.slack_bytes) >= least else None


def _finding(run: Run, device: DeviceHistory, best: Trial) -> Finding:
    parts, saved = device.peak.composition, device.what_if.saved_bytes(best.outcome)
    blame = line_of(run.get(Sources), device.peak)
    if blame is None:
        raise ThinEvidence(
            f"no stack of device {device.history.device} in {device.file} names a line of yours, so no line can be "
            f"blamed; 'efprof allocator what-if' says which setting would reserve {format_bytes(saved)} less."
        )
    idle = parts.stranded_bytes + parts.slack_bytes
    return Finding(
        blame=blame,
        category="memory",
        headline="Reserved memory lies idle in pieces",
        message=f"When device {device.history.device} had most reserved, {format_bytes(idle)} of "
        f"{format_bytes(parts.reserved_bytes)} ({format_share(idle / max(1, parts.reserved_bytes))}) were unused.",
        why="It lies in pieces between tensors that live on; this line's hold most of these segments.",
        fix=set_allocator(device.what_if.history.configuration, best.configuration, caution=" ".join(best.warnings)),
        gain=_gain(device, best),
        evidence=(
            reserved_series(device, ((float(device.peak_index + 1), "peak"),), blame),
            composition_numbers(device.peak, "Reserved memory at its peak"),
            owner_map(device.peak, blame, "Who has it"),
            segment_map(device, device.peak, "at the peak", blame, "Where it lies"),
            trial_bars(device),
            how_replay_is_known(device),
        ),
    )


def _gain(device: DeviceHistory, best: Trial) -> Gain:
    recorded, outcome = device.what_if.compared, best.outcome
    return Gain(
        basis="replay",
        explanation="the recorded requests replayed under the recorded settings and under these",
        peak_bytes=device.what_if.saved_bytes(outcome),
        of_bytes=recorded.peak_reserved_bytes,
        peak_bytes_interval=(
            float(recorded.peak_reserved_low_bytes - outcome.peak_reserved_high_bytes),
            float(recorded.peak_reserved_high_bytes - outcome.peak_reserved_low_bytes),
        ),
    )
