"""What graphs that outlive backward hold, and what the peak of memory is without them: a replay of a window.

Backward releases what a node saved as soon as it ran it, unless it is told to keep the graph. A block that forward
made is saved by later operations, whose nodes run earlier, or by the one that made it: without the argument it lives
until the node of its own operation begins or, where that saved its result, ends; if it has none, until the call ends.
Checkpointing holds what it computes again from until it has been through, which is taken for the node's end, too.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from efprof.facts.live_memory import LiveWindow
from efprof.facts.operation_lines import plain
from efprof.facts.retained_backward_nodes import BackwardPass, NodeRun, Operation, WindowPasses

SAVES_RESULT = frozenset(
    {
        "relu",
        "sigmoid",
        "tanh",
        "exp",
        "exp2",
        "expm1",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "softmax",
        "logsoftmax",
        "cumprod",
    }
)
"""Operations whose backward needs what they made (a test asks torch for `_saved_result`); other names are not told
apart from those that do not, and the interval of what is saved covers both."""


class Released(NamedTuple):
    """The event at which a block would have been released: by what is known of its operation, at least, at most."""

    likely: int
    earliest: int
    latest: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptGraph:
    """What one call of backward kept: the blocks, each with when it would have gone instead.

    `released_in_step` is the step in which they were released; None where the window ended before.
    """

    step: int
    blocks: dict[int, Released]
    num_bytes: int
    released_in_step: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphReplay:
    """One window with and without the graphs that were kept; `live_without` has one place per event, in bytes.

    `peak_interval` is the peak without them where every block had gone as early, or as late, as it can have.
    """

    window: LiveWindow
    graphs: tuple[KeptGraph, ...]
    live_without: NDArray[np.int64]
    peak_interval: tuple[int, int]

    @property
    def peak_without(self) -> int:
        """The most that is alive at once without them."""
        return int(np.max(self.live_without))

    @property
    def saved_bytes(self) -> int:
        """What the window's peak falls by."""
        return self.window.peak_bytes - self.peak_without

    @property
    def saved_interval(self) -> tuple[int, int]:
        """The same, at least and at most."""
        least, most = self.peak_interval
        return self.window.peak_bytes - most, self.window.peak_bytes - least

    @property
    def kept_bytes(self) -> int:
        """The largest graph."""
        return max(graph.num_bytes for graph in self.graphs)

    @property
    def reaches_next_step(self) -> bool:
        """Whether a graph was still there when the next step's forward pass ran."""
        return any(graph.released_in_step not in (None, graph.step) for graph in self.graphs)

    @property
    def outlives_a_step(self) -> bool:
        """Whether a graph was never released, though a later call of backward was seen: something holds on to it."""
        return any(graph.released_in_step is None for graph in self.graphs[:-1])


def replay_without_graphs(window: LiveWindow, passes: WindowPasses, *, creates_graph: bool) -> GraphReplay | None:
    """Replay a window whose graphs go when backward has run them; None where no call lies in it.

    `creates_graph` says that what backward itself made, but for the parameters' gradients, belongs to the graph too.
    """
    graphs = tuple(_KeptGraphs(window, passes, creates_graph).find())
    if not graphs:
        return None
    blocks = {block: released for graph in graphs for block, released in graph.blocks.items()}
    likely, earliest, latest = (
        _live_with(window, {block: released[index] for block, released in blocks.items()}) for index in range(3)
    )
    return GraphReplay(
        window=window, graphs=graphs, live_without=likely, peak_interval=(int(np.max(earliest)), int(np.max(latest)))
    )


