"""What a process measures of itself, efprof's or another tool's: it imports the standard library alone."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

SETTLED_S = 0.2
"""After its imports: on a free processor the threads of NumPy's BLAS are busy for 30 ms first, with nothing."""


def measured(load: Callable[[], tuple[int, int]]) -> None:
    """Run what gives a number of events and of bytes at rest, and print what it took beyond imports.

    The peak is this program's own: `ru_maxrss` counts what the parent had before it started this one.
    """
    time.sleep(SETTLED_S)
    cpu_s, busy_s, start = _cpu_s(), _busy_s(), time.perf_counter()
    num_events, num_bytes = load()
    wall_s, cpu_s, busy_s = time.perf_counter() - start, _cpu_s() - cpu_s, _busy_s() - busy_s
    figures = {
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "others": max(0.0, (busy_s - cpu_s) / wall_s),
        "peak_bytes": _peak_bytes(),
        "num_events": num_events,
        "num_bytes": num_bytes,
    }
    print(json.dumps(figures))


def _cpu_s() -> float:
    return sum(used.ru_utime + used.ru_stime for used in map(getrusage, (RUSAGE_SELF, RUSAGE_CHILDREN)))


def _busy_s() -> float:
    """Of all processors, for whatever process; waiting for disks is not work."""
    user, nice, system, _idle, _waiting, *more = map(int, Path("/proc/stat").read_text().split(None, 9)[1:9])
    return (user + nice + system + sum(more)) / os.sysconf("SC_CLK_TCK")


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
