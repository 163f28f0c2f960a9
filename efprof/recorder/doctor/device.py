"""What of the GPU can be recorded: devices and driver, kernels, NVML."""

import importlib
import os
import warnings
from collections.abc import Iterator
from types import ModuleType

from efprof.recorder.doctor.check import Check
from efprof.recorder.machine import driver_version


def checks(torch: ModuleType) -> Iterator[Check]:
    """Asked of torch in a way that starts no context on any device."""
    yield _devices(torch)
    yield from _other_devices(torch)
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
    driver = driver_version()
    if not torch.version.cuda and not torch.version.hip:
        beside = f", though there is an NVIDIA driver {driver}" if driver else ""
        why = f"torch is built for the CPU{beside}: memory and time are those of the host."
        advice = "Install a CUDA build of torch, from https://pytorch.org/get-started." if driver else ""
        return Check("CUDA", "no", why, advice)
    found, said = is_available(torch)
    if not found:
        why = (
            f"torch sees no device: {said or 'its driver does not answer' if driver else 'there is no NVIDIA driver'}."
        )
        return Check("CUDA", "no", why, "Check nvidia-smi, CUDA_VISIBLE_DEVICES and, in a container, --gpus.")
    return Check("CUDA", "yes", f"{torch.cuda.device_count()} devices; driver {driver or 'unknown'}.")


def _other_devices(torch: ModuleType) -> Iterator[Check]:
    """Only such as are there."""
    for name, module in (("MPS", torch.backends.mps), ("XPU", getattr(torch, "xpu", None))):
        if module is not None and module.is_available():
            why = (
                "Of training there steps, the host's times, micro-batches and reads of tensors by line are recorded. "
                "Losses, gradient norms and the device's times and memory are not: reading them would make it wait."
            )
            yield Check(name, "careful", why, "Look for a NaN or a leak in a short run on the CPU.")


def _profiler(torch: ModuleType) -> Check:
    if not torch.profiler.kineto_available():
        why = "torch is built without Kineto, which torch.profiler writes traces by."
        advice = "Install torch from PyPI or pytorch.org; steps are recorded without it."
        return Check("profiler windows", "no", why, advice)
    return Check("profiler windows", "yes", "torch.profiler can trace operators, with stacks and allocations.")


def _kernels(torch: ModuleType) -> Check:
    name = "GPU kernels (CUPTI)"
    activities = torch.profiler.supported_activities()
    if torch.profiler.ProfilerActivity.CUDA not in activities:
        return Check(name, "no", "This build of torch has no tracer of GPU kernels.")
    if not is_available(torch)[0]:
        return Check(name, "unknown", "torch has the tracer, and there is no device to try it on.")
    why = "torch has the tracer; in one process, one tool at a time may use it."
    return Check(name, "yes", why, "Start no training under Nsight Systems while its windows are recorded.")


def _nvml() -> Check:
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        advice = "Run 'pip install nvidia-ml-py' where memory that other programs hold matters."
        return Check("NVML", "no", "The package nvidia-ml-py is not installed.", advice)
    try:
        pynvml.nvmlInit()
        try:
            names = [_name_of(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return Check("NVML", "no", f"nvidia-ml-py is installed; the driver says: {error}.")
    if not names:
        return Check("NVML", "no", "nvidia-ml-py is installed and sees no device.")
    return Check("NVML", "yes", f"It sees {', '.join(names)}.")


def _name_of(pynvml: ModuleType, index: int) -> str:
    name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index))
    return name.decode() if isinstance(name, bytes) else str(name)
