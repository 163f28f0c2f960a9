"""What the replay of a snapshot says of each device, as the command line and its JSON give it."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from efprof.artifacts.snapshot import read_snapshot
from efprof.facts.allocator.history import devices_of, history_of
from efprof.facts.allocator.replay import Replay, replay
from efprof.facts.allocator.what_if import Trial, WhatIf, best_of, try_configurations, worth_a_try
from efprof.model import NotRecorded, frozen_dataclass


@frozen_dataclass
class DeviceReplay:
    device: int
    replay: Replay


@frozen_dataclass
class NotReplayable:
    """One device that the model cannot replay, or not well enough to predict anything."""

    device: int
    reason: str


@frozen_dataclass
class DevicePredictions:
    """One device; `best` names the configuration with the lowest peak, where one beats the recorded settings.

    `recorded` starts from what was cached before the recording, as only for the recorded settings is known;
    `recorded_cold` and all `predictions` with nothing cached. It is None where the recording itself began cold.
    """

    device: int
    match_share: float
    capacity_bytes: int | None
    num_layouts: int
    peak_reserved_recorded_bytes: int
    recorded: Trial
    recorded_cold: Trial | None
    predictions: Sequence[Trial]
    best: str | None


def replay_file(path: Path) -> list[DeviceReplay | NotReplayable]:
    """Replay each device of a snapshot; raises UnreadableInput."""
    snapshot = read_snapshot(path)
    devices: list[DeviceReplay | NotReplayable] = []
    for device in devices_of(snapshot) or [0]:
        try:
            devices.append(DeviceReplay(device=device, replay=replay(history_of(snapshot, device))))
        except NotRecorded as error:
            devices.append(NotReplayable(device=device, reason=_sentence(error)))
    return devices


def predict_file(
    path: Path, configurations: tuple[str, ...], *, capacity: int | None = None
) -> list[DevicePredictions | NotReplayable]:
    """The configurations, or those worth a try, on each device; raises UnreadableInput, BadConfiguration."""
    snapshot = read_snapshot(path)
    devices: list[DevicePredictions | NotReplayable] = []
    for device in devices_of(snapshot) or [0]:
        try:
            history = history_of(snapshot, device)
            result = replay(history)
            if not result.is_trusted:
                raise NotRecorded(result.why_not_trusted(f"device {device}"))
        except NotRecorded as error:
            devices.append(NotReplayable(device=device, reason=_sentence(error)))
            continue
        what_if = WhatIf(history, capacity=capacity)
        trials = try_configurations(what_if, configurations or worth_a_try(what_if))
        best, cold, name = best_of(what_if, trials), what_if.recorded_cold, what_if.history.configuration
        devices.append(
            DevicePredictions(
                device=device,
                match_share=result.match_share,
                capacity_bytes=what_if.capacity,
                num_layouts=what_if.num_layouts,
                peak_reserved_recorded_bytes=result.peak_reserved_recorded_bytes,
                recorded=Trial(configuration=name, outcome=what_if.recorded),
                recorded_cold=None if cold is None else Trial(configuration=name, outcome=cold),
                predictions=trials,
                best=best.configuration if best else None,
            )
        )
    return devices


def form_of_device(device: DeviceReplay | DevicePredictions | NotReplayable) -> dict[str, Any]:
    """As `--json` prints it: flat, under the names of docs/cuda-memory.md; counts are None where there are none."""
    form = {"device": device.device, "replayable": True, "reason": None}
    match device:
        case NotReplayable(reason=reason):
            counts = dict.fromkeys(Replay.__annotations__)
            return form | counts | {"replayable": False, "reason": reason, "predictions": []}
        case DeviceReplay(replay=found):
            return form | asdict(found)
    return {
        **form,
        **asdict(device),
        "recorded": form_of_trial(device.recorded),
        "recorded_cold": device.recorded_cold and form_of_trial(device.recorded_cold),
        "predictions": [form_of_trial(one) for one in device.predictions],
    }


def form_of_trial(trial: Trial) -> dict[str, Any]:
    outcome = trial.outcome
    return {
        "conf": trial.configuration,
        "peak_reserved_bytes": outcome.peak_reserved_bytes,
        "peak_reserved_low_bytes": outcome.peak_reserved_low_bytes,
        "peak_reserved_high_bytes": outcome.peak_reserved_high_bytes,
        "stranded_bytes": outcome.stranded_bytes,
        "device_allocs": outcome.calls.num_taken,
        "device_frees": outcome.calls.num_returned,
        "driver_ms": outcome.driver_ms,
        "retries": outcome.calls.num_retries,
        "out_of_memory": outcome.is_out_of_memory,
        "warnings": trial.warnings,
    }


def _sentence(error: Exception) -> str:
    text = str(error)
    return text[:1].upper() + text[1:]
