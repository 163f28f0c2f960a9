"""What the replay of a snapshot says of each device, as the command line and its JSON give it."""

from dataclasses import asdict
from pathlib import Path
from typing import Literal

import msgspec

from efprof.artifacts.snapshot import read_snapshot
from efprof.facts.allocator.advice import best_of, try_configurations, worth_a_try
from efprof.facts.allocator.history import devices_of, history_of
from efprof.facts.allocator.replay import POSSIBLE_CAUSE, replay
from efprof.facts.allocator.what_if import Outcome, WhatIf
from efprof.model import NotRecorded


class DeviceReplay(msgspec.Struct, kw_only=True):
    """One device; the counts are None where nothing could be replayed, for the `reason` given."""

    device: int
    replayable: bool
    reason: str | None = None
    allocations: int | None = None
    addresses_equal: int | None = None
    segments: int | None = None
    segments_equal: int | None = None
    peak_reserved_recorded_bytes: int | None = None
    peak_reserved_replayed_bytes: int | None = None
    peak_allocated_bytes: int | None = None


class Prediction(msgspec.Struct, kw_only=True):
    """What the model says of one configuration; low and high are over the layouts that were tried.

    `start` is "warm" where it begins with what was cached before the recording, which is known for the recorded
    settings only, and "cold" where it begins with nothing cached: two are comparable where both start alike.
    """

    conf: str
    peak_reserved_bytes: int
    peak_reserved_low_bytes: int
    peak_reserved_high_bytes: int
    stranded_bytes: int
    device_allocs: int
    device_frees: int
    retries: int
    out_of_memory: bool
    start: Literal["warm", "cold"] = "cold"
    warnings: tuple[str, ...] = ()


class DevicePredictions(msgspec.Struct, kw_only=True):
    """One device; `best` names the configuration with the lowest peak, where one beats the recorded settings.

    `recorded_cold` is what the recorded settings make of the cold start that the predictions begin with; None where
    the recording itself began cold. With a `num_layouts` of 1, as in a very long recording, low and high do not tell
    how far another layout would move a peak.
    """

    device: int
    replayable: bool
    reason: str | None = None
    match_share: float | None = None
    capacity_bytes: int | None = None
    num_layouts: int | None = None
    peak_reserved_recorded_bytes: int | None = None
    recorded: Prediction | None = None
    recorded_cold: Prediction | None = None
    predictions: list[Prediction] = []
    best: str | None = None


class FileReplay(msgspec.Struct, kw_only=True):
    file: str
    devices: list[DeviceReplay]


class FilePredictions(msgspec.Struct, kw_only=True):
    file: str
    devices: list[DevicePredictions]


def replay_file(path: Path) -> FileReplay:
    """Replay each device of a snapshot; raises UnreadableInput."""
    snapshot = read_snapshot(path)
    devices = []
    for device in devices_of(snapshot) or [0]:
        try:
            found = asdict(replay(history_of(snapshot, device)))
            devices.append(DeviceReplay(device=device, replayable=True, **found))
        except NotRecorded as error:
            devices.append(DeviceReplay(device=device, replayable=False, reason=_sentence(error)))
    return FileReplay(file=str(path), devices=devices)


def predict_file(path: Path, configurations: tuple[str, ...], *, capacity: int | None = None) -> FilePredictions:
    """The configurations, or those worth a try, on each device; raises UnreadableInput, BadConfiguration."""
    snapshot = read_snapshot(path)
    devices = []
    for device in devices_of(snapshot) or [0]:
        try:
            history = history_of(snapshot, device)
            result = replay(history)
            if not result.is_trusted:
                raise NotRecorded(
                    f"The model places {result.match_share:.1%} of its blocks and segments where they were; below 99 % "
                    f"it predicts nothing. {POSSIBLE_CAUSE}"
                )
        except NotRecorded as error:
            devices.append(DevicePredictions(device=device, replayable=False, reason=_sentence(error)))
            continue
        what_if = WhatIf(history, capacity=capacity)
        trials = try_configurations(what_if, configurations or worth_a_try(what_if))
        best, cold = best_of(what_if, trials), what_if.recorded_cold
        devices.append(
            DevicePredictions(
                device=device,
                replayable=True,
                match_share=result.match_share,
                capacity_bytes=what_if.capacity,
                num_layouts=what_if.num_layouts,
                peak_reserved_recorded_bytes=result.peak_reserved_recorded_bytes,
                recorded=_prediction_of(what_if, what_if.recorded_configuration, what_if.recorded),
                recorded_cold=None if cold is None else _prediction_of(what_if, what_if.recorded_configuration, cold),
                predictions=[_prediction_of(what_if, one.configuration, one.outcome, one.warnings) for one in trials],
                best=best.configuration if best else None,
            )
        )
    return FilePredictions(file=str(path), devices=devices)


def _prediction_of(what_if: WhatIf, configuration: str, outcome: Outcome, warnings: tuple[str, ...] = ()) -> Prediction:
    return Prediction(
        conf=configuration,
        peak_reserved_bytes=outcome.peak_reserved_bytes,
        peak_reserved_low_bytes=outcome.peak_reserved_low_bytes,
        peak_reserved_high_bytes=outcome.peak_reserved_high_bytes,
        stranded_bytes=outcome.stranded_bytes,
        device_allocs=outcome.calls.num_taken,
        device_frees=outcome.calls.num_returned,
        retries=outcome.calls.num_retries,
        out_of_memory=outcome.is_out_of_memory,
        start="warm" if what_if.is_warm(outcome) else "cold",
        warnings=warnings,
    )


def _sentence(error: Exception) -> str:
    text = str(error)
    return text[:1].upper() + text[1:]
