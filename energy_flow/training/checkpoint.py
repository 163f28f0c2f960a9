"""Checkpoints: all that a run needs to go on, in a folder each (see `checkpoint_folder.py`).

model.safetensors    weights and persistent buffers
state.pt             optimizer, random states, progress, settings, and what the trainer adds; holds no code to run
"""

from __future__ import annotations

import dataclasses
import logging
import pickle
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from energy_flow.energy_config import EnergyConfig
from energy_flow.errors import EnergyFlowError
from energy_flow.training.checkpoint_folder import find_checkpoints, remove_all_but_newest, write_folder

FORMAT_VERSION = 2
_WEIGHTS, _STATE = "model.safetensors", "state.pt"
_OF_OLDER_VERSION = "checkpoint.pt"  # format 1 was this one file
_DAMAGED = (  # what reading was seen to raise where a file was cut, or any byte of it changed
    *(OSError, SafetensorError, pickle.UnpicklingError, EOFError),
    *(RuntimeError, ValueError, LookupError, TypeError, AttributeError),
)
_MODEL_SECTIONS = ("lattice.", "carrier.", "bridge.")
_LENGTH = "training.steps"
_HARMLESS_SETTINGS = {  # they, and those of `runtime`, concern speed, length and logging
    *("flow.compaction_lot", "flow.checkpoint_steps"),
    *("data.num_workers", "data.prefetch_factor", "data.persistent_workers", "data.pin_memory"),
    *(_LENGTH, "training.log_interval", "training.checkpoint_interval", "training.keep_checkpoints"),
    *("training.validation_interval", "training.validation_batches"),
    *("training.gradient_detail_interval", "training.memory_cleanup_interval"),
}
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a run has come."""

    step: int  # optimizer steps tried, the skipped ones included
    num_batches: int  # micro-batches that each process has taken
    num_processes: int = 1


class _Saved(NamedTuple):
    folder: Path
    weights: dict[str, Tensor]
    state: dict[str, Any]


def write_checkpoint(
    out: Path,
    *,
    config: EnergyConfig,
    progress: Progress,
    model: nn.Module,
    optimizer: Optimizer,
    extra: Mapping[str, Any],
) -> Path:
    """Write the present state to a folder of its own and return it; the newest `training.keep_checkpoints` stay.

    `extra` may hold tensors and plain Python values, nothing else. The random states are those of this process.

    Raises:
        EnergyFlowError: when it cannot be written; the earlier checkpoints are left as they were.

    """
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    state = {
        "format_version": FORMAT_VERSION,
        "config": dataclasses.asdict(config),
        "progress": dataclasses.asdict(progress),
        "optimizer": optimizer.state_dict(),
        "random": _random_states(),
        "extra": dict(extra),
    }

    def write_files(folder: Path) -> None:
        save_file(weights, folder / _WEIGHTS)
        _save_state(state, folder / _STATE)

    try:
        folder = write_folder(out, progress.step, write_files)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise EnergyFlowError(f"cannot write a checkpoint to {out} ({reason}); make room there") from error
    remove_all_but_newest(folder, config.training.keep_checkpoints)
    return folder


def load_latest(
    out: Path, *, config: EnergyConfig, model: nn.Module, optimizer: Optimizer
) -> tuple[Progress, dict[str, Any]]:
    """Put the newest whole checkpoint into model, optimizer and random generators; return its progress and `extra`.

    A learning rate that is a tensor stays the same tensor and gets the saved value; all other settings of the
    optimizer stay as they are now.

    Raises:
        EnergyFlowError: naming the folder, when there is none, or it is of another model or version.

    """
    saved = _newest_whole(out)
    _compare_settings(saved, config)
    try:
        model.load_state_dict(saved.weights)
        _load_optimizer(optimizer, saved.state["optimizer"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise EnergyFlowError(
            f"the checkpoint {saved.folder} is of a version with another model; train anew"
        ) from error
    _set_random_states(saved.state["random"])
    return Progress(**saved.state["progress"]), saved.state["extra"]


def _save_state(state: dict[str, Any], file: Path) -> None:
    try:
        with file.open("wb") as stream:
            torch.save(state, stream)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # which torch hides behind an error of its own
            raise error.__context__ from None
        raise


def _newest_whole(out: Path) -> _Saved:
    folders = find_checkpoints(out)
    for folder in folders:
        try:
            return _read(folder)
        except _DAMAGED as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            _LOG.warning("the checkpoint %s cannot be read (%s); trying the one before", folder, reason)
    if folders:
        raise EnergyFlowError(f"no checkpoint in {out} can be read; train anew without --resume")
    if (out / _OF_OLDER_VERSION).exists():
        raise EnergyFlowError(f"{out / _OF_OLDER_VERSION} is of an older version of energy_flow; train anew")
    raise EnergyFlowError(f"there is no checkpoint in {out}; name the --out of a run, or train anew")


def _read(folder: Path) -> _Saved:
    state = torch.load(folder / _STATE, map_location="cpu", weights_only=True)
    if state["format_version"] != FORMAT_VERSION:
        raise EnergyFlowError(
            f"the checkpoint {folder} is of format {state['format_version']} and this program reads {FORMAT_VERSION}; "
            "go on with the version of energy_flow that wrote it"
        )
    return _Saved(folder, load_file(folder / _WEIGHTS), state)


def _compare_settings(saved: _Saved, config: EnergyConfig) -> None:
    """Refuse another model by its first differing setting; warn of other settings that make it another run."""
    different = []
    for setting, there, here in _differences(saved.state["config"], dataclasses.asdict(config)):
        difference = f"{setting}: {there} there, {here} here"
        if setting.startswith(_MODEL_SECTIONS):
            raise EnergyFlowError(
                f"the checkpoint {saved.folder} is of another model ({difference}); train with its settings"
            )
        different.append(difference)
    if different:
        _LOG.warning("the run in %s goes on with other settings (%s)", saved.folder, "; ".join(different))


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[tuple[str, object, object]]:
    """The settings that both know, that differ, and that may change a number of a step."""
    # A learning rate that falls does so over the length of the run.
    is_length_harmless = here["optimizer"]["final_learning_rate_share"] == 1
    harmless = _HARMLESS_SETTINGS if is_length_harmless else _HARMLESS_SETTINGS - {_LENGTH}
    for section, fields in here.items():
        if section in ("name", "runtime"):
            continue
        for name, value in fields.items():
            setting, their_value = f"{section}.{name}", there.get(section, {}).get(name, value)
            if their_value != value and setting not in harmless:
                yield setting, their_value, value


def _load_optimizer(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    present = [dict(group) for group in optimizer.param_groups]
    groups = [
        {**now, "params": then["params"], "lr": then["lr"]}
        for now, then in zip(present, saved["param_groups"], strict=True)
    ]
    optimizer.load_state_dict({**saved, "param_groups": groups})
    for group, now in zip(optimizer.param_groups, present, strict=True):
        if isinstance(now["lr"], Tensor):  # whoever sets the learning rate holds this very tensor
            group["lr"] = now["lr"].copy_(torch.as_tensor(group["lr"]))
        else:
            group["lr"] = float(group["lr"])


def _random_states() -> dict[str, Any]:
    """The states of all generators that a step may draw from, in types that are safe to load."""
    version, words, next_gauss = random.getstate()
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": [version, list(words), next_gauss],
        "numpy": [name, np.asarray(keys).tolist(), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _set_random_states(states: dict[str, Any]) -> None:
    version, words, next_gauss = states["python"]
    random.setstate((version, tuple(words), next_gauss))
    np.random.set_state(tuple(states["numpy"]))
    torch.set_rng_state(states["torch"])
    if torch.cuda.is_available():
        for device, state in zip(range(torch.cuda.device_count()), states["cuda"], strict=False):
            torch.cuda.set_rng_state(state, device)
