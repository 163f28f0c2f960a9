"""The collectives that ran on the device of a trace, and for how long nothing else ran beside them."""

import re
import statistics
from collections import Counter, defaultdict
from typing import Self

import numpy as np

from efprof.artifacts.trace.events import Array
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.facts.time.call_paths import by_launch
from efprof.facts.time.device_lanes import kind_of, kind_of_collective, on_device_between, overlap_ns, union
from efprof.facts.time.launching_lines import LaunchingLine, launching_line
from efprof.facts.time.path_tree import CallPath
from efprof.facts.time.time_use import TimeUse
from efprof.facts.time.trace_windows import TraceWindow
from efprof.model import Narrative, Numbers, Table, frozen_dataclass

DDP = re.compile(r"^DistributedDataParallel\.forward$|distributed(\.ddp)?[.:]+reducer")
FORWARD, UPDATE = re.compile(r"^DistributedDataParallel\.forward$"), re.compile(r"^Optimizer\.step#")
BACKWARD = re.compile(r"torch/(_tensor|autograd/__init__)\.py\(\d+\): backward$")
COPIES_BUCKETS = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
"""What DDP does after each exchange unless gradients are views of its buckets."""


@frozen_dataclass
class Collective:
    """One kernel; `launched_ns` is its own start where its launch is not in the trace, and then `path` is None."""

    kind: str
    start_ns: int
    end_ns: int
    launched_ns: int
    exposed_ns: int
    path: CallPath | None

    @property
    def is_of_gradients(self) -> bool:
        """Whether the backward pass exchanges what it has computed."""
        return self.path is not None and self.path.stage == "backward" and self.kind in ("all-reduce", "reduce-scatter")


@frozen_dataclass
class ExposedCommunication:
    """The collectives of a window in order, and the time in which the device did nothing else."""

    window: TraceWindow
    collectives: tuple[Collective, ...]
    exposed_ms: float
    """Per step, on whatever stream."""
    line: LaunchingLine | None
    is_ddp: bool
    copies_buckets: bool
    num_forwards: int
    """Of DDP in all of the window; 0 where they were not recorded."""
    num_updates: int
    """Of any optimizer: where there are several models, each of them has a forward pass and an update of its own."""
    num_synced: int
    """After how many of these gradients were exchanged before the next."""

    @classmethod
    def compute(cls, run: Run) -> Self:
        """From the last window; raises NotRecorded where there is no trace."""
        use = run.get(TimeUse)
        window, trace = use.window, use.window.trace
        found = collectives_of(window)
        forwards = _starts_of(window, FORWARD)
        synced = Counter(
            int(np.searchsorted(forwards, one.launched_ns, side="right")) for one in found if one.is_of_gradients
        )
        return cls(
            window=window,
            collectives=found,
            exposed_ms=use.per_step_ms(use.device.exposed_ns) if use.device else 0.0,
            line=_line_of(found, window, run.get(Sources)),
            is_ddp=any(map(DDP.search, trace.texts)),
            copies_buckets=COPIES_BUCKETS in trace.texts,
            num_forwards=len(forwards),
            num_updates=len(_starts_of(window, UPDATE)),
            num_synced=sum(place > 0 for place in synced),
        )

    @property
    def share(self) -> float:
        """Of the step as it was recorded."""
        return self.exposed_ms / self.window.step_ms if self.window.step_ms else 0.0

    @property
    def exposed_by_kind(self) -> Counter[str]:
        """Nanoseconds of all steps; those of gradients apart."""
        found: Counter[str] = Counter()
        for one in self.collectives:
            found[f"{one.kind} of gradients" if one.is_of_gradients else one.kind] += one.exposed_ns
        return found

    @property
    def passes_synced_in_vain(self) -> float:
        """Backward passes per step beyond the first, where each of them exchanges gradients."""
        if not self.num_forwards or self.num_synced < self.num_forwards:
            return 0.0
        return max(0.0, self.num_forwards / max(self.num_updates, self.window.num_steps) - 1)

    def gradients(self) -> tuple[float, float]:
        """Exchanges of gradients per step, and the median milliseconds of one."""
        lengths = [one.end_ns - one.start_ns for one in self.collectives if one.is_of_gradients]
        return len(lengths) / self.window.num_steps, statistics.median(lengths or [0]) / 1e6


