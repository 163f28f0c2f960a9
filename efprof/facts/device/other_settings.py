"""What a device's recorded requests would reserve under other settings of the allocator, and how far that is known."""

from typing import Literal

from efprof.facts.allocator.what_if import Outcome, Trial, WhatIf
from efprof.facts.device.device_memory import DeviceHistory
from efprof.model import Alternative, Alternatives, Gain, Narrative

DEFAULT = "torch's default"
COLD = "as recorded, cold"
"""Of the recorded settings from the cold start that all others begin with: what these are to be compared with."""


def trial_bars(what_if: WhatIf, trials: list[Trial], best: Trial | None) -> Alternatives:
    """What each setting would reserve, between which ends, and what the device has."""
    recorded = [_alternative(what_if.history.configuration, what_if.recorded, "recorded")]
    recorded += [] if what_if.recorded_cold is None else [_alternative(COLD, what_if.recorded_cold, "other")]
    others = [
        _alternative(trial.configuration, trial.outcome, "best" if trial is best else "other") for trial in trials
    ]
    return Alternatives(
        title="Peak of reserved memory under other settings, as the replay predicts it",
        unit="bytes",
        alternatives=(*recorded, *others),
        limit=None
        if (limit := what_if.limit_bytes) is None
        else (float(limit), "what the device has for this program"),
    )


def how_replay_is_known(device: DeviceHistory) -> Narrative:
    replay = device.replay
    cold = "" if not device.what_if.script.num_live else (
        " The recording began when memory was in use already: under other settings the replay starts cold with what "
        f"was allocated then, as in '{COLD}', which they are to be compared with; 'at most' adds what that cold start "
        "misses under the recorded settings."
    )  # fmt: skip
    return Narrative.of(
        f"{device.file} was replayed by the allocator's own rules: {replay.addresses_equal:,} of "
        f"{replay.allocations:,} blocks lie at the address they had, {replay.segments_equal:,} of "
        f"{replay.segments:,} segments and mappings have their size.{cold}",
        "Frees keep the order they were recorded in; a setting that changes when another stream is done may change "
        "that. A band goes over several layouts of addresses.",
    )


def replayed_gain(device: DeviceHistory, survivor: Trial) -> Gain:
    """Of a setting under which no request fails."""
    return Gain(
        basis="replay",
        explanation="the recorded requests replayed: under these settings all are served, the failed one too",
        peak_bytes=max(0, device.what_if.saved_bytes(survivor.outcome)),
    )


def _alternative(configuration: str, outcome: Outcome, role: Literal["recorded", "best", "other"]) -> Alternative:
    return Alternative(
        label=configuration or DEFAULT,
        value=float(outcome.peak_reserved_bytes),
        low=float(outcome.peak_reserved_low_bytes),
        high=float(outcome.peak_reserved_high_bytes),
        role=role,
        is_out_of_memory=outcome.is_out_of_memory,
    )
