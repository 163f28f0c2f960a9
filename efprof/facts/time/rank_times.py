"""What is kept of the traces of each rank, which of them comes last to the collectives, and what makes it late.

A rank is read by a process of its own, and only its times come back: sixty ranks take no more memory than one.

A collective is over for all ranks at about the same time, and each of them stays in it from its own arrival on: the
rank with the shortest kernel came last. So clocks of several machines need not agree, and how long a backward pass
takes, which holds the wait for others, is not looked at.
"""

import re
import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Literal, Self

import numpy as np

from efprof.artifacts.engine import carry_out
from efprof.artifacts.processors import num_processors
from efprof.artifacts.trace.blocks import Header
from efprof.artifacts.trace.read import read_window
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources, place_of
from efprof.facts.time.call_paths import ON_DEVICE, by_launch
from efprof.facts.time.device_lanes import COMMUNICATION, DeviceUse, kind_of_collective
from efprof.facts.time.path_tree import CallPath
from efprof.facts.time.trace_windows import FOREIGN_TRACE, TraceWindow, TraceWindows, foreign_window
from efprof.model import Narrative, NotRecorded, SourceLine, Table, ThinEvidence, UnreadableInput, frozen_dataclass

GLOO = re.compile(r"^gloo:")
"""What c10d calls a collective that threads of the host carry out, for as long as it lasts."""
WAITS_FOR_ALL = re.compile(r"^all-|reduce-scatter|barrier")
"""Of others the root goes on alone, or two ranks wait for each other only."""

MAX_ROWS = 12
"""More than the few stages and the lines that matter nobody reads."""

Where = Literal["host", "device"]
Stays = dict[int, list[tuple[str, int]]]
"""For each step the collectives in the order they were launched: kind, and nanoseconds from arrival to end."""


CLOCKS_NS = 12 * 3_600_000_000_000
"""By so much the clocks of two machines differ at most, one of which may keep another zone's time."""


@frozen_dataclass
class OneRank:
    """Of one rank: what its trace says of itself, the lengths of its steps, its collectives, where its time goes.

    `spent_ms` has milliseconds per step of each stage, and of each line or function in it: ("host", stage, site),
    where the site of the whole stage is empty. It is empty where there are no collectives.
    """

    header: Header
    span_ns: tuple[int, int]
    """When its first step began and its last one ended."""
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
            header=first.trace.header,
            span_ns=(first.bounds[0], windows[-1].bounds[1]),
            steps_ns=tuple(window.whole_ns or end - start for window in windows for start, end in window.steps),
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


