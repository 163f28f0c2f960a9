"""Whether a program can be recorded at all: Python, torch, the start-up hook."""

import importlib
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from efprof.model import EfprofError
from efprof.recorder.doctor.check import Check, essential
from efprof.recorder.launch import child_environment, find_program
from efprof.recorder.options import Options

LEAST_PYTHON = (3, 11)
LEAST_TORCH = (2, 6)

CHILD_TIMEOUT_S = 60
"""For a Python that does nothing: a cold start from a network drive takes seconds."""

_PROBE = "import sys; print(any(type(finder).__name__ == '_TorchWatcher' for finder in sys.meta_path))"


def import_torch() -> ModuleType | None:
    """None where it is not installed, or cannot be loaded; `checks` then says why."""
    try:
        return importlib.import_module("torch")
    except (ImportError, OSError):
        return None


def checks(torch: ModuleType | None) -> Iterator[Check]:
    """In the order in which a recording needs them."""
    yield _python()
    yield _python_of_commands()
    yield _torch(torch)
    yield _hook()


def _python() -> Check:
    least = ".".join(map(str, LEAST_PYTHON))
    return essential(
        "Python",
        is_met=sys.version_info >= LEAST_PYTHON,
        why=f"{platform.python_version()}, {sys.executable}.",
        advice=f"Install efprof into an environment of Python {least} or newer.",
    )


def _python_of_commands() -> Check:
    """`efprof record -- python train.py` starts that one, whichever Python efprof itself is in."""
    name = "'python' of a command"
    try:
        path = find_program("python")
    except EfprofError:
        return Check(name, "careful", "There is none on PATH.", f"Write {sys.executable} in the command.")
    if Path(path).absolute().parent == Path(sys.executable).parent:
        return Check(name, "yes", "It is the Python that efprof is installed in.")
    least = ".".join(map(str, LEAST_PYTHON))
    why = (
        f"{path} is another Python than efprof's: it can be recorded if it is {least} or newer, with torch and msgspec."
    )
    return Check(name, "careful", why, f"Write {sys.executable} in the command, or install efprof there.")


def _torch(torch: ModuleType | None) -> Check:
    if torch is None:
        advice = "Install torch into the environment that efprof is in."
        return essential("torch", is_met=False, why=_why_no_torch(), advice=advice)
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    build = build if torch.version.cuda or torch.version.hip else "the CPU"
    return essential(
        "torch",
        is_met=version_of(torch) >= LEAST_TORCH,
        why=f"{torch.__version__}, built for {build}.",
        advice=f"Install torch {'.'.join(map(str, LEAST_TORCH))} or newer.",
    )


def version_of(torch: ModuleType) -> tuple[int, int]:
    """Its major and minor number."""
    major, minor = str(torch.__version__).split(".")[:2]
    return int(major), int(minor)


def _why_no_torch() -> str:
    try:
        importlib.import_module("torch")
    except (ImportError, OSError) as error:
        return f"It cannot be imported: {error}."
    return "It could not be imported."


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
        return Check(name, "careful", why, "Mend the sitecustomize that says so.")
    return Check(name, "yes", "A child of Python ran it (one started with -I, -E or -S would not).")
