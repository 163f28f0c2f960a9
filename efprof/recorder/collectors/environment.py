"""Adds to run.json what only the training process knows: versions, devices, settings, where memory is read from."""

import platform

import msgspec
import torch

import efprof
from efprof.artifacts.run_file import Device, read_run_file, write_run_file
from efprof.recorder.open_step import OpenStep
from efprof.recorder.session import Session


def start(session: Session) -> None:
    """Wait for the first step: by then the program has chosen its devices and settings."""
    is_written = False

    def write_once(_: OpenStep) -> None:
        nonlocal is_written
        if not is_written and session.rank_folder.name == "rank0":
            _write(session)
        is_written = True

    session.subscribe(session.loop.step_began, "environment", write_once)


def _write(session: Session) -> None:
    run = read_run_file(session.run_folder)
    run = msgspec.structs.replace(
        run, versions=_versions(), devices=_devices(), settings=_settings(), memory_source=session.memory.choose()
    )
    write_run_file(session.run_folder, run)


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "torch": str(torch.__version__), "efprof": efprof.__version__}
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    return versions


def _devices() -> list[Device]:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [
        Device(index=index, name=device.name, total_bytes=device.total_memory)
        for index, device in enumerate(properties)
    ]


def _settings() -> dict[str, str]:
    settings = {
        "intra-op threads": str(torch.get_num_threads()),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "anomaly detection": str(torch.is_anomaly_enabled()),
        "matmul precision": torch.get_float32_matmul_precision(),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        settings["cudnn benchmark"] = str(torch.backends.cudnn.benchmark)
        settings["CUDA allocator"] = torch.cuda.memory.get_allocator_backend()
        settings["memory fraction"] = str(torch.cuda.memory.get_per_process_memory_fraction())
    return settings
