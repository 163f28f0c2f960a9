"""Chooses the device of a run, sets what torch keeps for the whole process, and says what the device cannot do."""

import logging
import re

import torch

from energy_flow.energy_config import RuntimeConfig
from energy_flow.errors import EnergyFlowError
from energy_flow.processes import ALONE, Processes

logger = logging.getLogger(__name__)

_NAMES = re.compile(r"auto|cpu|mps|cuda(:\d+)?")
_FIRST_MACOS_WITH_BFLOAT16 = 14


def choose_device(runtime: RuntimeConfig, processes: Processes = ALONE) -> torch.device:
    """The device that `runtime.device` asks for, or under `auto` the fastest kind that there is.

    Of several processes on a machine, each gets the GPU of its number.

    Raises:
        EnergyFlowError: when the device is unknown, not in this machine, or not one that processes can share out.

    """
    name = runtime.device
    if not _NAMES.fullmatch(name):
        raise EnergyFlowError(f"runtime.device={name} is no device; choose auto, cpu, cuda, cuda:<number> or mps")
    if processes.world_size > 1:
        return _device_of_process(name, processes.local_rank)
    device = torch.device(_fastest_kind() if name == "auto" else name)
    if not _is_present(device):
        raise EnergyFlowError(f"runtime.device={name} is not in this machine; choose auto, or {_fastest_kind()}")
    return device


def prepare_process(runtime: RuntimeConfig) -> None:
    """Set torch's threads as configured, and whether float32 products on CUDA may be in TF32."""
    if runtime.num_threads:
        torch.set_num_threads(runtime.num_threads)
    torch.set_float32_matmul_precision("high" if runtime.tf32 else "highest")


def prepare_device(device: torch.device, runtime: RuntimeConfig) -> None:
    """Make `device` the process's own, and log in one line which it is and what is given up on it.

    Raises:
        EnergyFlowError: when the device cannot compute in `runtime.precision`.

    """
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    if runtime.precision == "bfloat16" and not _has_bfloat16(device):
        raise EnergyFlowError(
            f"runtime.precision=bfloat16 does not run on {_name_of(device)}; choose float16 or float32"
        )
    parts = [f"training on {_name_of(device)} in {runtime.precision}", *unsupported_settings(device, runtime)]
    logger.info("%s", "; ".join(parts))


def return_unused_memory(device: torch.device) -> None:
    """Give what the allocator keeps for later back to the device; the next steps then take it anew."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def unsupported_settings(device: torch.device, runtime: RuntimeConfig) -> list[str]:
    """What the trainer does without, or does slowly, on `device`, each in a few words."""
    if device.type == "cuda":
        is_emulated = runtime.precision == "bfloat16" and not torch.cuda.is_bf16_supported(including_emulation=False)
        return ["bfloat16 is emulated, and float16 faster"] if is_emulated else []
    if device.type == "mps":
        return [
            "batches are not copied beside the computation",
            "the GPU's memory and utilisation are not told",
            "landed flows stay in the computation, and values are read by waiting for the step before",
            "checked on no such device",
        ]
    losses = ["no CUDA device to use was found"] if runtime.device == "auto" else []
    if runtime.precision != "float32":
        losses.append(f"{runtime.precision} saves memory, but time only where the processor computes in it")
    return losses


def _device_of_process(name: str, local_rank: int) -> torch.device:
    if name == "mps" or ":" in name:
        raise EnergyFlowError(
            f"runtime.device={name} is one device, and torchrun started several processes; choose auto, cuda or cpu"
        )
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    if not _is_present(device):
        raise EnergyFlowError(
            f"runtime.device={name} leaves process {local_rank} of this machine, which has "
            f"{torch.cuda.device_count()} CUDA devices, without one; start torchrun with that --nproc-per-node"
        )
    return device


def _fastest_kind() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _is_present(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    return device.type == "cpu" or torch.backends.mps.is_available()


def _has_bfloat16(device: torch.device) -> bool:
    if device.type == "mps":  # torch would only warn, and run in float32
        return torch.backends.mps.is_macos_or_newer(_FIRST_MACOS_WITH_BFLOAT16, 0)
    return device.type != "cuda" or torch.cuda.is_bf16_supported()


def _name_of(device: torch.device) -> str:
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