def collectives_of(window: TraceWindow) -> tuple[Collective, ...]:
    """Those that overlap the window's steps, in the order they began."""
    trace, (start_ns, end_ns) = window.trace, window.bounds
    events = on_device_between(trace, start_ns, end_ns)
    is_collective = np.array([kind_of(trace, event) == "communication" for event in events.tolist()], bool)
    others = events[~is_collective]
    busy = union(trace.start_ns[others], trace.end_ns[others])
    launched = by_launch(trace, trace.start_ns)
    argument = trace.argument("collective")
    found = []
    for event in events[is_collective].tolist():
        begin, end = max(start_ns, int(trace.start_ns[event])), min(end_ns, int(trace.end_ns[event]))
        path = window.paths.of_event.get(event)
        found.append(
            Collective(
                kind=kind_of_collective(trace, event, path, int(argument[event])),
                start_ns=begin,
                end_ns=end,
                launched_ns=launched.get(int(trace.id[event]), begin),
                exposed_ns=end - begin - overlap_ns(busy, begin, end),
                path=path,
            )
        )
    return tuple(found)


def _line_of(found: tuple[Collective, ...], window: TraceWindow, sources: Sources) -> LaunchingLine | None:
    """Where most of what is exposed was launched; where autograd did, which has no line, the call of backward."""
    line = launching_line(((one.path, one.exposed_ns) for one in found if one.path), sources)
    of_gradients = sum(one.exposed_ns for one in found if one.is_of_gradients)
    if (line is None or not line.is_line) and 2 * of_gradients >= sum(one.exposed_ns for one in found):
        calls = map(window.paths.of_event.get, np.flatnonzero(window.trace.matches(BACKWARD)).tolist())
        backward = launching_line(((path, 1.0) for path in calls if path), sources)
        return backward if backward is not None and backward.is_line else line
    return line


def _starts_of(window: TraceWindow, label: re.Pattern[str]) -> Array:
    """When each of these of the host began within the steps, in order."""
    trace = window.trace
    starts: Array = np.sort(trace.start_ns[trace.matches(label) & trace.is_of("user_annotation")])
    start_ns, end_ns = window.bounds
    return starts[(starts >= start_ns) & (starts < end_ns)]


def communication_evidence(found: ExposedCommunication) -> tuple[Numbers | Table | Narrative, ...]:
    """The figures, the collectives, and how they are known."""
    num_steps = found.window.num_steps
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for one in found.collectives:
        total = sums[one.kind, one.path.stage if one.path else "not known"]
        total[0] += 1 / num_steps
        total[1] += (one.end_ns - one.start_ns) / 1e6 / num_steps
        total[2] += one.exposed_ns / 1e6 / num_steps
    ranked = sorted(sums.items(), key=lambda item: (-item[1][2], item[0]))
    return (
        Numbers.of(
            "Communication, per step",
            ("while nothing else runs", found.exposed_ms, "ms"),
            ("of the step", 100 * found.share, "percent"),
            ("in all", sum(spent for _, (_, spent, _) in ranked), "ms"),
        ),
        Table.of(
            "Collectives, per step",
            {"Collective": "", "Launched in": "", "Calls": "count", "Device": "ms", "Alone": "ms"},
            ((*names, *spent) for names, spent in ranked),
        ),
        Narrative.of(
            "While a collective runs alone, the device computes nothing.",
            "A kernel is a collective by its name. It is alone where no other kernel and no copy runs on any stream.",
            "Its time holds the wait for the rank that comes last, which no setting of the exchange changes: give the "
            "traces of all ranks, and `slow_rank` tells which it is.",
        ),
    )
