"""Records what only the training process knows of its machine: versions, devices, settings, the use of the device.

How much of the device is in use beside what PyTorch has reserved is asked of the driver now and then. That starts no
CUDA, creates no context and waits for nothing: only the device that the training is on is asked, once the allocator has
memory there.
"""

import os
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import attrgetter
from time import thread_time_ns
from typing import Any

import msgspec
import torch

import efprof
from efprof.artifacts.readings import DEVICE_USE_FILE, DeviceUse
from efprof.artifacts.run_file import Device, change_run_file
from efprof.recorder.hooks.torch_versions import PRECISION_BY_NAME, allocator_settings, version_of
from efprof.recorder.launch.machine import driver_version
from efprof.recorder.loop.device import DeviceClock
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.session.session import Session

NAMED_PACKAGES = ("numpy", "transformers", "accelerate", "lightning", "pytorch_lightning", "datasets", "torchvision")
"""Packages whose version can explain a difference between two runs, where the program has imported them."""

SET_BY_PROGRAMS = ("CUDA_LAUNCH_BLOCKING", "NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT")
"""Environment variables that a program may set itself, after it was started."""

Place = str | Callable[[], Any]
"""Where in torch a setting stands, as a value or a function that gives it; or a function of ours."""

SETTINGS: dict[str, Place] = {
    "intra-op threads": "get_num_threads",
    "inter-op threads": "get_num_interop_threads",
    "deterministic algorithms": "are_deterministic_algorithms_enabled",
    "anomaly detection": "is_anomaly_enabled",
    "default dtype": "get_default_dtype",
    "matmul precision": "get_float32_matmul_precision",
}

CUDA_SETTINGS: dict[str, Place] = {
    "cudnn enabled": "backends.cudnn.enabled",
    "cudnn benchmark": "backends.cudnn.benchmark",
    "cudnn deterministic": "backends.cudnn.deterministic",
    "matmul reduced bf16 sums": "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "matmul reduced fp16 sums": "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "CUDA allocator": "cuda.memory.get_allocator_backend",
}

NAMES_OF_PRECISION: dict[str, Place] = {
    "matmul fp32 precision": "backends.cuda.matmul.fp32_precision",
    "convolution fp32 precision": "backends.cudnn.conv.fp32_precision",
}
FLAGS_OF_PRECISION: dict[str, Place] = {
    "cudnn TF32": "backends.cudnn.allow_tf32",
    "matmul TF32": "backends.cuda.matmul.allow_tf32",
}
"""The same of an older torch; newer ones may warn of them."""

FIRST_STEP = 10
"""The second reading; libraries have their workspaces by then."""

READING_NS = 2_000_000


def start(session: Session) -> None:
    """Wait for the first step, by which most programs have chosen their device, and for CUDA to be initialised."""
    device, memory = session.device, session.memory
    written: tuple[bool, int | None] | None = None

    def write_once(*_: object) -> None:
        nonlocal written
        device.look()
        found = _has_cuda(), device.index
        if found == written:
            return
        written = found
        source = memory.choose()
        if session.rank_folder.path.name == "rank0":
            used = device.index
            read = {
                "versions": _versions(),
                "devices": _devices(used),
                "settings": _settings(used),
                "memory_source": source,
            }
            change_run_file(session.run_folder, lambda run: msgspec.structs.replace(run, **read))

    def note_device(step: OpenStep, losses: object, *_: object) -> None:
        if step.num_backwards == 1 and device.see(losses):
            step.memory.clear()  # of another device
            write_once()

    session.listen("environment", step_began=write_once, backward_began=note_device)
    if torch.version.cuda is not None or torch.version.hip is not None:
        for collector, begin in (("device_times", _time_stages), ("device_use", _read_use)):
            session.when_cuda_begins(collector, partial(begin, session))


def _has_cuda() -> bool:
    """Whether the program itself has initialised CUDA; we never do."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "torch": str(torch.__version__), "efprof": efprof.__version__}
    built_for = {"cuda": torch.version.cuda, "rocm": torch.version.hip}
    versions |= {name: version for name, version in built_for.items() if version}
    if _has_cuda():
        found = {"driver": driver_version()}
        with suppress(RuntimeError):  # of a cuDNN that this torch was not built for
            found["cudnn"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        versions |= {name: str(version) for name, version in found.items() if version}
    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in NAMED_PACKAGES}
    return versions | {name: version for name, version in loaded.items() if isinstance(version, str)}


def _devices(used: int | None) -> list[Device]:
    """The one that the training is on first. Only that one is asked for its free memory: it would start a context."""
    devices = []
    for index in sorted(range(torch.cuda.device_count()) if _has_cuda() else (), key=lambda index: index != used):
        properties = torch.cuda.get_device_properties(index)
        free = torch.cuda.mem_get_info(index)[0] if index == used else None
        devices.append(Device(index=index, name=properties.name, total_bytes=properties.total_memory, free_bytes=free))
    return devices


def _settings(device: int | None) -> dict[str, str]:
    settings = {}
    for name, place in (SETTINGS | cuda_settings(device) if _has_cuda() else SETTINGS).items():
        # torch refuses to say where a program has set the precision in its old and its new way; older ones lack some.
        with suppress(RuntimeError, AttributeError, AssertionError):
            settings[name] = str(read_setting(place))
    return settings | {name: os.environ[name] for name in SET_BY_PROGRAMS if name in os.environ}


def cuda_settings(device: int | None = None) -> dict[str, Place]:
    precision = FLAGS_OF_PRECISION if version_of(torch) < PRECISION_BY_NAME else NAMES_OF_PRECISION
    more: dict[str, Place] = {
        "memory fraction": lambda: torch.cuda.memory.get_per_process_memory_fraction(device),
        "CUDA allocator settings": lambda: allocator_settings(torch, os.environ) or "none: its defaults",
    }
    return CUDA_SETTINGS | precision | more


def read_setting(place: Place) -> Any:
    value = attrgetter(place)(torch) if isinstance(place, str) else place
    return value() if callable(value) else value


def _time_stages(session: Session) -> None:
    session.loop.thread.asks_capturing = session.shell.guarded("captures", torch.cuda.is_current_stream_capturing)
    session.loop.steps.clock = DeviceClock(session.device, session.shell.guard("device_times"))


def _read_use(session: Session) -> None:
    loop, device, budget = session.loop, session.device, session.budget
    lines, due = session.lines(DEVICE_USE_FILE), 0

    def read() -> None:
        index, stats = device.index, device.statistics()
        reserved = stats["reserved_bytes"]["all"]["current"] if stats else 0
        if index is not None and reserved:  # else there may be no context on it, which asking would create
            free, total = torch.cuda.mem_get_info(index)
            lines.write(DeviceUse(step=loop.number, device=index, used_bytes=total - free, reserved_bytes=reserved))

    def read_now_and_then(*_: object) -> None:
        nonlocal due
        if loop.number >= due and budget.affords(READING_NS):
            began, due = thread_time_ns(), max(FIRST_STEP, 2 * loop.number)
            read()
            budget.spend("device use", thread_time_ns() - began)

    session.listen("device_use", step_ended=read_now_and_then)
    session.before(torch._C, "_cuda_resetPeakMemoryStats", "device_use", device.keep_mark)

    def read_at_end() -> None:
        """By then every library has what it needs, or has asked for too much. A device that failed tells nothing."""
        with suppress(RuntimeError):
            read()

    session.on_end("device_use", read_at_end)
