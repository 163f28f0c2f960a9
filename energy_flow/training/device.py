"""Chooses the device of a run and sets what torch keeps for the whole process."""

import torch

from energy_flow.energy_config import RuntimeConfig
from energy_flow.errors import EnergyFlowError


def choose_device(runtime: RuntimeConfig) -> torch.device:
    """The device that `runtime.device` asks for, or under `auto` the fastest kind that there is.

    Raises:
        EnergyFlowError: when the device is unknown or not in this machine.

    """
    if runtime.device == "auto":
        return torch.device(_fastest_kind())
    try:
        device = torch.device(runtime.device)
    except RuntimeError as error:
        raise EnergyFlowError(
            f"runtime.device={runtime.device} is no device; choose auto, cpu, cuda, cuda:<number> or mps"
        ) from error
    if not _is_present(device):
        raise EnergyFlowError(
            f"runtime.device={runtime.device} is not in this machine; choose auto, or {_fastest_kind()}"
        )
    return device


def prepare_process(runtime: RuntimeConfig) -> None:
    """Set torch's threads as configured, and TF32 for float32 products on CUDA."""
    if runtime.num_threads:
        torch.set_num_threads(runtime.num_threads)
    torch.set_float32_matmul_precision("high")


def _fastest_kind() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _is_present(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    if device.type == "mps":
        return torch.backends.mps.is_available()
    return device.type == "cpu"
