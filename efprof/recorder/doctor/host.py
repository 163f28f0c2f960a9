"""What of the host can be recorded: the C allocator's counters, memray."""

import importlib.metadata
import importlib.util
import platform
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from efprof.recorder.doctor.check import Check
from efprof.units import MIB

PTRACE_FILE = Path("/proc/sys/kernel/yama/ptrace_scope")

PROBE_BYTES = 8 * MIB
"""Too large for any allocator's cache."""


def checks(torch: ModuleType | None) -> Iterator[Check]:
    """The counters are read by the recorder's own reader."""
    if torch is not None:
        yield _counters(torch)
    yield _memray()


def _counters(torch: ModuleType) -> Check:
    from efprof.recorder.memory import Memory

    memory, name = Memory(), "host memory counters"
    source = memory.choose()
    if source == "resident set":
        return Check(
            name=name,
            status="careful",
            why="This C library has no mallinfo2 (glibc 2.33 or newer does): memory is read from the resident set.",
            advice="Record on a newer Linux where memory without a GPU matters.",
        )
    before = memory.read()[0]
    probe = torch.ones(PROBE_BYTES, dtype=torch.uint8)
    counted = memory.read()[0] - before
    del probe
    if counted < PROBE_BYTES // 2:
        return Check(
            name=name,
            status="no",
            why=f"The {source} did not count a tensor of {PROBE_BYTES // MIB} MiB: another malloc is preloaded.",
            advice="Unset LD_PRELOAD where memory without a GPU matters.",
        )
    return Check(
        name=name, status="yes", why=f"The {source} of {' '.join(platform.libc_ver())} counts what torch takes."
    )


def _memray() -> Check:
    ptrace = _about_ptrace()
    if importlib.util.find_spec("memray") is None:
        return Check(
            name="memray",
            status="no",
            why=f"It is not installed, so --host-memory is refused. {ptrace}",
            advice="Run 'pip install memray'.",
        )
    version = importlib.metadata.version("memray")
    return Check(name="memray", status="yes", why=f"{version}, for --host-memory. {ptrace}")


def _about_ptrace() -> str:
    """efprof starts memray inside the process; only `memray attach` to one that runs already needs ptrace."""
    try:
        scope = PTRACE_FILE.read_text().strip()
    except OSError:
        scope = "0"
    allowed = {"0": "is allowed", "1": "needs root", "2": "needs root"}.get(scope, "is forbidden")
    return f"ptrace is not needed for it; 'memray attach' would need it, which {allowed} here (ptrace_scope {scope})."
