"""What can be recorded on this machine and what not, and why: Python, torch, the start-up hook, devices and memory."""

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Literal

import msgspec

from efprof.recorder.hooks.torch_versions import (
    CUDA_VARIABLE,
    NEWEST,
    OLDEST,
    PLAIN_VARIABLE,
    PLAIN_VARIABLE_WORKS,
    Version,
    environment_settings,
    name_of,
    version_of,
    why_untested,
)
from efprof.recorder.launch.launch import child_environment
from efprof.recorder.launch.machine import driver_version
from efprof.recorder.session.options import Options
from efprof.units import MIB, format_count

Status = Literal["yes", "careful", "no"]
"""`careful` works, and something about it needs a person's attention."""

MIN_PYTHON, MAX_PYTHON = (3, 11), (3, 13)
"""Newer ones than the second were not tried."""

CHILD_TIMEOUT_S = 60
"""For a Python that does nothing: a cold start from a network drive takes seconds."""

_PROBE = "import sys; print(any(type(finder).__name__ == '_TorchWatcher' for finder in sys.meta_path))"

PROBE_BYTES = 8 * MIB
"""Too large for any allocator's cache."""

Trap = tuple[str, str]


class Check(msgspec.Struct, frozen=True):
    """Whether `name` can be recorded, or is as it should be; why; and what to do, where there is anything to do.

    Where an essential one is `no`, training cannot be recorded at all.
    """

    name: str
    status: Status
    why: str
    advice: str = ""
    is_essential: bool = False


def examine() -> list[Check]:
    """Every check; takes some seconds."""
    torch, found = _torch()
    checks = [_python(), found, _hook()]
    if torch is not None:  # asked in a way that starts no context on any device
        checks += [_devices(torch), *_other_devices(torch), kernels(torch), nvml()]
        checks += [*allocator_checks(torch), _counters(torch)]
    return [*checks, _memray()]


def kernels(torch: ModuleType) -> Check:
    name, cuda = "GPU kernels (CUPTI)", torch.profiler.ProfilerActivity.CUDA
    if not torch.profiler.kineto_available() or cuda not in torch.profiler.supported_activities():
        return Check(name, "no", "This build of torch has no tracer of GPU kernels.")
    if not torch.cuda.is_available():
        return Check(name, "careful", "torch has the tracer, and there is no device to try it on.")
    why = "torch has the tracer; in one process, one tool at a time may use it."
    return Check(name, "yes", why, "Start no training under Nsight Systems while its windows are recorded.")


def nvml() -> Check:
    """The recorder does without it: the driver tells how much of a device is in use."""
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        return Check("NVML", "no", "The package nvidia-ml-py is not installed; no recording needs it.")
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return Check("NVML", "no", f"nvidia-ml-py is installed; the driver says: {error}.")
    return Check("NVML", "yes", f"It sees {format_count(count, 'device')}.")


def allocator_checks(torch: ModuleType) -> Iterator[Check]:
    version = version_of(torch)
    settings = settings_in_effect(os.environ, version)
    yield _history(torch, settings.get("backend", "native"))
    traps = list(find_traps(os.environ, version))
    for why, advice in traps:
        yield Check("allocator settings", "careful", why, advice)
    if not traps:
        said = ", ".join(f"{key}:{value}" for key, value in settings.items())
        why = f"{said}: none of the traps that are looked for." if said else "None is set, so its defaults hold."
        yield Check("allocator settings", "yes", why)


def essential(name: str, *, is_met: bool, why: str, advice: str) -> Check:
    """A check without which training cannot be recorded at all; the advice is for where it is not met."""
    return Check(name, "yes" if is_met else "no", why, "" if is_met else advice, is_essential=True)


def can_record(checks: Sequence[Check]) -> bool:
    return not any(check.is_essential and check.status == "no" for check in checks)


def _python() -> Check:
    tried = f"Python {name_of(MIN_PYTHON)} to {name_of(MAX_PYTHON)}"
    why, advice = f"{platform.python_version()}, {sys.executable}.", f"Install efprof into an environment of {tried}."
    if sys.version_info[:2] > MAX_PYTHON:
        return Check("Python", "careful", f"{why} efprof was tried with {tried}.", advice)
    return essential("Python", is_met=sys.version_info >= MIN_PYTHON, why=why, advice=advice)


def _torch() -> tuple[ModuleType | None, Check]:
    """torch, and what is to be said of it; None where it is not installed or cannot be loaded."""
    advice = f"Install torch {name_of(OLDEST)} to {name_of(NEWEST)} into the environment efprof is in."
    try:
        torch = importlib.import_module("torch")
    except (ImportError, OSError) as error:
        return None, essential("torch", is_met=False, why=f"It cannot be imported: {error}.", advice=advice)
    cuda, rocm = torch.version.cuda, torch.version.hip
    why = f"{torch.__version__}, built for {f'CUDA {cuda}' if cuda else f'ROCm {rocm}' if rocm else 'the CPU'}."
    if (untested := why_untested(torch)) is not None:
        return torch, Check("torch", "careful", f"{why} {untested}", advice)
    return torch, essential("torch", is_met=True, why=why, advice="")


