"""How many processors this process may use: those it is bound to, and no more than its container's share of time."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

OF_PROCESS = Path("/proc/self/cgroup")
MOUNTED = Path("/sys/fs/cgroup")

Periods = dict[Path, tuple[int, int]]
"""Of each group around the process, in how many periods its limit held processes back so far, and how many there were.

A limit gives its processes so much time in each period, usually of 100 ms. For how long they were held back is known
as a sum over cores alone.
"""


def num_processors() -> int:
    """At least one. `torch.get_num_threads()` and `os.cpu_count()` know nothing of a container's share."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([bound, *map(math.ceil, _shares())]))


def limit_periods() -> Periods:
    found = {}
    for folder in _groups():
        words = _words(folder / "cpu.stat")
        counters = dict(zip(words[::2], words[1::2], strict=False))
        found[folder] = int(counters.get("nr_throttled", 0)), int(counters.get("nr_periods", 0))
    return found


def throttled_share(before: Periods) -> float:
    """Of the periods since then, those in which a limit held processes back; of several limits the largest share."""
    shares = [0.0]
    for folder, (num_throttled, num_periods) in limit_periods().items():
        num_throttled_before, num_before = before.get(folder, (0, 0))
        shares.append((num_throttled - num_throttled_before) / max(1, num_periods - num_before))
    return max(shares)


def _shares() -> Iterator[float]:
    """Processors' worth of time that each group around the process may take, where it is limited."""
    for folder in _groups():
        quota = _words(folder / "cpu.max")
        quota = quota or _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        if len(quota) == 2 and quota[0].isdecimal():  # there is no limit at `max`, in version 1 at -1
            yield int(quota[0]) / int(quota[1])


def _groups() -> Iterator[Path]:
    """The folders of the groups around the process that may limit its time, of version 2 or 1."""
    try:
        lines = OF_PROCESS.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _around(MOUNTED, path)
        elif "cpu" in controllers.split(","):
            yield from _around(MOUNTED / "cpu", path)


def _around(mounted: Path, path: str) -> list[Path]:
    """The folder of the group and of those around it; within a container its own is the outermost that is seen."""
    inner = mounted / path.lstrip("/")
    return [folder for folder in (inner, *inner.parents) if folder.is_relative_to(mounted)]


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
