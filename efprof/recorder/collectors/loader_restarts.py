"""Counts iterators of a DataLoader that are made while the one before has batches left, as calls that stall a step."""

import sys
from time import perf_counter_ns
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from efprof.recorder.hooks.patching import call_after, call_before
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import count_call
from efprof.recorder.session.session import Session
from efprof.recorder.session.sites import Sites

SITE = "_efprof_site"
"""The attribute by which an iterator knows the line that made it."""


class LoaderRestarts:
    """An iterator is unfinished where its line makes another one before it has raised StopIteration."""

    def __init__(self, loop: Loop, sites: Sites) -> None:
        self._loop, self._sites = loop, sites
        self._unfinished: set[str] = set()
        self._end_began_ns = 0

    def started(self, _: object, iterator: Any) -> None:
        """A light step records nothing, and changes nothing of what is known."""
        step = self._loop.step
        site = self._sites.of_caller(sys._getframe()) if step is not None else None
        if step is None or site is None or not isinstance(iterator, _BaseDataLoaderIter):
            return
        vars(iterator)[SITE] = site
        if site in self._unfinished and step.spans:
            _, began_ns, ended_ns = step.spans[-1]  # of the call that made it
            count_call(step.waits.stalls, site, "DataLoader.__iter__", ended_ns - began_ns)
        self._unfinished.add(site)

    def exhausted(self, iterator: Any, _: object) -> None:
        self._unfinished.discard(vars(iterator).get(SITE, ""))

    def workers_end(self, *_: object) -> None:
        self._end_began_ns = perf_counter_ns()

    def workers_ended(self, iterator: Any) -> None:
        step, site = self._loop.step, vars(iterator).get(SITE)
        if step is not None and site in self._unfinished and self._loop.thread.is_training_thread:
            spent_ns = perf_counter_ns() - self._end_began_ns
            count_call(step.waits.stalls, site, "DataLoader workers end", spent_ns)


def start(session: Session) -> None:
    restarts, shell, kind = LoaderRestarts(session.loop, session.sites), session.shell, _MultiProcessingDataLoaderIter
    session.subscribe(session.loop.loader_started, "loader_restarts", restarts.started)
    session.subscribe(session.loop.loader_ended, "loader_restarts", restarts.exhausted)
    for watch, note in ((call_before, restarts.workers_end), (call_after, restarts.workers_ended)):
        session.undo_at_end([watch(kind, "_shutdown_workers", shell.guarded("loader_restarts", note))])
