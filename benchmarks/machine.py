"""What a reader must know of command, commit and machine to judge figures; torch is not imported for it."""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path


def machine_line(accelerator: str = "") -> str:
    """One sentence, and the command; `accelerator` names the GPU where one was measured."""
    load = os.getloadavg()[0]
    return (
        f"Commit {_commit()}, {time.strftime('%Y-%m-%d', time.gmtime())}; "
        f"{f'{accelerator}; ' if accelerator else ''}{processors()}; {platform.system()} "
        f"{platform.release()}; Python {platform.python_version()}, torch {version('torch')}; load average at the "
        f"start {load:.1f}. `{_command()}`"
    )


def _commit() -> str:
    """The checkout's; a copy of it, which has no history, is told by EFPROF_COMMIT."""
    if named := os.environ.get("EFPROF_COMMIT"):
        return named
    if shutil.which("git") is None:
        return "unknown"
    described = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return described.stdout.strip() or "unknown"


def _command() -> str:
    """That runs this benchmark again: its module and its arguments."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = sys.argv[0] if spec is None else f"-m {spec.name.removesuffix('.__main__')}"
    return " ".join(["python", program, *map(shlex.quote, sys.argv[1:])])


def processors() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} x {names[0] if names else platform.machine()}"
