"""Counts who holds tensors after 20, 40, 80 and so many steps, and watches for a few steps what got larger in between.

Also around the first restarts of the loader that feeds the training, so that what is cleared after each epoch shows,
and at the end. As far as the budget goes; with `--holders` regardless of it, with `--no-holders` never.
"""

import functools
import os
import sys
import time
from collections import Counter
from time import perf_counter_ns, thread_time_ns
from typing import Any

import msgspec

from efprof.artifacts.events import HoldersCounted
from efprof.artifacts.files import write_atomically
from efprof.artifacts.holders import Container, Count, Counted, Moment, Watch
from efprof.artifacts.steps import StepRecord
from efprof.recorder.holders.grown_containers import Grown, GrownContainers, described
from efprof.recorder.holders.growth_watch import MAX_NS, GrowthWatch
from efprof.recorder.holders.holder_count import HolderCount
from efprof.recorder.holders.paths import Handles, Held, Key
from efprof.recorder.holders.watched_values import State, WatchedValue, states_of
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.session.session import Session

FIRST_COUNT = 20
"""Steps; what a program allocates on its first ones, it keeps for good. Each later count is at twice as many."""

FIRST_COST_NS = 200_000_000
"""Of a count, before one was taken."""

MAX_RESTARTS = 2
"""Of the loader: two tell what is cleared, and each takes two counts."""

MAX_HOLDERS = 500
"""In one file; a dictionary of tensors has as many holders as keys."""

MAX_WATCHED = 32
"""Things at a time, those that grew most: each is compared after every line."""

MIN_WATCHED_STEPS = 12

WATCHED_PART = 8
"""Of the steps so far: what grows at each evaluation is seen in a later watch. Its time is limited all the same."""

MAX_TIMES_SEEN = 2
"""Watches that saw the same thing grow: the second one tells whether the same line does it still."""


