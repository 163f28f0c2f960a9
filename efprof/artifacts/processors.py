"""How many processors this process may use: those it is bound to, and no more than its container's share of time."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

OF_PROCESS = Path("/proc/self/cgroup")
MOUNTED = Path("/sys/fs/cgroup")


def num_processors() -> int:
    """At least one. `torch.get_num_threads()` and `os.cpu_count()` know nothing of a container's share."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([bound, *_shares()]))


def _shares() -> Iterator[int]:
    """Processors' worth of time that each group around the process may take, where it is limited.

    Of version 2 of control groups: `cpu.max` is `max 100000`, or microseconds of so many. Within a container its own
    group is the outermost that is seen.
    """
    try:
        paths = [line[3:] for line in OF_PROCESS.read_text().splitlines() if line.startswith("0::")]
    except OSError:  # not Linux
        return
    for inner in (MOUNTED / path.lstrip("/") for path in paths):
        for folder in (one for one in (inner, *inner.parents) if one.is_relative_to(MOUNTED)):
            limit = folder / "cpu.max"
            words = limit.read_text().split() if limit.is_file() else []
            if len(words) == 2 and words[0].isdecimal():
                yield math.ceil(int(words[0]) / int(words[1]))
