"""What of the GPU can be recorded: devices and driver, kernels, NVML. Never run where there is one so far."""

import importlib
import os
import re
import warnings
from collections.abc import Iterator
from types import ModuleType

from efprof.recorder.doctor.check import Check
from efprof.recorder.machine import DRIVER_FOLDER, driver_version


def checks(torch: ModuleType) -> Iterator[Check]:
    """Asked of torch in a way that starts no context on any device."""
    yield _devices(torch)
    yield _profiler(torch)
    yield _kernels(torch)
    yield _nvml()


def is_available(torch: ModuleType) -> tuple[bool, str]:
    """Whether CUDA or ROCm can be used, and what torch says where it cannot."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asks NVML instead of starting the CUDA driver
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = bool(torch.cuda.is_available())
    return found, str(said[0].message).split(".")[0].strip() if said else ""


def _devices(torch: ModuleType) -> Check:
    name = "CUDA"
    driver = driver_version()
    if not torch.version.cuda and not torch.version.hip:
        return Check(
            name=name,
            status="no",
            why=f"torch is built for the CPU{f', though there is an NVIDIA driver {driver}' if driver else ''}: "
            "memory and time are those of the host.",
            advice="Install a CUDA build of torch, from https://pytorch.org/get-started." if driver else "",
        )
    found, said = is_available(torch)
    if not found:
        return Check(
            name=name,
            status="no",
            why=f"torch sees no device: {said or _why_no_device(driver)}.",
            advice="Check nvidia-smi, CUDA_VISIBLE_DEVICES and, in a container, --gpus.",
        )
    devices = ", ".join(_device_names()) or f"{torch.cuda.device_count()} devices"
    return Check(name=name, status="yes", why=f"{devices}; driver {driver or 'unknown'}.")


def _why_no_device(driver: str | None) -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and not visible.strip():
        return "CUDA_VISIBLE_DEVICES is empty"
    return "its driver does not answer" if driver else "there is no NVIDIA driver"


def _device_names() -> list[str]:
    """From the driver's own files; in another order than torch's, perhaps."""
    found = []
    for file in sorted(DRIVER_FOLDER.glob("gpus/*/information")):
        model = re.search(r"^Model:\s*(.+)$", file.read_text(), re.MULTILINE)
        found.append(model.group(1) if model else "unknown")
    return found


def _profiler(torch: ModuleType) -> Check:
    name = "profiler windows"
    if not torch.profiler.kineto_available():
        return Check(
            name=name,
            status="no",
            why="torch is built without Kineto, which torch.profiler writes traces by.",
            advice="Install torch from PyPI or pytorch.org; steps are recorded without it.",
        )
    return Check(name=name, status="yes", why="torch.profiler can trace operators, with stacks and allocations.")


def _kernels(torch: ModuleType) -> Check:
    name = "GPU kernels (CUPTI)"
    activities = torch.profiler.supported_activities()
    if torch.profiler.ProfilerActivity.CUDA not in activities:
        return Check(name=name, status="no", why="This build of torch has no tracer of GPU kernels.")
    if not is_available(torch)[0]:
        return Check(name=name, status="unknown", why="torch has the tracer, and there is no device to try it on.")
    return Check(
        name=name,
        status="yes",
        why="torch has the tracer; in one process, one tool at a time may use it.",
        advice="Start no training under Nsight Systems while its windows are recorded.",
    )


def _nvml() -> Check:
    name = "NVML"
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        return Check(
            name=name,
            status="no",
            why="The package nvidia-ml-py is not installed.",
            advice="Run 'pip install nvidia-ml-py' where memory that other programs hold matters.",
        )
    try:
        pynvml.nvmlInit()
        try:
            names = [_name_of(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return Check(name=name, status="no", why=f"nvidia-ml-py is installed; the driver says: {error}.")
    if not names:
        return Check(name=name, status="no", why="nvidia-ml-py is installed and sees no device.")
    return Check(name=name, status="yes", why=f"It sees {', '.join(names)}.")


def _name_of(pynvml: ModuleType, index: int) -> str:
    name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index))
    return name.decode() if isinstance(name, bytes) else str(name)
