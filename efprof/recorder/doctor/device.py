"""What of the GPU can be recorded: devices and driver, kernels, NVML; the CUDA allocator's history and settings."""

import importlib
import inspect
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from types import ModuleType

from efprof.recorder.doctor.host import Check, version_of
from efprof.recorder.launch.machine import driver_version

NEEDED_ARGUMENTS = frozenset({"enabled", "context", "stacks", "max_entries"})
"""Of torch.cuda.memory._record_memory_history, as the recorder calls it."""

CUDA_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
PLAIN_VARIABLE = "PYTORCH_ALLOC_CONF"

Setting = tuple[str, str]

Trap = tuple[str, str]

Version = tuple[int, int]


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


def allocator_checks(torch: ModuleType) -> Iterator[Check]:
    settings = settings_in_effect(os.environ, version_of(torch))
    backend = dict(settings).get("backend", "native")
    yield _history(torch, backend)
    yield _backend(backend)
    traps = [*find_traps(os.environ, version_of(torch)), *refusals(torch)]
    for why, advice in traps:
        yield Check("allocator settings", "careful", why, advice)
    if not traps:
        said = ", ".join(f"{key}:{value}" for key, value in settings)
        why = f"{said}: none of the traps that are looked for." if said else "None is set, so its defaults hold."
        yield Check("allocator settings", "yes", why)


def settings_in_effect(environment: Mapping[str, str], version: Version) -> list[Setting]:
    """The settings that the CUDA allocator of this torch reads from the environment, in their order."""
    text = environment.get(CUDA_VARIABLE)
    if text is None and version >= (2, 10):
        text = environment.get(PLAIN_VARIABLE)
    return parse(text or "")


def parse(text: str) -> list[Setting]:
    """`key:value,key:[a:1,b:2]` at the commas outside of brackets; a key without a value has an empty one."""
    words = [word.strip() for word in re.split(r",(?![^\[]*\])", text)]
    pairs = [word.partition(":") for word in words if word]
    return [(key.strip(), value.strip()) for key, _, value in pairs]


def find_traps(environment: Mapping[str, str], version: Version) -> Iterator[Trap]:
    yield from _of_variables(environment, version)
    settings = settings_in_effect(environment, version)
    if not settings:  # what is ignored is told above, and its values are read all the same once it is moved
        settings = parse(environment.get(PLAIN_VARIABLE, ""))
    yield from _of_combination(dict(settings))


def refusals(torch: ModuleType) -> Iterator[Trap]:
    """What torch itself refuses, in its words; an older torch than 2.13 cannot be asked, and says so when it starts."""
    read = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
    try:
        if read is not None:
            read()
    except (RuntimeError, ValueError) as error:
        said = str(error).splitlines()[0].strip().rstrip(".")
        yield f"torch refuses them: {said}.", "Write them as torch's notes on CUDA do."


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


def _history(torch: ModuleType, backend: str) -> Check:
    name = "allocator history"
    if not hasattr(torch._C, "_cuda_record_memory_history"):
        why = "Only a CUDA build of torch has it; without it, windows record allocations by torch.profiler."
        return Check(name, "no", why)
    missing = NEEDED_ARGUMENTS - set(inspect.signature(torch.cuda.memory._record_memory_history).parameters)
    if missing:
        why = f"This torch records it without {', '.join(sorted(missing))}."
        return Check(name, "no", why, "Install a newer torch.")
    if backend != "native":
        return Check(name, "no", f"The allocator '{backend}' keeps none.", "See below.")
    return Check(name, "yes", "torch can record it with Python stacks.")


def _backend(backend: str) -> Check:
    if backend == "native":
        return Check("allocator backend", "yes", "native, torch's own.")
    why = f"{backend}: it ignores every other allocator setting, and torch takes no snapshot of it."
    return Check("allocator backend", "careful", why, "Take 'backend' out of the settings while memory is looked into.")


def _of_variables(environment: Mapping[str, str], version: Version) -> Iterator[Trap]:
    cuda, plain = environment.get(CUDA_VARIABLE), environment.get(PLAIN_VARIABLE)
    if cuda is not None and plain is not None and parse(cuda) != parse(plain):
        yield f"{PLAIN_VARIABLE} does nothing, since {CUDA_VARIABLE} is set too and wins.", f"Unset {PLAIN_VARIABLE}."
    elif cuda is None and plain is not None and version < (2, 10):
        release = ".".join(map(str, version))
        why = f"{PLAIN_VARIABLE} does nothing: torch {release} does not read it for CUDA."
        yield why, f"Set {CUDA_VARIABLE} instead."


def _of_combination(settings: Mapping[str, str]) -> Iterator[Trap]:
    if settings.get("backend") == "cudaMallocAsync" and len(settings) > 1:
        ignored = ", ".join(key for key in settings if key != "backend")
        yield f"The allocator cudaMallocAsync ignores {ignored}.", "Take out 'backend', or the others."
    if settings.get("expandable_segments") == "True" and "max_split_size_mb" in settings:
        yield (
            "'max_split_size_mb' keeps small requests out of the one large free block that expandable segments grow, "
            "so memory is mapped anew although gigabytes are free.",
            "Take out 'max_split_size_mb'.",
        )
    if "garbage_collection_threshold" in settings and "per_process_memory_fraction" not in settings:
        yield (
            "'garbage_collection_threshold' does nothing unless the program caps its memory by "
            "torch.cuda.set_per_process_memory_fraction with a share below 1.",
            "Call that function before the model is built, or take the setting out.",
        )
