"""Reads from Linux how many threads of this process and its children ran, or were ready to, at the ends of a few steps.

The last reading comes before data workers or the program end: of threads that ended nothing can be read.
A reading takes 0.3 to 1 ms (measured, 3 to 15 threads).
"""

import os
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from efprof.artifacts.events import ThreadsReady
from efprof.artifacts.processors import limit_periods, throttled_share
from efprof.processes import descendants_of
from efprof.recorder.budget.sampling import Budget
from efprof.recorder.launch.machine import describe_host
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.training_thread import NO_THREAD
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Note
from efprof.recorder.session.sites import Sites

Times = dict[str, NDArray[np.int64]]
"""Of each thread of this process and its children, by its file: nanoseconds it ran, and was ready and did not."""

MIN_S = 1.0
"""Of all cores together: in less, ticks of 10 ms would decide what each program had."""
FIRST_STEP = 5
"""By then its loader has started its workers; the next readings are due at 10, 20, 40 steps."""
LAST_PART = 0.75
"""Of the steps at which the next reading is due: from there on a last one is worth it."""


class ReadyThreads:
    def __init__(self, loop: Loop, sites: Sites, budget: Budget, note: Note) -> None:
        self._loop, self._sites, self._budget, self._note = loop, sites, budget, note
        self._site: str | None = None
        self._due, self._cost_ns = FIRST_STEP, 1_000_000
        self._last_ns, self._last = 0, Times()
        self._began_ns, self._first = time.perf_counter_ns(), seconds_of_cores(times_of_threads())
        self._periods = limit_periods()

    def set_by_user(self, *_: object) -> None:
        if self._loop.thread.ident != NO_THREAD:  # as it is in a data worker, where torch sets one thread
            self._site = self._sites.of_caller() or self._site

    def step_ended(self, *_: object) -> None:
        self._read_from(self._due)

    def workers_end(self, *_: object) -> None:
        if self._loop.thread.is_training_thread:
            self._read_last()

    def at_end(self) -> None:
        """Unless what came after the training, as an evaluation, took longer than the steps since the last reading."""
        updated_ns = self._loop.updated_ns
        if time.perf_counter_ns() - updated_ns < updated_ns - self._last_ns:
            self._read_last()

    def _read_last(self) -> None:
        self._read_from(max(2 * FIRST_STEP, LAST_PART * self._due))

    def _read_from(self, first: float) -> None:
        began, step = time.perf_counter_ns(), self._loop.number
        if step < first or not self._budget.affords_count(self._cost_ns):
            return
        times = times_of_threads()
        if self._last_ns:
            spent = {task: now - self._last.get(task, 0) for task, now in times.items()}
            host, cores, elapsed_ns = describe_host(), sorted(os.sched_getaffinity(0)), began - self._last_ns
            ran, waited = np.sum([*spent.values()], axis=0) / elapsed_ns
            children_ran, children_waited = of_children(spent) / elapsed_ns
            whole_s = max(MIN_S, (began - self._began_ns) / 1e9 * len(cores))
            busy, own = np.subtract(seconds_of_cores(times), self._first) / whole_s
            self._note(
                ThreadsReady(
                    step=step,
                    cores=f"{host.name_hash} {cores}",
                    num_cores=host.num_cpus,
                    num_threads=torch.get_num_threads(),
                    site=self._site,
                    ready=float(ran + waited),
                    waiting=float(waited),
                    children=float(children_ran + children_waited),
                    children_waiting=float(children_waited),
                    busy=float(busy),
                    own=float(own),
                    throttled_periods=throttled_share(self._periods),
                )
            )
        self._due, self._last_ns, self._last = 2 * step, began, times
        self._cost_ns = time.perf_counter_ns() - began
        self._budget.spend("ready threads", self._cost_ns)


def start(session: Session) -> None:
    """Nothing where the kernel does not count."""
    if not any(ran for ran, _ in times_of_threads().values()):
        return
    threads = ReadyThreads(session.loop, session.sites, session.budget, session.note)
    session.before(torch, "set_num_threads", "ready_threads", threads.set_by_user)
    session.before(_MultiProcessingDataLoaderIter, "_shutdown_workers", "ready_threads", threads.workers_end)
    session.attach("ready_threads", threads)


def times_of_threads() -> Times:
    found = {}
    for pid in (os.getpid(), *descendants_of(os.getpid())):
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError):  # it may end meanwhile
                ran, waited, _ = task.read_text().split()
                found[str(task)] = np.array([ran, waited], int)
    return found


def of_children(times: Times) -> NDArray[np.int64]:
    """The sums of all their threads."""
    return sum((times[task] for task in times if not task.startswith(f"/proc/{os.getpid()}/")), np.zeros(2, int))


def seconds_of_cores(times: Times) -> tuple[float, float]:
    """For how long the cores that this process may use were busy or stolen, and it and its children had one.

    Counted with it are threads that ended, and programs that ended and were waited for.
    """
    names = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    ticks = sum(sum(map(int, row[1:4] + row[6:9])) for row in rows if row[0] in names)
    own = 0
    for pid in dict.fromkeys(task.split("/")[2] for task in times):
        with suppress(OSError):
            after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            own += sum(map(int, after_name[11:15]))  # of the process and of what it waited for, in user and system mode
    return ticks / os.sysconf("SC_CLK_TCK"), own / os.sysconf("SC_CLK_TCK")
