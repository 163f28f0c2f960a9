"""What of a device can be recorded: which there are, and the CUDA allocator's history and settings."""

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from types import ModuleType

from efprof.recorder.doctor.host import Check, version_of
from efprof.recorder.launch.machine import driver_version

CUDA_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
PLAIN_VARIABLE = "PYTORCH_ALLOC_CONF"

Setting = tuple[str, str]

Trap = tuple[str, str]

Version = tuple[int, int]


def checks(torch: ModuleType) -> Iterator[Check]:
    """Asked of torch in a way that starts no context on any device."""
    yield _devices(torch)
    yield from _other_devices(torch)


def is_available(torch: ModuleType) -> tuple[bool, str]:
    """Whether CUDA or ROCm can be used, and what torch says where it cannot."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asks NVML instead of starting the CUDA driver
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = bool(torch.cuda.is_available())
    return found, str(said[0].message).split(".")[0].strip() if said else ""


def allocator_checks(torch: ModuleType) -> Iterator[Check]:
    settings = settings_in_effect(os.environ, version_of(torch))
    yield _history(torch, dict(settings).get("backend", "native"))
    traps = list(find_traps(os.environ, version_of(torch)))
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


def _history(torch: ModuleType, backend: str) -> Check:
    name = "allocator history"
    if not hasattr(torch._C, "_cuda_record_memory_history"):
        why = "Only a CUDA build of torch has it; without it, windows record allocations by torch.profiler."
        return Check(name, "no", why)
    if backend != "native":
        advice = "Take 'backend' out of the settings while memory is looked into."
        return Check(name, "no", f"The allocator '{backend}' keeps none.", advice)
    return Check(name, "yes", "torch can record it with Python stacks.")


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
