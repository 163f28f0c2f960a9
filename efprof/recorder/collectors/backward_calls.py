"""Sees which calls of backward keep their graph, whether anything runs a kept graph again, and when it is let go.

All nodes of a kept graph share one hook, which autograd calls where a later pass runs one of them. It holds nothing of
theirs: it dies with the last of them, and so tells when the graph is gone. Where `create_graph` gives a leaf that is no
parameter a gradient whose graph leads back to it, they keep each other alive: such leaves are never let go.
"""

import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef

from efprof.artifacts.events import BackwardCalls
from efprof.artifacts.steps import StepRecord
from efprof.model import frozen_dataclass
from efprof.recorder.holders.paths import storage_of, storages_of
from efprof.recorder.holders.variables import locals_of, may_read_locals
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.numbers.step_numbers import nodes_behind, nodes_of
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Note
from efprof.recorder.session.sites import Sites

MAX_SECONDS = 0.3
"""Of walking graphs and hooking their nodes, in a whole run: 5 to 15 us a node (measured)."""
MAX_NODES = 10_000
"""A larger graph is not watched: it would take 0.1 s."""
MAX_WATCHED = 20
"""Graphs of one line: more would tell no more, and lengthen steps that are to be measured."""
MAX_SITES = 32
FIRST_NOTE, NOTE_FACTOR = 8, 4
"""An event per line after 8 steps, 32, 128 and so on, and one at the end: a process that is killed leaves the last."""
Hook = Callable[[object], None]
ACCUMULATE = "AccumulateGrad"
"""The kind of node that stands for a leaf; all passes share it."""


def _hook_of(called: BackwardCalls) -> Hook:
    """Called with the gradients that a node is given; one for all nodes of a graph."""
    is_run_again = False

    def hook(_: object) -> None:
        nonlocal is_run_again
        if not is_run_again:
            is_run_again = True
            called.num_run_again += 1

    return hook


@frozen_dataclass
class _Graph:
    """One that a pass of this step kept: gone once its hook is. `leaves` got gradients with a graph."""

    step: int
    hook: weakref.ref[Hook]
    leaves: list[TensorWeakRef]


class BackwardWatch:
    """Told of every pass of the steps that are recorded in full, before it and after it."""

    def __init__(self, loop: Loop, sites: Sites, note: Note) -> None:
        self._loop, self._sites, self._note = loop, sites, note
        self._by_line: dict[str, BackwardCalls] = {}
        self._alive: dict[str, list[_Graph]] = {}
        """By their line, graphs that were not gone yet when they were looked at last."""
        self._next_note = FIRST_NOTE
        self._seconds = 0.0
        self._kept: tuple[BackwardCalls, list[Any], int, bool] | None = None
        """The pass that runs, if it is to keep its graph: its line, the graph's roots, its step, `create_graph`."""

    def backward_began(self, step: OpenStep, tensors: Any, _: object, retains_graph: bool, creates_graph: bool) -> None:
        if torch._C._current_graph_task_id() != -1:
            return  # reentrant checkpointing calls backward from within a pass
        self._kept = None
        name = step.backward_site
        if name is not None and name not in self._by_line and len(self._by_line) < MAX_SITES:
            self._by_line[name] = BackwardCalls(step=0, site=name)
        called = self._by_line.get(name or "")
        if called is None:
            return
        called.num_calls += 1
        called.num_retained += retains_graph
        called.num_created += creates_graph
        has_time = self._seconds < MAX_SECONDS and called.num_watched < MAX_WATCHED
        if retains_graph and has_time and not is_autograd_compiled():
            roots = nodes_of(tensors)
            self._kept = (called, roots, step.number, creates_graph) if roots else None

    def backward_ended(self) -> None:
        """It has run: from now on a run of its nodes is another pass."""
        if self._kept is None:
            return
        (called, roots, step, creates_graph), self._kept = self._kept, None
        start = time.perf_counter()
        hook = _hook_of(called)
        found = list(nodes_behind(roots, MAX_NODES + 1))
        leaves = [node.variable for node in found if type(node).__name__ == ACCUMULATE]
        if creates_graph:
            found += nodes_behind(nodes_of([leaf.grad for leaf in leaves]), MAX_NODES + 1)
        if len(found) <= MAX_NODES:
            for node in found:
                if type(node).__name__ != ACCUMULATE:
                    node.register_prehook(hook)
            own = [leaf for leaf in leaves if _has_graph(leaf) and not isinstance(leaf, torch.nn.Parameter)]
            called.num_watched, called.last_watched_step = called.num_watched + 1, step
            called.kept_bytes = max(called.kept_bytes, _bytes_of(found, leaves))
            if own and called.leaf is None:
                called.leaf = _name_of(own[0], self._sites)
            leaves_left = [TensorWeakRef(leaf) for leaf in own]
            graph = _Graph(step=step, hook=weakref.ref(hook), leaves=leaves_left)
            self._alive.setdefault(called.site, []).append(graph)
        self._seconds += time.perf_counter() - start

    def step_ended(self, _: object, record: StepRecord) -> None:
        self._kept = None
        self._sort_out(record.step)
        if record.step + 1 >= self._next_note:
            self._next_note *= NOTE_FACTOR
            self.note()

    def note(self) -> None:
        number = self._loop.number
        self._sort_out(number)
        for called in self._by_line.values():
            called.at_ns, called.step = time.time_ns(), number
            self._note(called)

    def _sort_out(self, step: int) -> None:
        for site, graphs in self._alive.items():
            called = self._by_line[site]
            gone = [graph for graph in graphs if graph.hook() is None]
            alive = self._alive[site] = [graph for graph in graphs if graph.hook() is not None]
            called.num_released += len(gone)
            called.num_released_later += sum(graph.step < step for graph in gone)
            leaves = {id(leaf) for graph in alive for one in graph.leaves if _has_graph(leaf := one())}
            called.num_cycles = max(called.num_cycles, len(leaves))


def start(session: Session) -> None:
    watch = BackwardWatch(session.loop, session.sites, session.note)
    session.attach("backward_calls", watch)
    session.on_end("backward_calls", watch.note)


def is_autograd_compiled() -> bool:
    """Whether autograd itself is compiled: a hook would have it compiled anew."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(module, "compiled_autograd_enabled", False))


def _bytes_of(found: list[Any], leaves: list[torch.Tensor]) -> int:
    """What the nodes saved; a parameter is there with or without them."""
    kept: dict[int, int] = dict(storage for node in found for storage in storages_of(node))
    for address, _ in filter(None, map(storage_of, leaves)):
        kept.pop(address, None)
    return sum(kept.values())


def _has_graph(leaf: torch.Tensor | None) -> bool:
    return leaf is not None and leaf.grad is not None and leaf.grad.grad_fn is not None


def _name_of(leaf: torch.Tensor, sites: Sites) -> str | None:
    """The variable of the innermost function of the user's that has it."""
    frame = next(sites.user_frames(), None)
    if frame is None or sys.gettrace() is not None:
        return None
    names = locals_of(frame) if may_read_locals(frame.f_code) else frame.f_globals
    return next((name for name, value in list(names.items()) if value is leaf), None)