class Holders:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._is_asked_for = bool(session.options.holders)
        self._due = FIRST_COUNT
        self._cost_ns = FIRST_COST_NS
        self._count = self._num_watches = self._num_restarts = 0
        self._containers = GrownContainers()
        self._sizes: dict[Key, tuple[int, int, int]] = {}
        """Of each holder at the last count: bytes, nodes of graphs and length."""
        self._watch: GrowthWatch | None = None
        self._first_watched = 0
        self._seen: Counter[tuple[str | None, str | None, int | None]] = Counter()
        """In how many watches each thing was seen to grow."""
        self._loader: int | None = None
        self._is_loader_over = False

    def finish(self, step: OpenStep, record: StepRecord) -> None:
        self._loader = step.batches.loader
        is_traced = record.window is not None
        if self._watch is not None:
            record.window = record.window or f"watch-{self._num_watches + 1}"
            self.go_on_watching(step.number, is_last=is_traced)
        # A profiler's window would note everything that a count does; once the program ends, its functions are over.
        elif not is_traced and step.number + 1 >= self._due and not self._session.is_ended:
            self.count("step", step.number)

    def go_on_watching(self, number: int, *, is_last: bool = False) -> None:
        if self._watch is not None:
            self._session.loop.mark_interrupted()
            if self._watch.step_ended() or is_last:
                self.stop_watching(number)

    def loader_ended(self, _: Any, number: int | None) -> None:
        session = self._session
        if number is None or number != self._loader:
            return
        if session.loop.number >= FIRST_COUNT and self._num_restarts < MAX_RESTARTS:
            self._num_restarts += 1
            self._is_loader_over = True
            self.count("loader_ended", session.loop.number - 1)

    def loader_began(self, loader: Any) -> None:
        if self._is_loader_over and self._session.loop.loader_numbers.get(loader) == self._loader:
            self._is_loader_over = False
            self.count("loader_began", self._session.loop.number - 1)

    def end(self) -> None:
        num_steps = self._session.loop.num_steps
        self.stop_watching(num_steps - 1)
        if num_steps >= FIRST_COUNT or (self._is_asked_for and num_steps):
            self.count("end", num_steps - 1)

    def stop_watching(self, step: int) -> None:
        watch, self._watch = self._watch, None
        self._session.loop.light.steps.watch = None
        if watch is not None:
            watch.end()
            self._session.budget.spend("watches", watch.spent_ns)
            seen = watch.result(self._first_watched, step)
            self._seen.update((one.scope, one.path, one.number) for one in seen.watched if one.changes)
            self._write_watch(seen)

    def abandon_watch(self) -> None:
        """The collector is stopped, maybe within a line that is watched; or this is a forked child."""
        watch, self._watch, self._session.loop.light.steps.watch = self._watch, None, None
        if watch is not None:
            watch.stop()

    def count(self, moment: Moment, step: int) -> None:
        session, budget = self._session, self._session.budget
        if not (self._is_asked_for or moment == "end" or budget.affords_count(self._cost_ns)):
            return
        self.stop_watching(step)
        began, computed = perf_counter_ns(), thread_time_ns()
        holder_count = HolderCount(self._session.sites, self._containers.note_container)
        try:
            holder_count.count()
            self._containers.finish()
            name = self._write_count(holder_count, moment, step)
            self._cost_ns = thread_time_ns() - computed  # other programs on the machine make it no dearer
            budget.spend("counts", self._cost_ns)
            seconds = (perf_counter_ns() - began) / 1e9
            self._session.note(HoldersCounted(at_ns=time.time_ns(), step=step, file=name, seconds=seconds))
            if moment == "step":
                self._watch_what_grew(holder_count, step)
                while self._due <= step + 1:
                    self._due *= 2
                session.loop.sampling.want(self._due - 1, self._due)
        finally:
            self._sizes = {key: _size(held) for key, held in holder_count.held.items()}
            holder_count.handles.clear()  # a count must keep nothing alive
            self._containers.release()
        self._session.loop.mark_interrupted()

    def _write_count(self, holder_count: HolderCount, moment: Moment, step: int) -> str:
        holders = [self._counted(key, held, holder_count) for key, held in holder_count.held.items()]
        holders.sort(key=lambda one: -(one.tensor_bytes + one.graph_bytes))
        count = Count(
            step=step,
            moment=moment,
            holders=holders[:MAX_HOLDERS],
            containers=[self._described(grown, holder_count) for grown in self._containers.largest()],
            is_partial=holder_count.is_partial,
        )
        self._count += 1
        name = f"holders-{self._count}.json"
        write_atomically(self._session.rank_folder / name, msgspec.json.format(msgspec.json.encode(count)))
        return name

    def _counted(self, key: Key, held: Held, holder_count: HolderCount) -> Counted:
        containers = holder_count.handles[key].containers
        is_one = len(containers) == held.num_counted == 1
        return Counted(
            path=held.path,
            scope=held.scope,
            owner=held.owner,
            name=held.name,
            file=held.file and self._session.sites.file(held.file),
            type=held.type,
            length=held.length,
            max_length=held.max_length,
            tensors=held.tensors,
            tensor_bytes=held.tensor_bytes,
            value_bytes=held.value_bytes,
            graph_nodes=held.graph_nodes,
            graph_bytes=held.graph_bytes,
            entry=held.entry,
            is_cut=key in holder_count.cut or key in holder_count.cut_graphs,
            number=id(containers[0]) if is_one else None,
        )

    def _described(self, grown: Grown, holder_count: HolderCount) -> Container:
        place = grown.place
        held = holder_count.held.get((place.scope, place.path)) if grown.inside is None else None
        file = place.file and self._session.sites.file(place.file)
        return described(grown, held.max_length if held is not None else None, file)

    def _watch_what_grew(self, holder_count: HolderCount, step: int) -> None:
        session = self._session
        things, states = self._things(holder_count)
        if not things or not (self._is_asked_for or session.budget.affords_count(MAX_NS)):
            return
        guarded = functools.partial(session.shell.guarded, "holders")
        watch = GrowthWatch(session.sites, things, states, guarded)
        num_steps = max(MIN_WATCHED_STEPS, step // WATCHED_PART)
        why_not = watch.begin(sys._getframe(), num_steps)
        if why_not is None:
            self._watch, self._first_watched = watch, step + 1
            session.loop.light.steps.watch = guarded(self.go_on_watching)
        else:
            watch.end()
            if not self._num_watches:
                self._write_watch(Watch(first_step=step + 1, last_step=step + 1, watched=[], why_not=why_not))

    def _things(self, holder_count: HolderCount) -> tuple[list[WatchedValue], list[State]]:
        """What grew since the last count and was not watched in vain, or seen, before."""
        grown = dict(self._containers.grown)
        found: list[tuple[WatchedValue, Handles]] = []
        for key in self._grown_holders(holder_count):
            held, handles = holder_count.held[key], holder_count.handles[key]
            longer = [id(one) for one in handles.containers if grown.pop(id(one), None)]
            file = held.file and self._session.sites.file(held.file)
            number = longer[0] if len(handles.containers) == len(longer) == 1 else None
            found.append((WatchedValue(held.path, held.scope, file, number), handles))
        for address, one in grown.items():
            file = one.place.file and self._session.sites.file(one.place.file)
            thing = WatchedValue(one.place.path, one.place.scope, file, address)
            found.append((thing, Handles(containers=[one.value])))
        seen = self._seen
        found = [one for one in found if seen[one[0].scope, one[0].path, one[0].number] < MAX_TIMES_SEEN][:MAX_WATCHED]
        states = [state for thing, handles in found for state in states_of(thing, handles)]
        return [thing for thing, _ in found], states

    def _grown_holders(self, holder_count: HolderCount) -> list[Key]:
        growth = {}
        for key, held in holder_count.held.items():
            before = self._sizes.get(key)
            if before is not None and key not in holder_count.cut:
                more = [now - then for now, then in zip(_size(held), before, strict=True)]
                if key in holder_count.cut_graphs:
                    more[1] = 0
                if max(more) > 0:
                    growth[key] = more
        return sorted(growth, key=lambda key: growth[key], reverse=True)

    def _write_watch(self, watch: Watch) -> None:
        self._num_watches += 1
        path = self._session.rank_folder / f"watch-{self._num_watches}.json"
        write_atomically(path, msgspec.json.format(msgspec.json.encode(watch)))


def start(session: Session) -> None:
    if session.options.holders is False:
        return
    holders = Holders(session)
    session.shell.when_stopped("holders", holders.abandon_watch)
    os.register_at_fork(after_in_child=holders.abandon_watch)
    session.subscribe(session.loop.step_ended, "holders", holders.finish)
    session.on_end("holders", holders.end)
    session.subscribe(session.loop.loader_ended, "holders", holders.loader_ended)
    session.subscribe(session.loop.loader_began, "holders", holders.loader_began)


def _size(held: Held) -> tuple[int, int, int]:
    return held.tensor_bytes + held.graph_bytes, held.graph_nodes, held.length
