"""Which autograd nodes each call of backward ran in a profiler window, and whether any of them was run again.

A node is known by its sequence number and the thread that made it: no two nodes of a thread share one.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from efprof.artifacts.steps import StepRecord
from efprof.artifacts.trace import Trace, TraceEvent
from efprof.facts.sources import place_of

EVALUATE = "autograd::engine::evaluate_function: "
"""How the engine names its run of one node."""


class Node(NamedTuple):
    """What tells a node from all others."""

    thread: int
    sequence: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRun:
    """One run of a node; `node` is None for those that only add to a parameter's gradient, and save nothing."""

    node: Node | None
    start_ns: int
    end_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """A forward operation: the node that it makes, if it makes one, has its sequence number."""

    name: str
    sequence: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardPass:
    """One call of backward at the place asked for, in the step of `record`; `runs` are the nodes that it ran."""

    record: StepRecord
    start_ns: int
    end_ns: int
    runs: tuple[NodeRun, ...]

    @property
    def nodes(self) -> frozenset[Node]:
        """The nodes that it ran."""
        return frozenset(run.node for run in self.runs if run.node is not None)

    @property
    def thread(self) -> int:
        """The thread that made most of them."""
        return Counter(node.thread for node in self.nodes).most_common(1)[0][0]


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowPasses:
    """The calls of one window in order of time; `runs` are those of every call, also at other places."""

    name: str
    passes: tuple[BackwardPass, ...]
    runs: tuple[NodeRun, ...]
    operations: tuple[Operation, ...]

    def is_run_again(self, call: BackwardPass) -> bool:
        """Whether a node of this call is run by a later one, or it ran nodes that are older than its own step."""
        nodes = call.nodes
        is_again = any(run.node in nodes for run in self._after(call) if run.node is not None)
        start = call.record.sequence
        return is_again or (
            start is not None and any(node.sequence < start for node in nodes if node.thread == call.thread)
        )

    def is_gradient_run(self, call: BackwardPass) -> bool:
        """Whether a later call runs any node made before this one ended, its gradients' own nodes included.

        Those of the gradients are made in the threads of backward: a node of another thread than forward's may be one.
        """
        first_after = next((one.sequence for one in self.operations if one.start_ns >= call.end_ns), None)
        return any(
            run.node.thread != call.thread or first_after is None or run.node.sequence < first_after
            for run in self._after(call)
            if run.node is not None
        )

    def is_recomputing(self, call: BackwardPass) -> bool:
        """Whether operations that make nodes run within the nodes of this call, as checkpointing has them do."""
        first = bisect_left(self.operations, call.runs[0].start_ns, key=lambda one: one.start_ns)
        return first < len(self.operations) and self.operations[first].start_ns < call.end_ns

    def _after(self, call: BackwardPass) -> Sequence[NodeRun]:
        return self.runs[bisect_left(self.runs, call.end_ns, key=lambda run: run.start_ns) :]


def passes_of(trace: Trace, site: str, records: Sequence[StepRecord]) -> WindowPasses:
    """What the trace tells of the calls at the site's line; those outside of the recorded steps are left out."""
    place, name = place_of(site), trace.name.split(".")[0]
    runs = tuple(_runs(trace))
    starts = [run.start_ns for run in runs]
    calls = [
        event
        for event in trace.events
        if event.category == "python_function" and place_of(event.arguments.call_site or "") == place
    ]
    passes: list[BackwardPass] = []
    for call in calls:
        record = _step_at(call.start_ns, records)
        inside = runs[bisect_left(starts, call.start_ns) : bisect_left(starts, call.end_ns)]
        if record is not None and record.window == name and any(run.node for run in inside):
            passes.append(BackwardPass(record=record, start_ns=call.start_ns, end_ns=call.end_ns, runs=inside))
    threads = {event.thread for event in calls}
    operations = tuple(
        Operation(name=event.name, sequence=sequence, start_ns=event.start_ns, end_ns=event.end_ns)
        for event in trace.events
        if event.category == "cpu_op" and event.thread in threads and not event.arguments.forward_thread
        if (sequence := event.arguments.sequence_number) is not None
    )
    return WindowPasses(name=name, passes=tuple(passes), runs=runs, operations=operations)


def _runs(trace: Trace) -> list[NodeRun]:
    return [
        NodeRun(node=_node(event), start_ns=event.start_ns, end_ns=event.end_ns)
        for event in trace.events
        if event.category == "cpu_op" and event.name.startswith(EVALUATE)
    ]


def _node(event: TraceEvent) -> Node | None:
    sequence = event.arguments.sequence_number
    return None if sequence is None else Node(event.arguments.forward_thread or 0, sequence)


def _step_at(instant_ns: int, records: Sequence[StepRecord]) -> StepRecord | None:
    return next(
        (one for one in records if one.started_ns <= instant_ns < one.started_ns + round(one.total_us * 1000)), None
    )
