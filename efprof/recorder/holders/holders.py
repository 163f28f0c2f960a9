"""Counts who holds tensors after 3, 6, 10, 15, 20, 40, 80, 120, 180 and so many steps, and watches what grew between.

Also around the first restarts of the loader that feeds the training, so that what is cleared after each epoch shows,
and at the end. As far as the budget goes; with `--holders` regardless of it, with `--no-holders` never.
"""

import os
import sys
import time
from collections.abc import Callable
from time import perf_counter_ns, thread_time_ns
from typing import Any
from weakref import WeakSet

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from efprof.artifacts.events import HoldersCounted
from efprof.artifacts.files import no_garbage_collection
from efprof.artifacts.holders import Container, Count, Counted, Moment, Watch, Watched
from efprof.artifacts.steps import StepRecord
from efprof.recorder.budget.sampling import Budget
from efprof.recorder.holders.grown_containers import GrownContainers
from efprof.recorder.holders.growth_watch import MAX_NS, GrowthWatch, Thing
from efprof.recorder.holders.paths import Held, Key, Node, Place, TimeLimit, TimeLimitReached
from efprof.recorder.holders.variables import attributes_of, locals_of, may_read_locals
from efprof.recorder.holders.walk import Walk
from efprof.recorder.loop.loop import Loop
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Guard, Note
from efprof.recorder.session.sites import Sites, callers, file_of_module
from efprof.recorder.session.writing import RankFolder

FIRST_COUNTS = (3, 6, 10, 15, 20, 40, 80)
"""Steps: users try a tool in runs of 30 to 100. Each later count is at half as many more: what a cache had last counted
before it was full would seem to grow for the rest of the run. On the first two steps a program allocates what it keeps
for good."""

FIRST_COST_NS = 200_000_000
"""Of a count, before one was taken."""

MAX_RESTARTS = 2
"""Of the loader: two tell what is cleared, and each takes two counts."""

MAX_HOLDERS = 500
"""In one file; a dictionary of tensors has as many holders as keys."""

MAX_WATCHED = 32
"""Things at a time, those that grew most: each is compared after every line."""

MAX_WATCHED_STEPS = 12

MAX_SECONDS = 0.2
"""Of computing; a count stops here, what it has not reached by then is not counted. It takes 120 to 180 ms with 2,000
modules, 2,000 losses, 100,000 tensors or 60,000 in a replay buffer (measured)."""

MAX_SHARE = 0.4
"""Of the time that is left, for one variable: several data sets in memory must not take it all."""


