"""Whether the CUDA allocator's history can be recorded, and what is wrong with its settings."""

import inspect
import os
from collections.abc import Iterator
from types import ModuleType

from efprof.recorder.doctor.allocator_traps import find_traps, settings_in_effect
from efprof.recorder.doctor.check import Check
from efprof.recorder.doctor.interpreter import version_of

NEEDED_ARGUMENTS = frozenset({"enabled", "context", "stacks", "max_entries"})
"""Of torch.cuda.memory._record_memory_history, as the recorder calls it."""


def checks(torch: ModuleType) -> Iterator[Check]:
    """A check for every trap in the settings; one that says so where there is none."""
    settings = settings_in_effect(os.environ, version_of(torch))
    backend = dict(settings).get("backend", "native")
    yield _history(torch, backend)
    yield _backend(backend)
    traps = list(find_traps(os.environ, version_of(torch)))
    for why, advice in traps:
        yield Check(name="allocator settings", status="careful", why=why, advice=advice)
    if not traps:
        said = ", ".join(f"{key}:{value}" for key, value in settings)
        why = f"{said}, and no trap in it." if said else "None is set, so its defaults hold."
        yield Check(name="allocator settings", status="yes", why=why)


def _history(torch: ModuleType, backend: str) -> Check:
    name = "allocator history"
    if not hasattr(torch._C, "_cuda_record_memory_history"):
        return Check(
            name=name,
            status="no",
            why="Only a CUDA build of torch has it; without it, windows record allocations by torch.profiler.",
        )
    missing = NEEDED_ARGUMENTS - set(inspect.signature(torch.cuda.memory._record_memory_history).parameters)
    if missing:
        return Check(
            name=name,
            status="no",
            why=f"This torch records it without {', '.join(sorted(missing))}.",
            advice="Install a newer torch.",
        )
    if backend != "native":
        return Check(name=name, status="no", why=f"The allocator '{backend}' keeps none.", advice="See below.")
    return Check(name=name, status="yes", why="torch can record it with Python stacks.")


def _backend(backend: str) -> Check:
    name = "allocator backend"
    if backend == "native":
        return Check(name=name, status="yes", why="native, torch's own.")
    return Check(
        name=name,
        status="careful",
        why=f"{backend}: it ignores every other allocator setting, and torch takes no snapshot of it.",
        advice="Take 'backend' out of the settings while memory is looked into.",
    )
