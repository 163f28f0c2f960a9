"""Which rank of a training comes last to the collectives, by how long each rank stays in them.

A collective is over for all ranks at about the same time, and each of them stays in it from its own arrival on: the
rank with the shortest kernel came last. So clocks of several machines need not agree, and how long a backward pass
takes, which holds the wait for others, is not looked at.
"""

import re
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from efprof.artifacts.trace.events import Array
from efprof.facts.run.run import Run
from efprof.facts.time.call_paths import ON_DEVICE, by_launch
from efprof.facts.time.collectives import kind_of_collective
from efprof.facts.time.device_lanes import kind_of
from efprof.facts.time.trace_windows import RankTraces, TraceWindow, TraceWindows
from efprof.model import NotRecorded, ThinEvidence, UnreadableInput

GLOO: Final = re.compile(r"^gloo:")
"""What c10d calls a collective that threads of the host carry out, for as long as it lasts."""
WAITS_FOR_ALL: Final = re.compile(r"^all-|reduce-scatter|barrier")
"""Of others the root goes on alone, or two ranks wait for each other only."""

Stays = dict[int, list[tuple[str, int]]]
"""For each step the collectives in the order they were launched: kind, and nanoseconds from arrival to end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankArrivals:
    """The windows of each rank, and by how much each comes later than the next but last one.

    `late_ns` has one entry for each step that all ranks recorded alike: for each rank the nanoseconds for which all
    others waited for it alone.
    """

    windows: dict[int, tuple[TraceWindow, ...]]
    late_ns: tuple[dict[int, int], ...]
    num_collectives: int
    is_on_device: bool

    @classmethod
    def compute(cls, run: Run) -> Self:
        """From all traces of all ranks; raises NotRecorded without a trace, ThinEvidence where ranks do not compare."""
        windows = _windows_of_ranks(run)
        _check_world(windows)
        stays = {rank: _stays_of_all(found) for rank, found in windows.items()}
        if len(windows) < 2 or not any(map(bool, stays.values())):
            return cls(windows=windows, late_ns=(), num_collectives=0, is_on_device=False)
        common = set.intersection(*(set(found) for found in stays.values()))
        alike = [step for step in sorted(common) if len({_kinds(found[step]) for found in stays.values()}) == 1]
        if not alike:
            raise ThinEvidence("the ranks recorded no step with the same collectives, so that they do not compare.")
        return cls(
            windows=windows,
            late_ns=tuple(_late_ns({rank: found[step] for rank, found in stays.items()}) for step in alike),
            num_collectives=sum(len(next(iter(stays.values()))[step]) for step in alike),
            is_on_device=any(_on_device(window) for found in windows.values() for window in found),
        )

    @property
    def step_ms(self) -> float:
        """The mean step of all ranks, as long as the profiler made it."""
        lengths = [end - start for found in self.windows.values() for window in found for start, end in window.steps]
        return sum(lengths) / 1e6 / max(1, len(lengths))

    @property
    def steady_ms(self) -> float:
        """The step outside of windows, of the rank where it is shortest; where it is not known, as it was recorded."""
        steady = [window.steady_ms for found in self.windows.values() for window in found if window.steady_ms]
        return min(steady, default=self.step_ms)

    def late_ms(self, rank: int) -> float:
        """In the median step, what the others would not wait if this rank came with the next but last one."""
        return statistics.median([late[rank] for late in self.late_ns] or [0]) / 1e6

    @property
    def latest(self) -> int:
        """The rank that is waited for most."""
        return max(self.windows, key=lambda rank: (self.late_ms(rank), -rank))

    def share_of_steps(self, rank: int) -> float:
        """In how many of the steps this rank is waited for more than all others together."""
        num = sum(2 * late[rank] > sum(late.values()) for late in self.late_ns)
        return num / max(1, len(self.late_ns))


def _windows_of_ranks(run: Run) -> dict[int, tuple[TraceWindow, ...]]:
    if run.is_foreign:
        traces = run.get(RankTraces)
        return {rank: (window,) for rank, window in traces.windows.items()} or {0: (traces.first,)}
    if len(run.rank_folders) < 2:
        return {0: run.get(TraceWindows).windows}
    found: dict[int, tuple[TraceWindow, ...]] = {}
    for number, folder in enumerate(run.rank_folders):
        windows = run.of_rank(folder).find(TraceWindows, UnreadableInput)
        if windows is not None and windows.windows:
            rank = windows.windows[0].trace.header.rank
            found[number if rank is None else rank] = windows.windows
    if not found:
        raise NotRecorded("no rank recorded a trace with a step; record the run without '--windows none'.")
    return found


def _check_world(windows: dict[int, tuple[TraceWindow, ...]]) -> None:
    """Raises ThinEvidence where the ranks are one of several, of several trainings, or exchange in groups."""
    headers = {rank: found[0].trace.header.distributed for rank, found in windows.items() if found}
    sizes = {size for header in headers.values() if isinstance(size := header.get("world_size"), int)}
    if len(headers) == 1 and any(size > 1 for size in sizes):
        raise ThinEvidence(f"there is a trace of rank {min(headers)} of {max(sizes)} alone: give those of others too.")
    if len(sizes) > 1:
        raise ThinEvidence("the traces are of trainings with different numbers of ranks, so that they do not compare.")
    for header in headers.values():
        groups = header.get("pg_config")
        for group in groups if isinstance(groups, list) else ():
            if isinstance(group, dict) and 1 < int(group.get("pg_size") or 0) < max(sizes):
                raise ThinEvidence(
                    "the ranks exchange in several groups, whose collectives a trace does not tell apart."
                )


def _stays_of_all(windows: tuple[TraceWindow, ...]) -> Stays:
    found: Stays = {}
    for window in windows:
        found |= _stays(window)
    return found


def _stays(window: TraceWindow) -> Stays:
    trace = window.trace
    on_device = _on_device(window)
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


def _on_device(window: TraceWindow) -> list[int]:
    events = np.flatnonzero(window.trace.is_of(*ON_DEVICE)).tolist()
    return [event for event in events if kind_of(window.trace, event) == "communication"]


def _kinds(stays: list[tuple[str, int]]) -> tuple[str, ...]:
    return tuple(kind for kind, _ in stays)


def _late_ns(stays: dict[int, list[tuple[str, int]]]) -> dict[int, int]:
    """Of one step: for each collective, the last rank is late by what the next but last stays longer."""
    late = Counter(dict.fromkeys(stays, 0))
    for ones in zip(*stays.values(), strict=True):
        ranked = sorted(zip((stay for _, stay in ones), stays, strict=True))
        late[ranked[0][1]] += ranked[1][0] - ranked[0][0]
    return dict(late)
