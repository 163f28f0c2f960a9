"""Under which of the user's lines, modules and operators every microsecond of a trace was spent.

A trace is a stretch of nested events on each thread. What matters of the events around an instant makes its path:
stage, line, module, operator. Time is a path's own where no deeper path has it, so that all of them add up. A kernel
belongs to the path that launched it, and what the autograd engine runs to the path of the forward operation that it
differentiates.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from efprof.artifacts.trace.columns import Trace
from efprof.artifacts.trace.events import Array
from efprof.facts.time.path_tree import CallPath, Kind, Parts
from efprof.model import frozen_dataclass

LAUNCHES = ("cuda_runtime", "cuda_driver", "runtime", "xpu_runtime", "xpu_driver", "mtia_runtime")
OPERATORS = ("cpu_op", "operator")
HOST = (*OPERATORS, "python_function", "user_annotation", *LAUNCHES)
"""Categories of what threads of the host do, of 2021 and later; ROCm has the same names."""
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
EVALUATE = "autograd::engine::evaluate_function: "
"""How the autograd engine names its call of one node."""
CALL_OF_NODE = re.compile(f"^{EVALUATE}")
OTHER = "other"
STAGES_OF_CALLS = {
    "data": re.compile(r"torch/utils/data/dataloader\.py\(\d+\): __next__$|^enumerate\(DataLoader\)#"),
    "forward": re.compile(r"^nn\.Module: |^DistributedDataParallel\.forward$"),
    "backward": re.compile(r"torch/(_tensor|autograd/__init__)\.py\(\d+\): backward$|^autograd::engine::evaluate_"),
    "optimizer": re.compile(r"torch/optim/optimizer\.py\(\d+\): (wrapper|step)$|^Optimizer\.(step|zero_grad)#"),
}
"""The events that begin a stage, the outermost of them, as torch's profiler names them."""
RECORDER = re.compile(r"(^|/)efprof/recorder/")
STEP_LABEL = re.compile(r"^ProfilerStep\s*#?(\d{1,18})(?!\d)")
MODULE = "nn.Module: "


SitesOf = Callable[[str, str | None, str | None], Parts]
"""The user's lines and functions (as `file:line:function`) that an event is or was called from, outermost first: by its
name, the call site that the recorder noted of it, and the call stack that a trace may have for it."""


TracedStage = tuple[int, int, str, CallPath]
"""Where a stage begins and ends, its name, and the path that began it."""


@frozen_dataclass
class CallPaths:
    """The paths of a stretch of a trace, and the path of every event in it; `recorder_ns` is our own time.

    `outer` has the event around each that lies in another one, `threads` the lanes of the threads that make the steps.
    """

    root: CallPath
    of_event: dict[int, CallPath]
    outer: dict[int, int]
    threads: frozenset[int]
    stages: tuple[TracedStage, ...]
    """In order, on whatever thread."""
    recorder_ns: int
    unlaunched_ns: int
    """On the device, of kernels whose launch is not in the trace."""


def call_paths(trace: Trace, start_ns: int, end_ns: int, sites_of: SitesOf) -> CallPaths:
    """Walk the events that overlap the stretch."""
    walk = _Walk(trace, start_ns, end_ns, sites_of)
    main, engines, others = _threads(trace, start_ns, end_ns)
    walk.add_thread(main)
    for events in engines:
        walk.add_thread(events, beside=main)
    for events in others:
        walk.add_thread(events, is_of_step=False)
    unlaunched_ns = walk.add_kernels()
    return CallPaths(
        root=walk.root,
        of_event=walk.of_event,
        outer=walk.outer,
        threads=frozenset(int(trace.lane[events[0]]) for events in (main, *engines) if len(events)),
        stages=tuple(_innermost(sorted(walk.stages, key=lambda stage: stage[:3]))),
        recorder_ns=walk.recorder_ns,
        unlaunched_ns=unlaunched_ns,
    )


def _innermost(stages: list[TracedStage]) -> list[TracedStage]:
    """An optimizer's stage in pieces, where its closure runs the others within it."""
    found: list[TracedStage] = []
    for stage in stages:
        is_within = found and stage[0] < found[-1][1] and found[-1][2] == "optimizer"
        around = found.pop() if is_within else None
        pieces = [stage] if around is None else [(around[0], *stage[:1], *around[2:]), stage, (stage[1], *around[1:])]
        found += [piece for piece in pieces if piece[0] < piece[1]]
    return found


def by_launch(trace: Trace, values: Array) -> dict[int, int]:
    """What the event of each launch has of these values, by the number that its kernels share."""
    launches = np.flatnonzero(trace.is_of(*LAUNCHES) & (trace.id >= 0))
    return dict(zip(trace.id[launches].tolist(), values[launches].tolist(), strict=True))


