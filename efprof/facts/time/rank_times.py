"""What is kept of the traces of each rank: a rank is read by a process of its own, and only this comes back.

So that the traces of sixty ranks take no more memory than that of one.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, Literal, Self

import numpy as np

from efprof.artifacts.engine import carry_out
from efprof.artifacts.processors import num_processors
from efprof.artifacts.trace.events import Array
from efprof.artifacts.trace.read import read_window
from efprof.facts.run.run import Run
from efprof.facts.time.call_paths import ON_DEVICE, CallPath, by_launch
from efprof.facts.time.device_lanes import DeviceUse, kind_of, kind_of_collective
from efprof.facts.time.trace_windows import FOREIGN_TRACE, TraceWindow, TraceWindows, foreign_window
from efprof.model import NotRecorded, UnreadableInput

GLOO: Final = re.compile(r"^gloo:")
"""What c10d calls a collective that threads of the host carry out, for as long as it lasts."""
WAITS_FOR_ALL: Final = re.compile(r"^all-|reduce-scatter|barrier")
"""Of others the root goes on alone, or two ranks wait for each other only."""

Where = Literal["host", "device"]
Stays = dict[int, list[tuple[str, int]]]
"""For each step the collectives in the order they were launched: kind, and nanoseconds from arrival to end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OneRank:
    """Of one rank: what its trace says of itself, the lengths of its steps, its collectives, where its time goes.

    `spent_ms` has milliseconds per step of each stage, and of each line or function in it: ("host", stage, site),
    where the site of the whole stage is empty. It is empty where there are no collectives.
    """

    told_rank: int | None
    distributed: dict[str, object]
    steps_ns: tuple[int, ...]
    steady_ms: float | None
    device: DeviceUse | None
    is_on_device: bool
    stays: Stays
    spent_ms: dict[tuple[Where, str, str], float]

    @classmethod
    def of(cls, windows: tuple[TraceWindow, ...]) -> Self:
        """From its windows, of which there is at least one."""
        first = windows[0]
        stays: Stays = {}
        for window in windows:
            stays |= _stays(window)
        return cls(
            told_rank=first.trace.header.rank,
            distributed=first.trace.header.distributed,
            steps_ns=tuple(end - start for window in windows for start, end in window.steps),
            steady_ms=first.steady_ms,
            device=first.device,
            is_on_device=any(_communicates(window) for window in windows),
            stays=stays,
            spent_ms=_spent_ms(windows) if stays else {},
        )

    @property
    def step_ms(self) -> float:
        """The mean step, as long as the profiler made it."""
        return sum(self.steps_ns) / 1e6 / len(self.steps_ns)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTimes:
    """Every rank that has a trace with a step, in their order; why others cannot be read, by the file or folder."""

    ranks: dict[int, OneRank]
    errors: dict[str, str]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Read the traces of all ranks; raises NotRecorded where there is none.

        Those that the report shows were read here already.
        """
        shown = run.find(TraceWindows, UnreadableInput)
        windows = shown.windows if shown else ()
        here = windows[0].path.parent if windows else None
        folders = {
            place: folder
            for place, folder in enumerate(run.rank_folders)
            if not run.is_foreign or (folder / FOREIGN_TRACE).exists()
        }
        others = {place: folder for place, folder in folders.items() if folder != here}
        works = [_work(run, folder, len(others)) for folder in others.values()]
        read = carry_out(works, run.engine)
        found = {place: OneRank.of(windows) for place, folder in folders.items() if folder == here}
        found |= {place: one for place, one in zip(others, read, strict=True) if isinstance(one, OneRank)}
        errors = {
            name: str(one) for (name, _), one in zip(works, read, strict=True) if isinstance(one, UnreadableInput)
        }
        if not found and not errors:
            raise NotRecorded("no rank recorded a trace with a step; record the run without '--windows none'.")
        return cls(ranks=dict(sorted(_numbered(found).items())), errors=errors)


def _numbered(found: dict[int, OneRank]) -> dict[int, OneRank]:
    """Each by the rank that its trace names; by its place where one names none, or two the same."""
    told = {one.told_rank: one for one in found.values() if one.told_rank is not None}
    return told if len(told) == len(found) else found


def _work(run: Run, folder: Path, num_works: int) -> tuple[str, Callable[[], OneRank | None]]:
    """What reads a rank, for a process or for a machine that sees the same files, and the name of what it reads."""
    share = 1 if run.engine else max(1, num_processors() // num_works)
    if not run.is_foreign:
        alone = run.of_rank(folder)
        alone.num_processes = share
        return str(folder), partial(_of_recorded, alone)
    path = (folder / FOREIGN_TRACE).resolve()
    return str(path), partial(_of_file, path, run.own_packages, share)


def _of_recorded(run: Run) -> OneRank | None:
    if not run.rank_folder.is_dir():
        raise UnreadableInput(f"{run.rank_folder} is not there, on the machine that should read it.")
    found = run.find(TraceWindows)
    return OneRank.of(found.windows) if found and found.windows else None


def _of_file(path: Path, own_packages: frozenset[str], num_processes: int) -> OneRank:
    return OneRank.of((foreign_window(read_window(path, num_processes=num_processes), own_packages),))


def _stays(window: TraceWindow) -> Stays:
    trace = window.trace
    on_device = _communicates(window)
    events = on_device or np.flatnonzero(trace.matches(GLOO) & trace.is_of("user_annotation")).tolist()
    launched = by_launch(trace, trace.start_ns) if on_device else {}
    argument = trace.argument("collective")
    starts: Array = np.array([start for start, _ in window.steps])
    found: dict[int, list[tuple[int, str, int]]] = defaultdict(list)
    for event in events:
        launch_ns = launched.get(int(trace.id[event]), int(trace.start_ns[event]))
        place = int(np.searchsorted(starts, launch_ns, side="right")) - 1
        if place >= 0 and launch_ns < window.steps[-1][1]:
            kind = kind_of_collective(trace, event, window.paths.of_event.get(event), int(argument[event]))
            if WAITS_FOR_ALL.search(kind):
                found[window.numbers[place]].append((launch_ns, kind, int(trace.duration_ns[event])))
    return {step: [(kind, stay) for _, kind, stay in sorted(ones)] for step, ones in found.items()}


def _communicates(window: TraceWindow) -> list[int]:
    events = np.flatnonzero(window.trace.is_of(*ON_DEVICE)).tolist()
    return [event for event in events if kind_of(window.trace, event) == "communication"]


def _spent_ms(windows: tuple[TraceWindow, ...]) -> dict[tuple[Where, str, str], float]:
    """Milliseconds per step of each stage, and of each line in it."""
    found: defaultdict[tuple[Where, str, str], float] = defaultdict(float)
    num_steps = sum(len(window.steps) for window in windows)
    for window in windows:
        for where, path, spent_ns in chain(_on_host(window), _on_device(window)):
            line = path.nearest("line", "function")
            for site in {"", line.text if line is not None else ""}:
                found[where, path.stage, site] += spent_ns / 1e6 / num_steps
    return dict(found)


def _on_host(window: TraceWindow) -> Iterator[tuple[Where, CallPath, int]]:
    return (("host", path, path.own_ns) for path in window.paths.root.walk() if path.above is not None)


def _on_device(window: TraceWindow) -> Iterator[tuple[Where, CallPath, int]]:
    for event in np.flatnonzero(window.trace.is_of(*ON_DEVICE)).tolist():
        path = window.paths.of_event.get(event)
        if path is not None and kind_of(window.trace, event) != "communication":
            yield "device", path, int(window.trace.duration_ns[event])
