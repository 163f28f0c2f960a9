"""What the replay of a snapshot says of each device, as the command line and its JSON give it."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from efprof.artifacts.snapshot import read_snapshot
from efprof.facts.allocator.history import History, devices_of, history_of
from efprof.facts.allocator.replay import Replay, replay
from efprof.facts.allocator.what_if import Trial, WhatIf, best_of, try_configurations, worth_a_try
from efprof.model import NotRecorded, frozen_dataclass
from efprof.units import with_capital

D = TypeVar("D", Replay, "DevicePredictions")


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
    newer: str = ""


def replay_file(path: Path) -> list[Replay | NotReplayable]:
    """Replay each device of a snapshot; raises UnreadableInput."""
    return _of_devices(path, replay)


def predict_file(
    path: Path, configurations: tuple[str, ...], *, capacity: int | None = None
) -> list[DevicePredictions | NotReplayable]:
    """The configurations, or those worth a try, on each device; raises UnreadableInput, BadConfiguration."""
    return _of_devices(path, partial(_predictions, configurations, capacity))


def _of_devices(path: Path, result_of: Callable[[History], D]) -> list[D | NotReplayable]:
    snapshot = read_snapshot(path)
    found: list[D | NotReplayable] = []
    for device in devices_of(snapshot) or [0]:
        try:
            newer = snapshot.newer and f"{path.name} {snapshot.newer}"
            found.append(replace(result_of(history_of(snapshot, device)), newer=newer))
        except NotRecorded as error:
            found.append(NotReplayable(device=device, reason=with_capital(str(error))))
    return found


def _predictions(configurations: tuple[str, ...], capacity: int | None, history: History) -> DevicePredictions:
    result = replay(history)
    if not result.is_trusted:
        raise NotRecorded(result.why_not_trusted(f"device {history.device}"))
    what_if = WhatIf(history, capacity=capacity)
    trials = try_configurations(what_if, configurations or worth_a_try(what_if))
    best, cold, name = best_of(what_if, trials), what_if.recorded_cold, history.configuration
    return DevicePredictions(
        device=history.device,
        match_share=result.match_share,
        capacity_bytes=what_if.capacity,
        num_layouts=what_if.num_layouts,
        peak_reserved_recorded_bytes=result.peak_reserved_recorded_bytes,
        recorded=Trial(configuration=name, outcome=what_if.recorded),
        recorded_cold=None if cold is None else Trial(configuration=name, outcome=cold),
        predictions=trials,
        best=best.configuration if best else None,
    )


def form_of_device(device: Replay | DevicePredictions | NotReplayable) -> dict[str, Any]:
    """As `--json` prints it: flat, under the names of docs/cuda-memory.md; counts are None where there are none."""
    form = {"replayable": True, "reason": None, **asdict(device)}
    match device:
        case NotReplayable():
            return dict.fromkeys(Replay.__annotations__) | form | {"replayable": False, "predictions": []}
        case Replay():
            return form
    return {
        **form,
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
