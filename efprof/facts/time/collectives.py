"""The collectives that ran on the device of a trace, and for how long nothing else ran beside them."""

import re
import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from typing import Self

import numpy as np

from efprof.artifacts.trace.events import Array
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.facts.time.call_paths import by_launch
from efprof.facts.time.device_lanes import COMMUNICATION, kind_of_collective, on_device_between, overlap_ns, union
from efprof.facts.time.launching_lines import launching_line
from efprof.facts.time.path_tree import CallPath
from efprof.facts.time.rank_times import RankArrivals
from efprof.facts.time.time_use import TimeUse
from efprof.facts.time.trace_windows import OPTIMIZER_STEP, TraceWindow
from efprof.model import Narrative, Numbers, SourceLine, Table, ThinEvidence, UnreadableInput, frozen_dataclass

DDP = re.compile(r"^DistributedDataParallel\.forward$|distributed(\.ddp)?[.:]+reducer")
FSDP = re.compile(r"FullyShardedDataParallel|\bFSDP::|torch/distributed/(fsdp|_composable)")
FORWARD = re.compile(r"^DistributedDataParallel\.forward$")
BACKWARD = re.compile(r"torch/(_tensor|autograd/__init__)\.py\(\d+\): backward$")
OF_GRADIENTS = " of gradients"
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
    line: SourceLine | None
    is_ddp: bool
    is_fsdp: bool
    copies_buckets: bool
    passes_synced_in_vain: float
    """Backward passes per step beyond the first, where each of them exchanges gradients."""

    @classmethod
    def compute(cls, run: Run) -> Self:
        """From the last window; raises NotRecorded where there is no trace."""
        use = run.get(TimeUse)
        window, trace = use.window, use.window.trace
        start_ns, end_ns = window.device_bounds
        events = on_device_between(trace, start_ns, end_ns)
        is_collective = trace.matches(COMMUNICATION)[events]
        others = events[~is_collective]
        busy = union(trace.start_ns[others], trace.end_ns[others])
        launched = by_launch(trace, trace.start_ns)
        found = []
        for event in events[is_collective].tolist():
            begin, end = (min(max(at_ns, start_ns), end_ns) for at_ns in trace.span(event))
            path = window.paths.of_event.get(event)
            found.append(
                Collective(
                    kind=kind_of_collective(trace, event, path),
                    start_ns=begin,
                    end_ns=end,
                    launched_ns=launched.get(int(trace.id[event]), begin),
                    exposed_ns=end - begin - overlap_ns(busy, begin, end),
                    path=path,
                )
            )
        return cls(
            window=window,
            collectives=tuple(found),
            exposed_ms=use.per_step_ms(use.device.exposed_ns) if use.device else 0.0,
            line=_line_of(found, window, run.get(Sources)),
            is_ddp=any(map(DDP.search, trace.texts)),
            is_fsdp=any(map(FSDP.search, trace.texts)),
            copies_buckets=COPIES_BUCKETS in trace.texts,
            passes_synced_in_vain=_passes_synced_in_vain(window, found),
        )

    @property
    def share(self) -> float:
        """Of the step as it was recorded."""
        return self.exposed_ms / self.window.step_ms if self.window.step_ms else 0.0

    @property
    def exposed_by_kind(self) -> Counter[str]:
        """Nanoseconds of all steps; those of gradients apart."""
        found = Counter[str]()
        for one in self.collectives:
            found[f"{one.kind}{OF_GRADIENTS}" if one.is_of_gradients else one.kind] += one.exposed_ns
        return found

    def gradients(self) -> tuple[float, float]:
        """Exchanges of gradients per step, and the median milliseconds of one."""
        lengths = [one.end_ns - one.start_ns for one in self.collectives if one.is_of_gradients]
        return len(lengths) / self.window.num_steps, statistics.median(lengths or [0]) / 1e6


def _line_of(found: list[Collective], window: TraceWindow, sources: Sources) -> SourceLine | None:
    """Where most of what is exposed was launched; where autograd did, which has no line, the call of backward."""
    line = launching_line(((one.path, one.exposed_ns) for one in found if one.path), sources)
    of_gradients = sum(one.exposed_ns for one in found if one.is_of_gradients)
    if (line is None or not line.line) and 2 * of_gradients >= sum(one.exposed_ns for one in found):
        calls = map(window.paths.of_event.get, np.flatnonzero(window.trace.matches(BACKWARD)).tolist())
        backward = launching_line(((path, 1.0) for path in calls if path), sources)
        return backward if backward and backward.line else line
    return line


def _passes_synced_in_vain(window: TraceWindow, found: list[Collective]) -> float:
    """By the forward passes of DDP: none where gradients were not exchanged after each of them.

    Where there are several models, each of them has a forward pass and an update of its own.
    """
    forwards = _starts_of(window, FORWARD)
    places = {bisect_right(forwards, one.launched_ns) for one in found if one.is_of_gradients}
    if len(places - {0}) < len(forwards):
        return 0.0
    return max(0.0, len(forwards) / max(len(_starts_of(window, OPTIMIZER_STEP)), window.num_steps) - 1)


def _starts_of(window: TraceWindow, label: re.Pattern[str]) -> list[int]:
    """When each of these of the host began within the steps, in order."""
    trace, (start_ns, end_ns) = window.trace, window.bounds
    starts = trace.start_ns[trace.matches(label) & trace.is_of("user_annotation")].tolist()
    return [at_ns for at_ns in starts if start_ns <= at_ns < end_ns]


def waiting_share(run: Run, found: ExposedCommunication) -> float | None:
    """Of the exposed time, in which this rank waits for the last one; None where no other rank's trace tells."""
    arrivals, exposed = run.find(RankArrivals, ThinEvidence, UnreadableInput), found.exposed_by_kind
    if arrivals is None or not arrivals.waiting:
        return None
    rank = min(arrivals.ranks)
    shares = {kind: arrivals.waiting.get((rank, kind.removesuffix(OF_GRADIENTS)), 0.0) for kind in exposed}
    return sum(shares[kind] * spent for kind, spent in exposed.items()) / max(1, exposed.total())


def communication_evidence(found: ExposedCommunication) -> tuple[Numbers | Table | Narrative, ...]:
    """The figures, the collectives, and how they are known."""
    num_steps = found.window.num_steps
    sums = defaultdict[tuple[str, str], Array](lambda: np.zeros(3))
    for one in found.collectives:
        stage = one.path.stage if one.path else "not known"
        sums[one.kind, stage] += np.array((1e6, one.end_ns - one.start_ns, one.exposed_ns)) / 1e6 / num_steps
    rows = ((*names, *total.tolist()) for names, total in sums.items())
    ranked = sorted(rows, key=lambda row: (-row[4], *row[:2]))
    return (
        Numbers.of(
            "Communication, per step",
            ("while nothing else runs", found.exposed_ms, "ms"),
            ("of the step", 100 * found.share, "percent"),
            ("in all", sum(row[3] for row in ranked), "ms"),
        ),
        Table.of(
            "Collectives, per step",
            {"Collective": "", "Launched in": "", "Calls": "count", "Device": "ms", "Alone": "ms"},
            ranked,
        ),
        Narrative.of(
            "While a collective runs alone, the device computes nothing.",
            "A kernel is a collective by its name. It is alone where no other kernel and no copy runs on any stream.",
            "Its time holds the wait for the rank that comes last, which no setting of the exchange changes: give the "
            "traces of all ranks, and `slow_rank` tells which it is.",
        ),
    )