def _live_with(window: LiveWindow, released_at: Mapping[int, int]) -> NDArray[np.int64]:
    """Bytes alive after each event, were these blocks released at these events."""
    removed = np.zeros(len(window.events) + 1, dtype=np.int64)
    for block, released in released_at.items():
        removed[released] += window.events[block].num_bytes
        removed[window.released_at[block]] -= window.events[block].num_bytes
    return window.live_bytes - np.cumsum(removed)[:-1]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A block that outlived backward; `is_of_graph` says that the call ran the node of the operation that made it."""

    block: int
    released: Released
    is_of_graph: bool


class _KeptGraphs:
    """Tells the blocks of a graph from those that a variable holds: a graph goes at once, with no allocation between.

    Where the window ends before, so many of the last blocks of each kind are left out as a variable held a call before.
    """

    def __init__(self, window: LiveWindow, passes: WindowPasses, creates_graph: bool) -> None:
        self._window, self._passes, self._creates_graph = window, passes, creates_graph
        self._times = [event.time_ns for event in window.events]
        self._num_allocations = list(accumulate(event.num_bytes > 0 for event in window.events))
        self._makers = _makers(self._times, passes.operations)
        self._held: Counter[tuple[object, ...]] = Counter()

    def find(self) -> Iterator[KeptGraph]:
        """One per call of backward, in order of time."""
        first = 0
        for call in self._passes.passes:
            blocks = self._graph_of(self._candidates(call, first))
            released = max((int(self._window.released_at[one.block]) for one in blocks), default=0)
            yield KeptGraph(
                step=call.record.step,
                blocks={one.block: one.released for one in blocks},
                num_bytes=self._bytes_of(blocks),
                released_in_step=self._step_of(released),
            )
            first = self._place(call.end_ns)

    def _candidates(self, call: BackwardPass, first: int) -> list[_Candidate]:
        """What was made since the call before, and is alive when this one ends."""
        begins, ends = self._place(call.start_ns), self._place(call.end_ns)
        ran = {run.node.sequence: run for run in call.runs if run.node and run.node.thread == call.thread}
        own = [run for run in call.runs if run.node is None]
        starts = [run.start_ns for run in own]
        found = []
        is_recomputing = not self._creates_graph and self._passes.is_recomputing(call)
        for block in range(first, ends if self._creates_graph else begins):
            if self._window.released_at[block] < ends:
                continue
            maker = self._makers[block]
            run = ran.get(maker.sequence) if maker and block < begins else None
            if block < begins:
                released = self._released(run, maker, ends, is_late=is_recomputing)
                found.append(_Candidate(block, released, run is not None))
                continue
            around = bisect_right(starts, self._times[block]) - 1
            is_parameters_gradient = around >= 0 and self._times[block] < own[around].end_ns
            if not is_parameters_gradient:
                found.append(_Candidate(block, Released(ends, ends, ends), is_of_graph=True))
        return found

    def _released(self, run: NodeRun | None, maker: Operation | None, ends: int, *, is_late: bool) -> Released:
        if run is None or maker is None:
            return Released(ends, ends, ends)
        earliest, latest = self._place(run.start_ns), min(ends, self._place(run.end_ns))
        is_late = is_late or plain(maker.name) in SAVES_RESULT
        return Released(latest if is_late else earliest, earliest, latest)

    def _graph_of(self, candidates: Sequence[_Candidate]) -> list[_Candidate]:
        together: dict[int | None, list[_Candidate]] = {}
        for one in candidates:
            together.setdefault(self._moment(one.block), []).append(one)
        if not together:
            return []
        moment = max(together, key=lambda key: self._bytes_of([one for one in together[key] if one.is_of_graph]))
        if moment is None:
            return self._without_held(together[None])
        self._held = Counter(
            self._looks_of(one.block) for other, ones in together.items() if other != moment for one in ones
        )
        return together[moment]

    def _without_held(self, candidates: Sequence[_Candidate]) -> list[_Candidate]:
        held, found = self._held.copy(), []
        for one in reversed(candidates):
            looks = self._looks_of(one.block)
            if held[looks] > 0:
                held[looks] -= 1
            else:
                found.append(one)
        return found

    def _moment(self, block: int) -> int | None:
        """Equal for blocks that were released with no allocation between; None where the window ended before."""
        released = int(self._window.released_at[block])
        return None if released >= len(self._times) else self._num_allocations[released]

    def _looks_of(self, block: int) -> tuple[object, ...]:
        event = self._window.events[block]
        return event.stack, event.operation, event.num_bytes

    def _step_of(self, released: int) -> int | None:
        """The step in which an event lies, that before it where it lies between two; None past the window's end."""
        if released >= len(self._times):
            return None
        begun = [stretch.step for stretch in self._window.stretches if stretch.first <= released]
        return begun[-1] if begun else None

    def _bytes_of(self, blocks: Sequence[_Candidate]) -> int:
        return sum(self._window.events[one.block].num_bytes for one in blocks)

    def _place(self, instant_ns: int) -> int:
        return bisect_left(self._times, instant_ns)


def _makers(times: Sequence[int], operations: Sequence[Operation]) -> list[Operation | None]:
    """The innermost operation around each instant."""
    found: list[Operation | None] = []
    around: list[Operation] = []
    upcoming = 0
    for instant in times:
        while upcoming < len(operations) and operations[upcoming].start_ns <= instant:
            around.append(operations[upcoming])
            upcoming += 1
        while around and around[-1].end_ns <= instant:
            around.pop()
        found.append(around[-1] if around else None)
    return found
