"""Counts iterators of a DataLoader that are made while the one before has batches left, as calls that stall a step."""

from time import perf_counter_ns
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from efprof.recorder.loop.open_step import count_call
from efprof.recorder.session.session import Session

SITE = "_efprof_site"
"""The attribute by which an iterator knows the line that made it."""


def start(session: Session) -> None:
    """An iterator is unfinished where its line makes another one before it has raised StopIteration."""
    loop, kind = session.loop, _MultiProcessingDataLoaderIter
    unfinished = set[str]()
    end_began_ns = 0

    def started(_: object, iterator: Any) -> None:
        """A light step records nothing, and changes nothing of what is known."""
        step = loop.step
        site = session.sites.of_caller() if step is not None else None
        if step is None or site is None or not isinstance(iterator, _BaseDataLoaderIter):
            return
        vars(iterator)[SITE] = site
        if site in unfinished and step.spans:
            _, began_ns, ended_ns = step.spans[-1]  # of the call that made it
            count_call(step.stalls, site, "DataLoader.__iter__", ended_ns - began_ns)
        unfinished.add(site)

    def exhausted(iterator: Any, _: object) -> None:
        unfinished.discard(vars(iterator).get(SITE, ""))

    def workers_end(*_: object) -> None:
        nonlocal end_began_ns
        end_began_ns = perf_counter_ns()

    def workers_ended(iterator: Any) -> None:
        step, site = loop.step, vars(iterator).get(SITE)
        if step is not None and site in unfinished and loop.thread.is_training_thread:
            count_call(step.stalls, site, "DataLoader workers end", perf_counter_ns() - end_began_ns)

    session.listen("loader_restarts", loader_started=started, loader_ended=exhausted)
    session.before(kind, "_shutdown_workers", "loader_restarts", workers_end)
    session.after(kind, "_shutdown_workers", "loader_restarts", workers_ended)
