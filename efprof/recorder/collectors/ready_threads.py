"""Reads from Linux how many threads of this process and its children ran, or were ready to, at the ends of a few steps.

A reading takes 0.3 to 1 ms (measured, 3 to 15 threads).
"""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from efprof.artifacts.events import ThreadsReady
from efprof.recorder.budget.sampling import Budget
from efprof.recorder.hooks.patching import call_before
from efprof.recorder.launch.machine import descendants_of, describe_host
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.training_thread import NO_THREAD
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Note
from efprof.recorder.session.sites import Sites

FIRST_STEP = 5
"""By then its loader has started its workers; the next readings are due at 10, 20, 40 steps."""


class ReadyThreads:
    def __init__(self, *, loop: Loop, sites: Sites, budget: Budget, note: Note) -> None:
        self._loop, self._sites, self._budget, self._note, self._site = loop, sites, budget, note, ""
        self._due, self._cost_ns = FIRST_STEP, 1_000_000
        self._last_ns, self._last = 0, dict[str, tuple[int, int]]()

    def set_by_user(self, *_: object) -> None:
        if self._loop.thread.ident != NO_THREAD:  # as it is in a data worker, where torch sets one thread
            self._site = self._sites.of_caller(sys._getframe()) or self._site

    def finish(self, *_: object) -> None:
        began, step = time.perf_counter_ns(), self._loop.number
        if step < self._due or not self._budget.affords_count(self._cost_ns):
            return
        times = times_of_threads()
        if self._last_ns:
            spent = {task: np.subtract(now, self._last.get(task, (0, 0))) for task, now in times.items()}
            own, host = f"/proc/{os.getpid()}/", describe_host()
            of_children = sum(sum(spent[task]) for task in spent if not task.startswith(own))
            event = ThreadsReady(
                step=step,
                cores=f"{host.name_hash} {sorted(os.sched_getaffinity(0))}",
                num_cores=host.num_cpus,
                num_threads=torch.get_num_threads(),
                site=self._site or None,
                ready=float(sum(map(sum, spent.values())) / (began - self._last_ns)),
                waiting=float(sum(waited for _, waited in spent.values()) / (began - self._last_ns)),
                children=float(of_children / (began - self._last_ns)),
            )
            self._note(event)
        self._due, self._last_ns, self._last = 2 * step, began, times
        self._cost_ns = time.perf_counter_ns() - began
        self._budget.spend("ready threads", self._cost_ns)


def start(session: Session) -> None:
    """Nothing where the kernel does not count."""
    if not any(ran for ran, _ in times_of_threads().values()):
        return
    threads = ReadyThreads(loop=session.loop, sites=session.sites, budget=session.budget, note=session.note)
    set_by_user = session.shell.guarded("ready_threads", threads.set_by_user)
    session.undo_at_end([call_before(torch, "set_num_threads", set_by_user)])
    session.subscribe(session.loop.step_ended, "ready_threads", threads.finish)


def times_of_threads() -> dict[str, tuple[int, int]]:
    """Of each thread of this process and its children, by its file: nanoseconds it ran, and was ready and did not."""
    found = {}
    for pid in (os.getpid(), *descendants_of(os.getpid())):
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError):  # it may end meanwhile
                ran, waited, _ = task.read_text().split()
                found[str(task)] = int(ran), int(waited)
    return found