def by_lane(trace: Trace, chosen: Array) -> list[Array]:
    """The places of the chosen events, those of each lane apart."""
    events = np.flatnonzero(chosen)
    return [events[trace.lane[events] == lane] for lane in np.unique(trace.lane[events])]


def _threads(trace: Trace, start_ns: int, end_ns: int) -> tuple[Array, list[Array], list[Array]]:
    """The places of the host's events by thread: that of the steps, those of the autograd engine, others that work.

    The first is that of the profiler's labels, where it does anything; else the one without backward nodes on which
    most happens. Threads that only wait for something are left out.
    """
    by_thread = by_lane(trace, trace.is_of(*HOST) & trace.overlaps(start_ns, end_ns))
    is_backward, is_work, is_step = _is_backward(trace), trace.is_of(*OPERATORS, *LAUNCHES), trace.matches(STEP_LABEL)
    working = [ev for ev in by_thread if is_work[ev].any() or (is_step[ev].any() and len(ev) > 1)] or by_thread
    if not working:
        return np.empty(0, np.int64), [], []
    main = max(working, key=lambda ev: (is_step[ev].any(), not is_backward[ev].any(), len(ev)))
    rest = [events for events in working if events is not main]
    return main, [ev for ev in rest if is_backward[ev].any()], [ev for ev in rest if not is_backward[ev].any()]


def outermost(trace: Trace, events: Array) -> Array:
    """Which of the events lie in no other."""
    reached = np.maximum.accumulate(np.concatenate([[np.iinfo(np.int64).min], trace.end_ns[events[:-1]]]))
    found: Array = trace.start_ns[events] >= reached
    return found


def _is_backward(trace: Trace) -> Array:
    """Which events are the autograd engine's calls of a node: by their name, or in 2021 by the thread they point to."""
    return trace.matches(CALL_OF_NODE) | (trace.is_of(*OPERATORS) & (trace.argument("forward_thread") > 0))


def _may_begin(stage: str, around: str) -> bool:
    """Not within another stage, but for the closure that an optimizer calls: Lightning runs all of a step in one."""
    return around == OTHER or (around == "optimizer" and stage != "optimizer")


def _stage_of(text: str) -> str | None:
    """The stage that an event of this name begins, whatever is around it."""
    return next((stage for stage, pattern in STAGES_OF_CALLS.items() if pattern.search(text)), None)


class _Event(NamedTuple):
    """What is asked of an event; texts by their places in those of the trace."""

    name_code: int
    sequence: int
    call_site: int
    call_stack: int
    is_step: bool
    is_operator: bool
    is_label: bool
    is_backward: bool
    is_recorder: bool