@frozen_dataclass
class RankTimes:
    """Every rank that has a trace with a step, in their order; and a sentence for each other that cannot be read."""

    ranks: dict[int, OneRank]
    errors: tuple[str, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Read the traces of all ranks; raises NotRecorded where there is none.

        Those that the report shows were read here already.
        """
        shown = run.find(TraceWindows, UnreadableInput)
        windows = shown.windows if shown else ()
        read: dict[Path, OneRank | UnreadableInput | None]
        read = {window.path.parent: OneRank.of(windows) for window in windows[:1]}
        others = [folder for folder in run.rank_folders if folder not in read]
        if run.is_foreign:
            others = [folder for folder in others if (folder / FOREIGN_TRACE).exists()]
        works = [_work(run, folder, len(others)) for folder in others]
        read |= zip(others, carry_out(works, run.engine), strict=True)
        every = {place: read.get(folder) for place, folder in enumerate(run.rank_folders)}
        found = {place: one for place, one in every.items() if isinstance(one, OneRank)}
        errors = tuple(str(one) for one in every.values() if isinstance(one, UnreadableInput))
        if not found and not errors:
            raise NotRecorded("no rank recorded a trace with a step; record the run with '--trace-steps 2:4'.")
        if run.is_foreign:
            _check_together({run.rank_folders[place]: one for place, one in found.items()})
        # Each by the rank that its trace names; by its place where one names none, or two the same.
        told = {one.header.rank: one for one in found.values() if one.header.rank is not None}
        ranks = told if len(told) == len(found) else found
        return cls(ranks=dict(sorted(ranks.items())), errors=errors)


def _check_together(ranks: dict[Path, OneRank]) -> None:
    """Raises UnreadableInput where two do not overlap in time, as far as clocks agree: they are of two trainings."""
    for (folder, one), (later_folder, later) in pairwise(sorted(ranks.items(), key=lambda item: item[1].span_ns)):
        are_named = one.header.rank is not None and later.header.rank is not None
        if one.span_ns[1] + are_named * CLOCKS_NS <= later.span_ns[0]:
            paths = [(each / FOREIGN_TRACE).resolve() for each in (folder, later_folder)]
            raise UnreadableInput(
                f"{paths[0]} ends before {paths[1]} begins, so that they are no ranks of one training: give one, or "
                "--each."
            )


def _work(run: Run, folder: Path, num_works: int) -> tuple[str, Callable[[], OneRank | None]]:
    """What reads a rank, for a process or for a machine that sees the same files, and the name of what it reads."""
    share = 1 if run.engine else max(1, num_processors() // num_works)
    if not run.is_foreign:
        alone = run.of_rank(folder)
        alone.num_processes, alone.max_trace_bytes = share, run.max_trace_bytes / num_works
        return str(folder), partial(_of_recorded, alone)
    path = (folder / FOREIGN_TRACE).resolve()
    return str(path), partial(_of_file, path, run.own_packages, share)


def _of_recorded(run: Run) -> OneRank | None:
    if not run.rank_folder.is_dir():
        raise UnreadableInput(f"{run.rank_folder} is not there, on the machine that should read it.")
    found = run.of_rank(run.rank_folder).find(TraceWindows)  # what it reads goes with it: other ranks follow
    return OneRank.of(found.windows) if found and found.windows else None


def _of_file(path: Path, own_packages: frozenset[str], num_processes: int) -> OneRank:
    return OneRank.of((foreign_window(read_window(path, num_processes=num_processes), own_packages),))


def _stays(window: TraceWindow) -> Stays:
    trace = window.trace
    on_device = _communicates(window)
    events = on_device or np.flatnonzero(trace.matches(GLOO) & trace.is_of("user_annotation")).tolist()
    launched = by_launch(trace, trace.start_ns) if on_device else {}
    starts = [start for start, _ in window.steps]
    found = defaultdict[int, list[tuple[int, str, int]]](list)
    for event in events:
        launch_ns = launched.get(int(trace.id[event]), int(trace.start_ns[event]))
        place = bisect_right(starts, launch_ns) - 1
        if place >= 0 and launch_ns < window.steps[-1][1]:
            kind = kind_of_collective(trace, event, window.paths.of_event.get(event))
            if WAITS_FOR_ALL.search(kind):
                found[window.numbers[place]].append((launch_ns, kind, int(trace.duration_ns[event])))
    return {step: [(kind, stay) for _, kind, stay in sorted(ones)] for step, ones in found.items()}


def _communicates(window: TraceWindow) -> list[int]:
    trace = window.trace
    return np.flatnonzero(trace.is_of(*ON_DEVICE) & trace.matches(COMMUNICATION)).tolist()


def _spent_ms(windows: tuple[TraceWindow, ...]) -> dict[tuple[Where, str, str], float]:
    """Milliseconds per step of each stage, and of each line in it."""
    found = defaultdict[tuple[Where, str, str], float](float)
    num_steps = sum(window.num_steps for window in windows)
    for window in windows:
        for where, path, spent_ns in _spent(window):
            line = path.owner
            for site in {"", line.text if line is not None else ""}:
                found[where, path.stage, site] += spent_ns / 1e6 / num_steps
    return dict(found)


def _spent(window: TraceWindow) -> Iterator[tuple[Where, CallPath, int]]:
    for path in window.walk():
        if path.above is not None:
            yield "host", path, path.own_ns
    trace = window.trace
    for event in np.flatnonzero(trace.is_of(*ON_DEVICE) & ~trace.matches(COMMUNICATION)).tolist():
        launched_by = window.paths.of_event.get(event)
        if launched_by is not None:
            yield "device", launched_by, int(trace.duration_ns[event])


@frozen_dataclass
class RankArrivals:
    """The ranks, and by how much each comes later than the next but last one.

    `late_ns` has one entry for each step that all ranks recorded alike: for each rank the nanoseconds for which all
    others waited for it alone. `last` counts the collectives to which each came last, and `waiting` has, for each rank
    and kind, what it waited for the last one of all that it stayed there.
    """

    ranks: dict[int, OneRank]
    late_ns: tuple[Counter[int], ...] = ()
    last: Counter[int] = field(default_factory=Counter)
    waiting: dict[tuple[int, str], float] = field(default_factory=dict)
    num_collectives: int = 0
    is_on_device: bool = False

    @classmethod
    def compute(cls, run: Run) -> Self:
        """From all traces of all ranks; raises NotRecorded without a trace, ThinEvidence where ranks do not compare."""
        times = run.get(RankTimes)
        if not times.ranks:
            raise UnreadableInput(times.errors[0])
        ranks = times.ranks
        _check_world({rank: one.header.distributed for rank, one in ranks.items()})
        stays = {rank: one.stays for rank, one in ranks.items()}
        if len(ranks) < 2 or not any(stays.values()):
            return cls(ranks=ranks)
        common = set.intersection(*(set(found) for found in stays.values()))
        kinds = {step: {tuple(kind for kind, _ in found[step]) for found in stays.values()} for step in sorted(common)}
        alike = [step for step, found in kinds.items() if len(found) == 1]
        if not alike:
            raise ThinEvidence("no step was read with the same collectives on all ranks, so that they do not compare.")
        every = [{rank: found[step] for rank, found in stays.items()} for step in alike]
        return cls(
            ranks=ranks,
            late_ns=tuple(map(_late_ns, every)),
            last=Counter(min(ones, key=ones.__getitem__) for step in every for _, ones in _together(step)),
            waiting=_waiting(every),
            num_collectives=sum(len(next(iter(stays.values()))[step]) for step in alike),
            is_on_device=any(one.is_on_device for one in ranks.values()),
        )

    @property
    def step_ms(self) -> float:
        """The mean step of all ranks, as long as the profiler made it."""
        return statistics.fmean(length_ns for one in self.ranks.values() for length_ns in one.steps_ns) / 1e6

    @property
    def steady_ms(self) -> float:
        """The step outside of windows, of the rank where it is shortest; where it is not known, as it was recorded."""
        return min((one.steady_ms for one in self.ranks.values() if one.steady_ms), default=self.step_ms)

    def late_ms(self, rank: int) -> float:
        """In the median step, what the others would not wait if this rank came with the next but last one."""
        return statistics.median([late[rank] for late in self.late_ns] or [0]) / 1e6

    @property
    def latest(self) -> int:
        """The rank that is waited for most."""
        return max(self.ranks, key=lambda rank: (self.late_ms(rank), -rank))

    def share_of_steps(self, rank: int) -> float:
        """In how many of the steps this rank is waited for more than all others together."""
        return sum(2 * late[rank] > sum(late.values()) for late in self.late_ns) / max(1, len(self.late_ns))


def _check_world(headers: dict[int, dict[str, object]]) -> None:
    """Raises ThinEvidence where the ranks are one of several, of several trainings, or exchange in groups."""
    sizes = {size for header in headers.values() if isinstance(size := header.get("world_size"), int)}
    if len(headers) == 1 and any(size > 1 for size in sizes):
        raise ThinEvidence(f"there is a trace of rank {min(headers)} of {max(sizes)} alone: give those of others too.")
    if len(sizes) > 1:
        raise ThinEvidence("the traces are of trainings with different numbers of ranks, so that they do not compare.")
    for header in headers.values():
        groups = header.get("pg_config")
        for group in groups if isinstance(groups, list) else ():
            size = group.get("pg_size") if isinstance(group, dict) else None
            if isinstance(size, int) and 1 < size < max(sizes):
                raise ThinEvidence(
                    "the ranks exchange in several groups, whose collectives a trace does not tell apart."
                )


def _together(stays: dict[int, list[tuple[str, int]]]) -> Iterator[tuple[str, dict[int, int]]]:
    """The collectives of one step in order: kind, and how long each rank stays."""
    for ones in zip(*stays.values(), strict=True):
        yield ones[0][0], {rank: stay for rank, (_, stay) in zip(stays, ones, strict=True)}


def _late_ns(stays: dict[int, list[tuple[str, int]]]) -> Counter[int]:
    """Of one step: for each collective, the last rank is late by what the next but last stays longer."""
    late = Counter[int]()
    for _, ones in _together(stays):
        last, next_to_last = sorted(ones, key=lambda rank: (ones[rank], rank))[:2]
        late[last] += ones[next_to_last] - ones[last]
    return late


def _waiting(steps: Iterable[dict[int, list[tuple[str, int]]]]) -> dict[tuple[int, str], float]:
    """The share of its stays that each rank waits: the last one only moves its data, as all others do from then on."""
    waited, stayed = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    for step in steps:
        for kind, ones in _together(step):
            for rank, stay in ones.items():
                waited[rank, kind] += stay - min(ones.values())
                stayed[rank, kind] += stay
    return {key: waited[key] / max(1, stayed[key]) for key in stayed}


@frozen_dataclass
class StageTime:
    """Milliseconds per step of the late rank and, on average, of the others; on a device without collectives.

    Of one line or function in the stage, or of the whole stage where `site` is empty. Waiting for the late rank makes
    the others' time longer, so that what is longer on the late rank is its own.
    """

    stage: str
    where: Where
    site: str
    late_ms: float
    others_ms: float

    @property
    def excess_ms(self) -> float:
        return self.late_ms - self.others_ms


def stage_times(arrivals: RankArrivals, late: int) -> list[StageTime]:
    """Every stage and line on the host and on the device, first that by which the late rank is furthest behind."""
    found = []
    for key in {key for one in arrivals.ranks.values() for key in one.spent_ms}:
        where, stage, site = key
        if where == "device" and not arrivals.is_on_device:
            continue  # the host's collectives do not wait for it
        others = [one.spent_ms.get(key, 0.0) for rank, one in arrivals.ranks.items() if rank != late]
        late_ms, others_ms = arrivals.ranks[late].spent_ms.get(key, 0.0), sum(others) / len(others)
        found.append(StageTime(stage=stage, where=where, site=site, late_ms=late_ms, others_ms=others_ms))
    return sorted(found, key=lambda one: (-one.excess_ms, one.site, one.stage, one.where))


def line_behind(worst: StageTime, times: list[StageTime], late: int, sources: Sources) -> SourceLine:
    """The line by which the stage is furthest behind; a made name where no line is."""
    alike = (one for one in times if one.site and (one.stage, one.where) == (worst.stage, worst.where))
    line = next(alike, worst)
    if not line.site or line.excess_ms <= 0:
        return SourceLine(file=f"{worst.stage} on rank {late} (line not recorded)", function=worst.stage)
    return sources.line(line.site)


def rank_evidence(arrivals: RankArrivals, late: int, times: list[StageTime]) -> tuple[Table | Narrative, ...]:
    """The ranks, the stages, and how they are known."""
    waits = {"Rank": "", "By all others": "ms", "Steps it holds up most": "percent"}
    ranks = (
        (f"rank {rank}", arrivals.late_ms(rank), 100 * arrivals.share_of_steps(rank)) for rank in sorted(arrivals.ranks)
    )
    spent = {"Stage": "", "Line": "", "On": "", f"Rank {late}": "ms", "The others": "ms"}
    stages = (
        (one.stage, f"`{place_of(one.site)}`" if one.site else "all of it", one.where, one.late_ms, one.others_ms)
        for one in times[:MAX_ROWS]
    )
    return (
        Table.of("Waited for, per step", waits, ranks),
        Table.of("Stages, per step", spent, stages),
        Narrative.of(
            "A collective ends when the last rank has come: all others stand still until then.",
            "The rank that stays in a collective for the shortest time came last. It is late by what the next but last "
            f"one stays longer, in {arrivals.num_collectives} collectives of {len(arrivals.late_ns)} steps, by the "
            "order of their launches; clocks were not compared.",
            "Ranks whose trace is missing may come later still. Profiling slows a rank with more calls more.",
        ),
    )
