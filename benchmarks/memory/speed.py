"""Times what is done with a large snapshot, beside what torch's `_memory_viz.py` does with the same file.

Each work is a process of its own, so that its peak of memory is its own; they take turns in random order.
"""

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from benchmarks.recording.processes import ROOT
from efprof.artifacts.snapshot import read_snapshot
from efprof.facts.allocator.history import History, history_of
from efprof.facts.allocator.replay import replay
from efprof.facts.allocator.settings import parse_configuration
from efprof.facts.allocator.what_if import WhatIf
from efprof.units import GIB, format_bytes

BUDGET_EVENTS: Final = 1_000_000
"""As many as the recorder keeps."""

MAX_SECONDS: Final = 15.0
MAX_PEAK_BYTES: Final = 2 * GIB

OTHER_SETTING: Final = "expandable_segments:True"
"""The usual advice to a program whose memory is in pieces."""

METHOD: Final = """
## A large recording

The recording is made up, a transformer's training with Python stacks: {events} events, {size}. Each figure and ratio is
the median over the rounds, of which there are {rounds}; in each, every work has a process that starts Python, reads the
file, does its work and ends, in random order. Peak memory is the process's largest resident set. `_memory_viz.py` is
torch's, run as a script, which spares it importing torch: `stats` sums the segments up, `trace` writes every event as a
line, `trace_plot` packs the file into a page that a browser then replays. None of them models the allocator.
"""

TABLE_HEAD: Final = (
    "| work | time | CPU time | peak memory | events per second | time against | memory against |",
    "| --- | --- | --- | --- | --- | --- | --- |",
)


@dataclass(frozen=True, kw_only=True)
class Work:
    """A command, and the name of the other work that it is compared with."""

    name: str
    command: Sequence[str]
    against: str | None = None


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one process."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


Costs = dict[str, list[Cost]]
"""By the name of the work, round by round."""

READ_AND_REPLAY: Final = "efprof: read and replay"


def speed_lines(num_events: int, rounds: int) -> list[str]:
    """The table, and what it says about each budget."""
    with tempfile.TemporaryDirectory(prefix="efprof-benchmark-") as folder:
        file = Path(folder, "made.pickle")
        making = [sys.executable, "-m", "benchmarks.memory.made_snapshots", str(file), "--events", str(num_events)]
        subprocess.run(making, cwd=ROOT, check=True)
        size = format_bytes(file.stat().st_size)
        works = works_on(file)
        costs = measure(works, rounds)
    return [
        METHOD.format(rounds=rounds, events=f"{num_events:,}", size=size),
        *TABLE_HEAD,
        *(_line(work, costs, num_events) for work in works),
        "",
        *budgets(costs[READ_AND_REPLAY], num_events),
    ]


def works_on(file: Path) -> list[Work]:
    """Torch's and ours."""
    spec = find_spec("torch")
    assert spec is not None, "efprof needs torch"
    assert spec.origin is not None, "torch is a package with a file"
    viz = [sys.executable, str(Path(spec.origin).with_name("cuda") / "_memory_viz.py")]
    page = str(file.with_suffix(".html"))
    load = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
    return [
        Work(name="pickle.load", command=[sys.executable, "-c", load, str(file)]),
        Work(name="_memory_viz.py stats", command=[*viz, "stats", str(file)]),
        Work(name="_memory_viz.py trace", command=[*viz, "trace", str(file)]),
        Work(name="_memory_viz.py trace_plot", command=[*viz, "trace_plot", str(file), "-o", page]),
        Work(name="efprof: read", command=_ours(read_only, file), against="_memory_viz.py stats"),
        Work(name=READ_AND_REPLAY, command=_ours(read_and_replay, file), against="_memory_viz.py trace"),
        Work(
            name="efprof: read, replay and one what-if",
            command=_ours(read_replay_and_predict, file),
            against="_memory_viz.py trace",
        ),
        Work(
            name="efprof: a page",
            command=[sys.executable, "-m", "efprof", "report", str(file), "--out", f"{file}.html"],
            against="_memory_viz.py trace_plot",
        ),
    ]


def read_only(file: str) -> None:
    """What a child does."""
    read_snapshot(Path(file))


def read_and_replay(file: str) -> None:
    """What a child does; ends with an error where the replay is not true."""
    _replayed(file)


def read_replay_and_predict(file: str) -> None:
    """What a child does."""
    WhatIf(_replayed(file)).run(parse_configuration(OTHER_SETTING))


def _replayed(file: str) -> History:
    history = history_of(read_snapshot(Path(file)), device=0)
    assert replay(history).match_share == 1, "the model must foretell what it made itself"
    return history


def _ours(function: Callable[[str], None], file: Path) -> list[str]:
    code = f"import sys; from benchmarks.memory.speed import {function.__name__}; {function.__name__}(sys.argv[1])"
    return [sys.executable, "-c", code, str(file)]


def measure(works: Sequence[Work], rounds: int) -> Costs:
    """Every work once in each round."""
    order = random.Random(0)
    costs: Costs = {work.name: [] for work in works}
    for _ in range(rounds):
        for work in order.sample(works, len(works)):
            costs[work.name].append(_measured(work))
    return costs


def _measured(work: Work) -> Cost:
    """Raises RuntimeError where it fails. On Linux a child's peak is at least what its parent had when it started."""
    start = time.perf_counter()
    process = subprocess.Popen(work.command, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{work.name} ended with {process.returncode}")
    return Cost(wall_s=wall_s, cpu_s=used.ru_utime + used.ru_stime, peak_bytes=used.ru_maxrss * 1024)


def budgets(costs: Sequence[Cost], num_events: int) -> list[str]:
    """Whether reading and replaying keeps within what it may take."""
    if num_events < BUDGET_EVENTS:
        return [
            f"Not judged: the budgets are of {BUDGET_EVENTS:,} events, and peaks below this process's own do not show."
        ]
    wall_s = statistics.median(cost.wall_s for cost in costs)
    peak_bytes = statistics.median(cost.peak_bytes for cost in costs)
    return [
        f"- Read and replay, time {_verdict(wall_s, MAX_SECONDS)}: {wall_s:.1f} s, at most {MAX_SECONDS:.0f} s.",
        f"- Read and replay, peak memory {_verdict(peak_bytes, MAX_PEAK_BYTES)}: {format_bytes(peak_bytes)}, at most "
        f"{format_bytes(MAX_PEAK_BYTES)}.",
    ]


def _verdict(value: float, most: float) -> str:
    return "held" if value <= most else "not held"


def _line(work: Work, costs: Costs, num_events: int) -> str:
    own = costs[work.name]
    wall_s = statistics.median(cost.wall_s for cost in own)
    cells = [
        work.name,
        f"{wall_s:.2f} s",
        f"{statistics.median(cost.cpu_s for cost in own):.2f} s",
        format_bytes(statistics.median(cost.peak_bytes for cost in own)),
        f"{num_events / wall_s:,.0f}",
    ]
    if work.against is None:
        return f"| {' | '.join([*cells, '', ''])} |"
    pairs = list(zip(own, costs[work.against], strict=True))
    time_ratio = statistics.median(one.wall_s / other.wall_s for one, other in pairs)
    memory_ratio = statistics.median(one.peak_bytes / other.peak_bytes for one, other in pairs)
    other = work.against.rpartition(" ")[2]
    return f"| {' | '.join([*cells, f'{time_ratio:.2f} of {other}', f'{memory_ratio:.2f} of {other}'])} |"