class _Walk:
    def __init__(self, trace: Trace, start_ns: int, end_ns: int, sites_of: SitesOf) -> None:
        self.root = CallPath("root", "", OTHER, None)
        self.of_event: dict[int, CallPath] = {}
        self.outer: dict[int, int] = {}
        self.stages: list[TracedStage] = []
        self._counts = True
        self.recorder_ns = 0
        self._trace = trace
        self._bounds = start_ns, end_ns
        self._sites_of = sites_of
        self._places = cache(self._places_of)
        self._stage = cache(_stage_of)
        is_step = trace.matches(STEP_LABEL)
        self._columns = (
            trace.name_code,
            trace.argument("sequence"),
            trace.argument("call_site"),
            trace.argument("call_stack"),
            is_step,
            trace.is_of(*OPERATORS) & ~is_step,
            trace.is_of("user_annotation") & ~is_step,
            _is_backward(trace),
            trace.matches(RECORDER),
        )
        self._forward: dict[int, CallPath] = {}
        """The path of the last forward operation of each number, on the thread of the steps."""

    def add_thread(self, events: Array, beside: Array | None = None, *, is_of_step: bool = True) -> None:
        """Walk one thread's events, outer before inner.

        The thread `beside` waits while the autograd engine works on this one: that is no time of its own paths. What a
        thread does that is no part of the step, as one that fetches ahead, is no time of the step; its kernels are.
        """
        self._counts = is_of_step
        trace, (first_ns, last_ns) = self._trace, self._bounds
        starts = np.maximum(trace.start_ns[events], first_ns).tolist()
        ends = np.minimum(trace.end_ns[events], last_ns).tolist()
        # One item of an array takes as long as all else that is done with it: whole columns are made lists.
        rows = map(_Event, *(column[events].tolist() for column in self._columns))
        open_events: list[tuple[int, int, CallPath, bool]] = []
        for event, start_ns, end_ns, row in zip(events.tolist(), starts, ends, rows, strict=True):
            while open_events and open_events[-1][1] <= start_ns:
                open_events.pop()
            if open_events:
                self.outer[event], around_end_ns, around, is_recorder_around = open_events[-1]
                # A trace rounds its times so that an inner event can seem to outlast its outer one.
                spent_ns = min(end_ns, around_end_ns) - start_ns
                self._spend(around, is_recorder_around, -spent_ns)
            else:
                spent_ns, around = end_ns - start_ns, self.root
                if (beside is not None or not is_of_step) and row.is_step:
                    continue  # the profiler draws its own labels in a lane apart
                if beside is not None and row.is_backward:
                    self._wait(beside, start_ns, spent_ns)
            path, is_recorder = self._inside(row, around)
            self._spend(path, is_recorder, spent_ns)
            path.count += path is not around
            if path.stage != around.stage and is_of_step:
                self.stages.append((start_ns, start_ns + spent_ns, path.stage, path))
            self.of_event[event] = path
            open_events.append((event, start_ns + spent_ns, path, is_recorder))

    def _wait(self, beside: Array, start_ns: int, spent_ns: int) -> None:
        """Take the time off the path that the other thread is on: no more than the innermost event there lasts."""
        place = int(np.searchsorted(self._trace.start_ns[beside], start_ns, side="right")) - 1
        event: int | None = int(beside[place]) if place >= 0 else None
        while event is not None and self._trace.end_ns[event] <= start_ns:
            event = self.outer.get(event)
        if event is not None and event in self.of_event:
            self.of_event[event].own_ns -= min(spent_ns, int(self._trace.end_ns[event]) - start_ns)

    def add_kernels(self) -> int:
        """Give each kernel's time to the path of its launch; the nanoseconds of those whose launch is not recorded.

        A kernel belongs to the steps that launched it, whenever the device came to it.
        """
        trace, (first_ns, last_ns) = self._trace, self._bounds
        launches = by_launch(trace, np.arange(len(trace)))
        kernels = np.flatnonzero(trace.is_of(*ON_DEVICE) & (trace.duration_ns > 0))
        unlaunched_ns = 0
        for kernel in kernels.tolist():
            launch = launches.get(int(trace.id[kernel]), -1)
            path = self.of_event.get(launch)
            if path is not None:
                path.device_ns += int(trace.duration_ns[kernel])
                self.of_event[kernel] = path
            elif launch < 0 and first_ns <= trace.start_ns[kernel] < last_ns:
                unlaunched_ns += int(trace.duration_ns[kernel])
        return unlaunched_ns

    def _spend(self, path: CallPath, is_recorder: bool, spent_ns: int) -> None:
        if not self._counts:
            return
        if is_recorder:
            self.recorder_ns += spent_ns
        else:
            path.own_ns += spent_ns

    def _inside(self, event: _Event, around: CallPath) -> tuple[CallPath, bool]:
        """The path of what lies in an event, and whether its own time is the recorder's."""
        text = self._trace.texts[event.name_code]
        if event.is_recorder:  # what it calls in the user's name was called from the user's line
            return self._at_places(event, around), True
        path, stage = around, self._stage(text)
        if stage is not None and _may_begin(stage, around.stage):
            path = self._under(stage, path)
        if event.is_backward and path.kind != "operator":  # below the path of the forward operation
            forward = self._under("backward", self._forward.get(event.sequence, self.root), "operator")
            return forward.step_into("operator", text.removeprefix(EVALUATE)), False
        path = self._at_places(event, path)
        if text.startswith(MODULE):
            path = path.step_into("module", text.removeprefix(MODULE))
        elif event.is_label and stage is None:
            path = path.step_into("label", text)
        elif event.is_operator:
            if event.sequence >= 0 and _may_begin("forward", path.stage):  # what is to be differentiated has a number
                path = self._under("forward", path)
            if path.kind != "operator":
                path = path.step_into("operator", text)
            if event.sequence >= 0 and path.stage != "backward":
                # The last one: what runs before the node is made has its number too.
                self._forward[event.sequence] = path
        return path, False

    def _at_places(self, event: _Event, path: CallPath) -> CallPath:
        for place in () if event.is_step else self._places(event.name_code, event.call_site, event.call_stack):
            if place != (path.kind, path.text):
                path = path.step_into(*place)
        return path

    def _under(self, stage: str, path: CallPath, *left_out: Kind) -> CallPath:
        """The same path under the stage, right below the root: a stage is one whatever lines lead to it."""
        begun = self.root.step_into("stage", stage)
        for part in path.parts():
            if part.kind not in ("stage", *left_out):
                begun = begun.step_into(part.kind, part.text)
        return begun

    def _places_of(self, *codes: int) -> Parts:
        text, call_site, call_stack = (self._trace.texts[code] if code >= 0 else None for code in codes)
        assert text is not None, "every event has a name"
        return self._sites_of(text, call_site, call_stack)
