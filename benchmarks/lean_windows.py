"""How much full and lean windows slow a step, and what lines they tell: `python -m benchmarks.lean_windows FOLDER`.

Windows of two steps come by turns all along, far more often than in any recording.
"""

import statistics
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch

from benchmarks.machine import machine_line
from benchmarks.recording import loops
from efprof.facts.run.run import Run, open_run
from efprof.facts.steps.step_times import StepTimes
from efprof.facts.time.lean_times import at_times_of
from efprof.facts.time.trace_windows import TraceWindow, TraceWindows
from efprof.recorder.budget import sampling
from efprof.recorder.windows import windows
from tests.recorder.recording import record_here

LOOPS = ("mlp", "gan", "transformer")
WINDOWS = tuple((first, first + 2) for first in range(30, 830, 20))
KINDS = ("lean", "trace")
MAX_LINES = 5


def main(folder: Path) -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    vars(windows)["DEFAULT_TRACE_STEPS"] = WINDOWS  # no user asked for them, so each is followed by a lean one
    vars(sampling)["ALLOWANCE_NS"] = 10**15
    columns = ("loop", "CPU outside", "lean", "full", "lean, CPU", "wall", "full, CPU", "wall")
    times = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    lines = ["| loop, line | lean | full |", "| --- " * 3 + "|"]
    for name in LOOPS:
        run = recorded(folder / name, name)
        times.append(times_row(name, run))
        lines += line_rows(name, run)
    print(machine_line(), "", *times, "", *lines, sep="\n")


def recorded(folder: Path, name: str) -> Run:
    """What was recorded there before is read again."""
    if folder.exists():
        return open_run(folder)
    loop = getattr(loops, name)(torch.device("cpu"))

    def train() -> None:
        for _, batch in zip(range(WINDOWS[-1][1] + 20), loop.batches, strict=False):
            loop.train(batch)

    return open_run(record_here(folder, train, windows=WINDOWS, overhead=0.01).folder)


def times_row(name: str, run: Run) -> str:
    """Medians of single steps recorded in full: CPU time, and how much longer they are by it and by the wall clock."""
    every = [time for time in run.get(StepTimes).every if time.record.is_full and time.step >= WINDOWS[0][0]]
    kinds = [[time for time in every if (time.record.window or "").startswith(kind)] for kind in KINDS]
    outside = [time for time in every if time.record.window is None]
    cpu, wall = (
        [statistics.median(getattr(time, clock) for time in steps) for steps in (outside, *kinds)]
        for clock in ("cpu_ms", "total_ms")
    )
    ratios = [f"{found[kind] / found[0]:.2f}" for kind in (1, 2) for found in (cpu, wall)]
    return f"| {' | '.join([name, *(f'{one:.2f} ms' for one in cpu), *ratios])} |"


def line_rows(name: str, run: Run) -> list[str]:
    """Of each line its share of what all lines have, in the fastest half of the windows of each kind."""
    traces, pairs = run.get(TraceWindows), []
    for full in (window for window in traces.windows if window.name in traces.lean):
        lean = at_times_of(full, traces.lean[full.name])
        assert lean is not None, full.name
        pairs.append((lean, full))
    found = [
        [shares(window) for window in sorted(windows, key=lambda window: window.step_ms)[: len(pairs) // 2]]
        for windows in zip(*pairs, strict=True)
    ]
    ranked = sorted(found[1][0], key=lambda place: -statistics.median(one[place] for one in found[1]))[:MAX_LINES]
    return [
        " | ".join([f"| {name}, {place}", *(spread(s[place] for s in kind) for kind in found)]) + " |"
        for place in ranked
    ]


def shares(window: TraceWindow) -> Counter[str]:
    spent: Counter[str] = Counter()
    for (_, place), paths in window.lines.items():
        spent[place] += sum(path.own_ns for path in paths)
    return Counter({place: 100 * ns / spent.total() for place, ns in spent.items()})


def spread(values: Iterable[float]) -> str:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.1f} % ({low:.1f} to {high:.1f})"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