class Holders:
    """Counts when it is time, and watches what grew since the last count.

    At most one watch is open; it ends with the step in which enough was seen, or before the next count.
    """

    def __init__(
        self,
        loop: Loop,
        sites: Sites,
        budget: Budget,
        folder: RankFolder,
        note: Note,
        guard: Guard,
        *,
        is_asked: bool,
        is_over: Callable[[], bool],
    ) -> None:
        """Where it `is_asked` for, counts and watches are taken whatever they cost; not once the program `is_over`."""
        self._loop, self._sites, self._budget, self._folder, self._note = loop, sites, budget, folder, note
        self._guard, self._is_asked, self._is_over = guard, is_asked, is_over
        self._due = FIRST_COUNTS[0]
        self._cost_ns = FIRST_COST_NS
        self._num_counts = self._num_watches = self._num_restarts = 0
        self._containers = GrownContainers()
        self._sizes: dict[Key, tuple[int, int, int]] = {}
        """Of each holder at the last count: bytes, nodes of graphs and length."""
        self._grown_between = set[Key]()
        """Holders that grew between two epochs: they are watched when the next epoch ends."""
        self._watch: GrowthWatch | None = None
        self._iterators: WeakSet[_BaseDataLoaderIter] = WeakSet()
        """Of loaders, those that are not over: a loader that a `for` statement builds lives no longer than that."""
        self._loader: int | None = None
        self._is_loader_over = False

    def step_ended(self, _: object, record: StepRecord) -> None:
        self._loader = record.loader
        is_traced = record.window is not None
        if self._watch is not None:
            record.window = record.window or f"watch-{self._num_watches + 1}"
            self._go_on_watching()
        if self._watch is not None or record.step + 1 < self._due:
            return
        # A profiler's window would note everything that a count does; once the program ends, its functions are over.
        if is_traced or self._is_over() or self._loop.has_compiled:
            self._loop.sampling.want(record.step + 1, record.step + 2)
        else:
            self.count("step", record.step)

    def loader_ended(self, _: Any, number: int | None) -> None:
        if number is None or number != self._loader or self._is_in_window():
            return
        if self._loop.number >= FIRST_COUNTS[0] and self._num_restarts < MAX_RESTARTS:
            self._num_restarts += 1
            self._is_loader_over = True
            self.count("loader_ended", self._loop.number - 1)

    def loader_started(self, _: Any, iterator: Any) -> None:
        if isinstance(iterator, _BaseDataLoaderIter):  # of a loader that makes its own there may be no weak reference
            self._iterators.add(iterator)

    def loader_began(self, loader: Any) -> None:
        if self._is_loader_over and self._loop.loader_numbers.get(loader) == self._loader:
            self._is_loader_over = False
            if not self._is_in_window():
                self.count("loader_began", self._loop.number - 1)

    def _is_in_window(self) -> bool:
        """Whether the step that began last is traced, or its calls are counted: a count would be among them."""
        step = self._loop.step or self._loop.steps.closed
        return step is not None and step.window is not None

    def window_begins(self) -> None:
        """It would record the tracer."""
        self.stop_watching()

    def compilation_began(self) -> None:
        """A compiler runs a million of lines, each of them longer while it is watched."""
        if self._watch is not None:
            self._watch.stop()

    def at_end(self) -> None:
        num_steps = self._loop.num_steps
        self.stop_watching()
        if num_steps >= FIRST_COUNTS[1] or (self._is_asked and num_steps):
            self.count("end", num_steps - 1)

    def count(self, moment: Moment, step: int) -> None:
        is_seen = torch._C._autograd._profiler_enabled()  # by a profiler of the program's, which would record all of it
        if not (self._is_asked or moment == "end" or (self._budget.affords_count(self._cost_ns) and not is_seen)):
            return
        self.stop_watching()
        began, computed = perf_counter_ns(), thread_time_ns()
        holder_count = HolderCount(self._sites, self._containers.note_container, list(self._iterators))
        try:
            holder_count.count()
            self._containers.finish()
            count = self._write_count(holder_count, moment, step)
            self._cost_ns = thread_time_ns() - computed  # other programs on the machine make it no dearer
            self._budget.spend("counts", self._cost_ns)
            seconds = (perf_counter_ns() - began) / 1e9
            self._note(HoldersCounted(step=step, file=f"holders-{self._num_counts}.json", seconds=seconds))
            if moment == "loader_began":
                self._grown_between |= {
                    key
                    for key, held in holder_count.held.items()
                    if _size(held.counted) > self._sizes.get(key, (0, 0, 0))
                }
            if moment in ("step", "loader_ended"):
                self._watch_what_grew(moment, holder_count.held, count.containers)
            if moment == "step":
                firsts = (due for due in FIRST_COUNTS if due > step + 1)
                while self._due <= step + 1:
                    self._due = next(firsts, self._due * 3 // 2)
                self._loop.sampling.want(self._due - 1, self._due)
        finally:
            self._sizes = {key: _size(held.counted) for key, held in holder_count.held.items()}
            holder_count.held.clear()  # a count must keep nothing alive
            self._containers.release()
        self._loop.mark_interrupted()

    def _write_count(self, holder_count: "HolderCount", moment: Moment, step: int) -> Count:
        holders = [held.counted for held in holder_count.held.values()]
        for one in holders:
            one.file = one.file and self._sites.file(one.file)
        count = Count(
            step=step,
            moment=moment,
            holders=sorted(holders, key=lambda one: -(one.tensor_bytes + one.graph_bytes))[:MAX_HOLDERS],
            containers=self._containers.listed(self._sites),
            is_partial=holder_count.is_partial,
        )
        self._num_counts += 1
        self._folder.write_json(f"holders-{self._num_counts}.json", count)
        return count

    def _watch_what_grew(self, moment: Moment, counted: dict[Key, Held], containers: list[Container]) -> None:
        grown = self._grown_holders(counted)
        keys = [key for key in counted if key in self._grown_between] if moment == "loader_ended" else grown
        things = self._things([counted[key] for key in keys], containers)
        if not things or not (self._is_asked or self._budget.affords_count(MAX_NS)):
            return
        watch = GrowthWatch(self._sites, things, self._guard, self._loop.sampling.length_ns)
        why_not = watch.begin(sys._getframe(), MAX_WATCHED_STEPS)
        if why_not is None:
            self._watch = watch
            self._loop.light.steps.watch = self._guard(self._go_on_watching)
        else:
            watch.end()
            if not self._num_watches:
                self._write_watch(Watch(watched=[], why_not=why_not))

    def _go_on_watching(self, _: int = 0) -> None:
        if self._watch is not None:
            self._loop.mark_interrupted()
            if self._watch.step_ended():
                self.stop_watching()
                number = self._loop.number
                if self._due <= number + 1:
                    self._loop.sampling.want(number + 1, number + 2)

    def stop_watching(self) -> None:
        if (watch := self._let_go()) is not None:
            watch.end()
            self._budget.spend("watches", watch.spent_ns)
            self._write_watch(watch.result())

    def abandon_watch(self) -> None:
        """The collector is stopped, maybe within a line that is watched; or this is a forked child."""
        if (watch := self._let_go()) is not None:
            watch.stop()

    def _let_go(self) -> GrowthWatch | None:
        watch, self._watch, self._loop.light.steps.watch = self._watch, None, None
        return watch

    def _write_watch(self, watch: Watch) -> None:
        self._num_watches += 1
        self._folder.write_json(f"watch-{self._num_watches}.json", watch)

    def _things(self, holders: list[Held], listed: list[Container]) -> list[Thing]:
        """These, and containers that grew since the last count and are not those of one of them."""
        grown = dict(self._containers.grown)
        found: list[tuple[Counted | Container, list[Any], list[tuple[Any, str]]]] = []
        for held in holders:
            containers = held.containers or [one.value for one in grown.values() if one.place.inside is held]
            found.append((held.counted, containers, held.names))
            for container in containers:
                grown.pop(id(container), None)
        found += [
            (one, [grown[one.number].value], [])
            for one in listed
            if one.number in grown and one.length > one.length_before
        ]
        return [
            (Watched(path=one.path, scope=one.scope, file=one.file, number=one.number), containers, names)
            for one, containers, names in found[:MAX_WATCHED]
        ]

    def _grown_holders(self, counted: dict[Key, Held]) -> list[Key]:
        """Those that grew most first; one that was cut may only seem to have grown, which its watch will show."""
        growth = {
            key: [now - then for now, then in zip(_size(held.counted), self._sizes[key], strict=True)]
            for key, held in counted.items()
            if key in self._sizes
        }
        return [key for key in sorted(growth, key=lambda key: growth[key], reverse=True) if max(growth[key]) > 0]


class HolderCount:
    """One walk from the user's variables; `held` maps scope and path to what was found there."""

    def __init__(self, sites: Sites, on_container: Callable[[Any, Place], None], iterators: list[Any]) -> None:
        self.held: dict[Key, Held] = {}
        self.is_partial = False
        self._sites = sites
        self._iterators = iterators
        self._end = time.thread_time() + MAX_SECONDS
        self._time_limit = TimeLimit(self._end)
        self._walk = Walk(sites, self._time_limit, on_container)

    def count(self) -> dict[Key, Held]:
        """Walk from the locals of the user's functions that are running, then from the globals of his modules.

        Last from data sets of loaders, and from what iterates over a stream: of those that a `for` statement builds no
        variable knows.
        """
        with no_garbage_collection():  # it would go through the whole heap
            if sys.gettrace() is None:  # under a debugger, reading a frame's locals may write them back
                self._walk.running = set(map(id, callers()))
                for frame in self._sites.user_frames():
                    code = frame.f_code
                    if may_read_locals(code):
                        self._count_variables("local", code.co_qualname, code.co_filename, locals_of(frame), frame)
            for module in {id(one): one for one in list(sys.modules.values())}.values():  # some have two names
                file = file_of_module(module) or self._file_that_runs(module)
                if file and self._sites.is_user_file(file):
                    self._count_variables("global", module.__name__, file, vars(module), vars(module))
            for iterator in self._iterators:
                names = dict(attributes_of(iterator))
                fetcher = names.get("_dataset_fetcher")
                data = {"dataset": names.get("_dataset"), "iterator": getattr(fetcher, "dataset_iter", None)}
                self._count_variables("attribute", "DataLoader", None, data, data)
            self._count_graphs()
            for held in self._walk.held.values():
                held.forget()
            self._walk.seen.clear()
        self.held = {key: held for key, held in self._walk.held.items() if held.counted.tensors}
        self._walk.held.clear()
        return self.held

    def _file_that_runs(self, module: object) -> str | None:
        """Of a main module from no file, as a notebook's is, what calls its code that trains by."""
        if module is not sys.modules.get("__main__"):
            return None
        running = (frame for frame in self._sites.user_frames() if frame.f_globals is vars(module))
        return next((frame.f_code.co_filename for frame in running), None)

    def _count_variables(
        self, scope: str, owner: str, file: str | None, names: dict[str, Any], within: Any = None
    ) -> None:
        for name, value in list(names.items()):
            now = time.thread_time()
            self._time_limit.limit = now + MAX_SHARE * (self._end - now)
            try:
                self._walk.visit_variable(scope, owner, file, name, value, within)
            except TimeLimitReached:
                self.is_partial = True

    def _count_graphs(self) -> None:
        """Behind the tensors of each holder, those of few first; each has its part of the time that is left."""
        nodes: dict[Any, Node] = {}
        waiting = sorted((held for held in self._walk.held.values() if held.roots), key=lambda held: len(held.roots))
        for num_before, held in enumerate(waiting):
            now = time.thread_time()
            self._time_limit.limit = now + (self._end - now) / (len(waiting) - num_before)
            try:
                held.add_graphs(nodes, self._time_limit)
            except TimeLimitReached:
                self.is_partial = held.counted.is_cut = True


def start(session: Session) -> None:
    if session.options.holders is False:
        return
    guard, is_asked = session.shell.guard("holders"), bool(session.options.holders)
    holders = Holders(
        session.loop,
        session.sites,
        session.budget,
        session.rank_folder,
        session.note,
        guard,
        is_asked=is_asked,
        is_over=lambda: session.is_ended,
    )
    session.shell.when_stopped("holders", holders.abandon_watch)
    os.register_at_fork(after_in_child=holders.abandon_watch)
    session.attach("holders", holders)


def _size(counted: Counted) -> tuple[int, int, int]:
    return counted.tensor_bytes + counted.graph_bytes, counted.graph_nodes, counted.length
