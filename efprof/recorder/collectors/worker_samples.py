"""Samples which line of the user's each data worker is at, by a thread within the worker.

A worker process runs torch's worker loop. Ours stands in its place: it starts the thread, and calls torch's. What the
program gives its loader stays as it is, and forked workers are reached as spawned ones are.
"""

import os
import random
import sys
import threading
import time
from collections import Counter
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

from torch.utils.data._utils import worker

from efprof.artifacts.events import EVENTS_FILE
from efprof.artifacts.readings import WORKER_SAMPLES_FILE, SampledLine, WorkerSamples
from efprof.artifacts.run_file import SOURCES_FILE, SourceText, read_sources
from efprof.recorder.hooks.patching import replace
from efprof.recorder.session.hidden_thread import HiddenThread
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Shell
from efprof.recorder.session.sites import Sites
from efprof.recorder.session.stacks import calls_of
from efprof.recorder.session.writing import OWN_FOLDER, LineWriter, RankFolder

PERIOD_S = 0.02
"""Between two samples on average; they come at odd times, so as not to keep step with the items that a worker makes.
Four times as many cost 1.5 % (measured)."""

SWITCH_S = 0.0002
"""For so long a worker's Python runs on when the thread asks for its turn. At Python's 5 ms a loop that took a quarter
of the time was in none of 429 samples, with this in 22 % of them (measured)."""

MAX_LATE_S = 1.0
"""Samples that are due while the worker has Python's lock and no core are taken later, all at the line it is at then.
Without them, beside ten busy loops on two cores, a line of Python that took half the time had a quarter of the
samples, and one of NumPy, which lets go of the lock, the rest (measured). Of a worker that was stopped no more."""

WRITE_S = 1.0
"""Until a worker writes what it has counted; then after twice as long each time, so that days of training are a few
lines. A worker that is killed loses two thirds of its samples at most."""

MAX_STARTS = 500
"""Of loaders whose workers are sampled: epochs of seconds would write a line for each worker of each."""

MAX_JOIN_S = 3.0
"""A worker that ends waits no longer for its last line; torch stops one that takes 5 s."""

LOOP = worker._worker_loop

ASKING = Queue.get.__code__
"""Where a worker is while nobody asks for a batch."""

Place = tuple[str | None, str | None]
"""The site in the user's code, and the innermost function of a library."""


def start(session: Session) -> None:
    """Stand in for torch's worker loop; a loader that has no number, as one of another thread, is left alone."""
    loop = SampledLoop(session.run_folder, session.options.root, session.sites.own_package)

    def began(loader: Any) -> None:
        if loader.num_workers and loop.num_starts < MAX_STARTS:
            loop.loader = session.loop.loader_numbers.get(loader)
            loop.num_starts += 1

    def started(*_: Any) -> None:
        loop.loader = None

    session.undo_at_end(replace(worker, "_worker_loop", loop))
    session.listen("worker_samples", loader_began=began, loader_started=started)


class SampledLoop:
    """A worker's loop, to be forked with the training process or pickled to a new one."""

    def __init__(self, run_folder: Path, root: Path, own_package: str | None) -> None:
        self.__module__ = LOOP.__module__  # by which it is known that such a process serves another one
        self.loader: int | None = None
        """The one whose workers are being started."""
        self.num_starts = 0
        self._run_folder, self._root, self._own_package = str(run_folder), str(root), own_package
        self._trained_by = os.getpid()

    def __call__(self, *arguments: Any) -> None:
        """In the worker: all that it does, with the thread beside it."""
        if self.loader is None:
            return LOOP(*arguments)
        folder = RankFolder(Path(self._run_folder), waits_for_training=True)
        shell = Shell(folder, LineWriter(folder, EVENTS_FILE))
        sampler = shell.guarded("worker_samples", self._started)(folder, shell)
        try:
            return LOOP(*arguments)
        finally:
            if sampler is not None:
                shell.guarded("worker_samples", sampler.stop)()

    def _started(self, folder: RankFolder, shell: Shell) -> "Sampler":
        assert self.loader is not None
        files = WorkerFiles(folder, self._trained_by)
        sites = Sites(Path(self._root), files.texts.append)
        sites.own_package = self._own_package
        sampler = Sampler(self.loader, sites, files)
        sampler.start(shell)
        return sampler


class WorkerFiles:
    """What a worker writes; it waits in memory until the training process has a folder."""

    def __init__(self, folder: RankFolder, trained_by: int) -> None:
        self._folder, self._trained_by = folder, trained_by
        self._samples, self._sources = LineWriter(folder, WORKER_SAMPLES_FILE), LineWriter(folder, SOURCES_FILE)
        self.texts: list[SourceText] = []
        """Of the files that samples name, as far as they are not written."""

    def write_samples(self, record: WorkerSamples) -> None:
        """And the texts of the files that it names, which the workers of an epoch before may have written."""
        self._samples.write(record)
        if self._folder.join(self._trained_by) and self.texts:
            known = read_sources(self._folder.path)
            for text in self.texts:
                if text.file not in known:
                    self._sources.write(text)
            self.texts.clear()


class Sampler:
    """Counts where the thread that made it is, and writes that down now and then."""

    def __init__(self, loader: int, sites: Sites, files: WorkerFiles) -> None:
        self._loader, self._sites, self._files = loader, sites, files
        self._ident = threading.get_ident()
        self._is_over = threading.Event()
        self._random = random.Random(os.getpid())  # the program's own numbers stay as they are
        self._places = Counter[Place]()
        self._num_idle = 0
        self._switch_s = sys.getswitchinterval()

    def start(self, shell: Shell) -> None:
        """Start the thread; from now on Python may change threads more often."""
        self._thread = HiddenThread(shell.guarded("worker_samples", self._run))
        sys.setswitchinterval(SWITCH_S)

    def stop(self) -> None:
        """Have the last line written, unless the disk takes long, and leave nothing behind."""
        self._is_over.set()
        self._thread.join(MAX_JOIN_S)
        if abs(sys.getswitchinterval() - SWITCH_S) < SWITCH_S / 2:  # the program has set no other
            sys.setswitchinterval(self._switch_s)

    def _run(self) -> None:
        write_s, next_s = WRITE_S, time.monotonic()
        due = next_s + write_s
        while not self._is_over.wait(next_s - time.monotonic()):
            self._sample()
            next_s = max(next_s, time.monotonic() - MAX_LATE_S) + PERIOD_S * self._random.uniform(0.5, 1.5)
            if next_s >= due:
                self._write()
                write_s *= 2
                due = next_s + write_s
        self._write()

    def _sample(self) -> None:
        inner, is_asking = None, False
        for call in calls_of(self._ident):
            code = call.code
            if code is SampledLoop.__call__.__code__:  # around it is the program that the worker was forked from
                return
            if inner is None and code.co_filename.startswith(OWN_FOLDER):
                continue  # a forked worker goes through our hooks
            inner = inner or call
            if code is LOOP.__code__:
                if is_asking:
                    self._num_idle += 1
                else:
                    self._places[None, inner.full_name] += 1
                return
            if self._sites.is_user_code(code):
                site = self._sites.of_line(code, call.line or code.co_firstlineno)
                self._places[site, None if call is inner else inner.full_name] += 1
                return
            is_asking |= code is ASKING

    def _write(self) -> None:
        lines = [SampledLine(site, inside, number) for (site, inside), number in self._places.items()]
        if lines or self._num_idle:
            self._files.write_samples(
                WorkerSamples(loader=self._loader, pid=os.getpid(), num_idle=self._num_idle, lines=lines)
            )
        self._places.clear()
        self._num_idle = 0