def _hook() -> Check:
    """Really started: nothing else tells what a site's own customization does to it."""
    command, name = [sys.executable, "-c", _PROBE], "start-up hook"
    try:
        done = subprocess.run(
            command, env=child_environment(Options()), capture_output=True, text=True, timeout=CHILD_TIMEOUT_S
        )
        printed, said = done.stdout.strip(), ("\n" + done.stderr.strip()).splitlines()[-1].rstrip(".")
    except (OSError, subprocess.TimeoutExpired) as error:
        printed, said = "", str(error)
    if printed != "True":
        why = f"A child of Python started without it{f' ({said})' if said else ''}."
        advice = "Find what removes PYTHONPATH or sitecustomize here, or record in code: with efprof.record()."
        return essential(name, is_met=False, why=why, advice=advice)
    if said:
        why = f"A child of Python ran it, and said: {said}."
        return Check(name, "careful", why, "Fix the sitecustomize that says so.")
    return Check(name, "yes", "A child of Python ran it (one started with -I, -E or -S would not).")


def _counters(torch: ModuleType) -> Check:
    from efprof.recorder.loop.device import Memory

    memory, name = Memory(), "host memory counters"
    source = memory.choose()
    before = memory.read()[0]
    probe = torch.ones(PROBE_BYTES, dtype=torch.uint8)
    counted = memory.read()[0] - before
    del probe
    if counted < PROBE_BYTES // 2:
        why = f"The {source} did not count a tensor of {PROBE_BYTES // MIB} MiB: another malloc is preloaded."
        return Check(name, "no", why, "Unset LD_PRELOAD where memory without a GPU matters.")
    return Check(name, "yes", f"The {source} of {' '.join(platform.libc_ver())} counts what torch takes.")


def _memray() -> Check:
    if importlib.util.find_spec("memray") is None:
        why = "It is not installed, so --host-memory is refused."
        return Check("memray", "no", why, "Run 'pip install memray'.")
    return Check("memray", "yes", f"{importlib.metadata.version('memray')}, for --host-memory.")


def is_available(torch: ModuleType) -> tuple[bool, str]:
    """Whether CUDA or ROCm can be used, and what torch says where it cannot."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asks NVML instead of starting the CUDA driver
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = bool(torch.cuda.is_available())
    return found, str(said[0].message).split(".")[0].strip() if said else ""


def settings_in_effect(environment: Mapping[str, str], version: Version) -> dict[str, str]:
    """The settings that the CUDA allocator of this torch reads from the environment, in their order."""
    return parse(environment_settings(environment, version))


def parse(text: str) -> dict[str, str]:
    """`key:value,key:[a:1,b:2]` at the commas outside of brackets; a key without a value has an empty one."""
    words = [word.strip() for word in re.split(r",(?![^\[]*\])", text)]
    pairs = [word.partition(":") for word in words if word]
    return {key.strip(): value.strip() for key, _, value in pairs}


def find_traps(environment: Mapping[str, str], version: Version) -> Iterator[Trap]:
    cuda, plain = environment.get(CUDA_VARIABLE), environment.get(PLAIN_VARIABLE)
    if cuda is not None and plain is not None and parse(cuda) != parse(plain):
        yield f"{PLAIN_VARIABLE} does nothing, since {CUDA_VARIABLE} is set too and wins.", f"Unset {PLAIN_VARIABLE}."
    elif cuda is None and plain is not None and version < PLAIN_VARIABLE_WORKS:
        why = f"{PLAIN_VARIABLE} does nothing: torch {name_of(version)} does not read it for CUDA."
        yield why, f"Set {CUDA_VARIABLE} instead."
    settings = settings_in_effect(environment, version)
    if not settings:  # what is ignored is told above, and its values are read all the same once it is moved
        settings = parse(plain or "")
    yield from _of_combination(settings)


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
    return Check("CUDA", "yes", f"{format_count(torch.cuda.device_count(), 'device')}; driver {driver or 'unknown'}.")


def _other_devices(torch: ModuleType) -> Iterator[Check]:
    for name, module in (("MPS", torch.backends.mps), ("XPU", torch.xpu)):
        if module.is_available():
            why = (
                "Of training there steps, the host's times, micro-batches and reads of tensors by line are recorded. "
                "Losses, gradient norms and the device's times and memory are not: reading them would make it wait."
            )
            yield Check(name, "careful", why, "Look for a NaN or a leak in a short run on the CPU.")


def _history(torch: ModuleType, backend: str) -> Check:
    name = "allocator history"
    if not hasattr(torch._C, "_cuda_record_memory_history"):
        why = "Only a CUDA build of torch has it; without it, windows record allocations by torch.profiler."
        return Check(name, "no", why)
    if backend != "native":
        advice = "Take 'backend' out of the settings while memory is looked into."
        return Check(name, "no", f"The allocator '{backend}' keeps none.", advice)
    return Check(name, "yes", "torch can record it with Python stacks.")


def _of_combination(settings: Mapping[str, str]) -> Iterator[Trap]:
    if settings.get("backend") == "cudaMallocAsync" and len(settings) > 1:
        ignored = ", ".join(key for key in settings if key != "backend")
        yield f"The allocator cudaMallocAsync ignores {ignored}.", "Take out 'backend', or the others."
    if settings.get("expandable_segments") == "True" and "max_split_size_mb" in settings:
        yield (
            "'max_split_size_mb' keeps small requests out of the one large free block that expandable segments grow, "
            "so memory is mapped again although gigabytes are free.",
            "Take out 'max_split_size_mb'.",
        )
    if "garbage_collection_threshold" in settings and "per_process_memory_fraction" not in settings:
        yield (
            "'garbage_collection_threshold' does nothing unless the program caps its memory by "
            "torch.cuda.set_per_process_memory_fraction with a share below 1.",
            "Call that function before the model is built, or take the setting out.",
        )
