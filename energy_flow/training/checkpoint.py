"""Checkpoints: everything that a run needs to go on, in one file that is either whole or not there."""

from __future__ import annotations

import dataclasses
import os
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from energy_flow.energy_config import EnergyConfig
from energy_flow.errors import EnergyFlowError

FORMAT_VERSION = 1


def save_checkpoint(
    file: Path,
    *,
    config: EnergyConfig,
    step: int,
    model: nn.Module,
    optimizer: Optimizer,
    scaler: torch.amp.GradScaler,
) -> None:
    """Write the state after optimizer step `step`; a reader sees the old file or the new one, never a part."""
    state = {
        "format_version": FORMAT_VERSION,
        "config": dataclasses.asdict(config),
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
    }
    partial = file.with_name(f".{file.name}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as stream:
            torch.save(state, stream)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
    except OSError as error:
        raise EnergyFlowError(f"cannot write the checkpoint {file}: {error.strerror}") from error


def load_checkpoint(file: Path, *, model: nn.Module, optimizer: Optimizer, scaler: torch.amp.GradScaler) -> int:
    """Put a checkpoint's state into model, optimizer and scaler; return the optimizer steps behind it.

    Raises:
        EnergyFlowError: naming the file, when it is missing, no checkpoint, or of a model of another size.

    """
    state = _read(file)
    try:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scaler.load_state_dict(state["scaler"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise EnergyFlowError(
            f"the checkpoint {file} is of a model of another size; train with the configuration it came from"
        ) from error
    return int(state["step"])


def _read(file: Path) -> dict[str, Any]:
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise EnergyFlowError(f"there is no checkpoint {file}") from error
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError) as error:
        raise EnergyFlowError(f"{file} is no checkpoint that can be read") from error
    if not isinstance(state, dict) or state.get("format_version") != FORMAT_VERSION:
        raise EnergyFlowError(f"{file} is no energy_flow checkpoint of format {FORMAT_VERSION}")
    return state
