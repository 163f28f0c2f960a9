"""Samples the memory of the training process and its children while a DataLoader has worker processes.

Reading a process takes 6 ms and more: it is done when workers were started, at the ends of steps 10, 20, 40 and so on
within the budget, and before workers that were read end.
"""

import multiprocessing
import os
import sys
from collections import Counter, deque
from itertools import chain, islice
from pathlib import Path
from time import thread_time_ns
from types import FunctionType
from typing import Any
from weakref import WeakSet

import numpy as np
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from efprof.artifacts.readings import (
    WORKER_MEMORY_FILE,
    DataSetObjects,
    HeldContainer,
    ProcessesSample,
    ProcessMemory,
)
from efprof.processes import descendants_of
from efprof.recorder.budget.sampling import Budget
from efprof.recorder.holders.variables import PLAIN, PROGRAM, attributes_of, base_of, binding_lines
from efprof.recorder.hooks.loop_hooks import NUMBER
from efprof.recorder.loop.loop import Loop
from efprof.recorder.session.session import Session
from efprof.recorder.session.sites import Sites
from efprof.recorder.session.writing import LineWriter

FIRST_STEP = 10
"""By then its first batches are read."""

READ = "_efprof_read"
"""The attribute of an iterator whose workers were read."""

READING_NS = 6_000_000
"""Of one process that has imported torch (measured)."""

PAGE_BYTES = 4096
"""Reading an object writes its reference count, which copies the page that it lies in, not the text behind it."""

NUM_SAMPLED = 256
"""Entries of a container; of one within it 64, then 16."""

MAX_VISITED = 20_000
"""Objects in all: about 20 ms (measured)."""

MAX_DEPTH = 5

MIN_BYTES = 1 << 20

MIN_LENGTH = 100
"""Of a container that is told of; of a smaller one the entries are looked at, as the parts of a ConcatDataset."""

MAX_LISTED = 5


class WorkerMemory:
    def __init__(self, loop: Loop, sites: Sites, budget: Budget, lines: LineWriter) -> None:
        self._loop, self._sites, self._budget, self._lines = loop, sites, budget, lines
        self._iterators: WeakSet[_MultiProcessingDataLoaderIter] = WeakSet()
        self._looked_at = set[int]()
        self._due = FIRST_STEP
        self._cost_ns = 0

    def loader_started(self, loader: Any, iterator: Any) -> None:
        number = getattr(iterator, NUMBER, None)
        if number is None or not isinstance(iterator, _MultiProcessingDataLoaderIter):
            return
        self._iterators.add(iterator)
        self._cost_ns = max(self._cost_ns, (loader.num_workers + 1) * READING_NS)
        if number not in self._looked_at and self._budget.affords(self._cost_ns):
            self._looked_at.add(number)
            self._look_at(loader.dataset, number, iterator)
            self._sample()  # before they have read much

    def step_ended(self, *_: object) -> None:
        is_due = self._iterators and self._loop.number >= self._due
        if is_due and self._budget.affords(self._cost_ns):
            self._sample()

    def ending(self, iterator: Any) -> None:
        """Its workers are about to be stopped; at most once for each of the few samples before it."""
        if iterator.__dict__.pop(READ, False) and self._loop.thread.is_training_thread:
            self._iterators.add(iterator)  # a garbage collection has taken it out already
            self._sample()
            iterator.__dict__.pop(READ, None)
        self._iterators.discard(iterator)

    def _sample(self) -> None:
        began = thread_time_ns()
        step = self._loop.number
        self._due = max(FIRST_STEP, 2 * step)
        for iterator in self._iterators:
            iterator.__dict__[READ] = True
        workers = {
            worker.pid: (getattr(iterator, NUMBER), place)
            for iterator in list(self._iterators)
            for place, worker in enumerate(iterator._workers)
            if worker.pid is not None
        }
        pids = list(dict.fromkeys([*workers, os.getpid(), *descendants_of(os.getpid())]))
        processes = [read_process(pid, *workers.get(pid, ())) for pid in pids]
        self._lines.write(ProcessesSample(step=step, processes=[one for one in processes if one is not None]))
        self._cost_ns = thread_time_ns() - began
        self._budget.spend("worker memory", self._cost_ns)

    def _look_at(self, data_set: Any, number: int, iterator: Any) -> None:
        began = thread_time_ns()
        found = containers_of(data_set)
        for held, holder, name in found:
            held.site = self._line_that_sets(holder, name)
        self._lines.write(
            DataSetObjects(
                loader=number,
                site=self._sites.of_caller(),
                start_method=getattr(iterator._workers[0], "_start_method", None) or multiprocessing.get_start_method(),
                containers=[held for held, _, _ in found],
            )
        )
        self._budget.spend("worker memory", thread_time_ns() - began)

    def _line_that_sets(self, holder: Any, name: str) -> str | None:
        """The last one in the user's code of its class: what an attribute begins with is set before."""
        members = (member for kind in type(holder).__mro__ for member in vars(kind).values())
        codes = [one.__code__ for one in members if isinstance(one, FunctionType)]
        lines = [
            found
            for code in codes
            if self._sites.is_user_code(code)
            for found in binding_lines(code, name, frozenset({"STORE_ATTR"}))
        ]
        return self._sites.of_line(*max(lines, key=lambda one: one[1])) if lines else None


def start(session: Session) -> None:
    """Be told of every start of a loader, and of the ends of steps; nothing where Linux does not tell of processes."""
    if not Path("/proc/self/smaps_rollup").exists():
        return
    lines = session.lines(WORKER_MEMORY_FILE)
    workers = WorkerMemory(session.loop, session.sites, session.budget, lines)
    session.before(_MultiProcessingDataLoaderIter, "_shutdown_workers", "worker_memory", workers.ending)
    session.attach("worker_memory", workers)


def read_process(pid: int, loader: int | None = None, worker: int | None = None) -> ProcessMemory | None:
    """From smaps_rollup; None where there is no such process any more, or the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return None
    sizes = {name: 1024 * int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return ProcessMemory(
        pid=pid,
        pss_bytes=sizes["Pss"],
        private_bytes=sizes["Private_Clean"] + sizes["Private_Dirty"],
        private_dirty_bytes=sizes["Private_Dirty"],
        anonymous_bytes=sizes["Anonymous"],
        loader=loader,
        worker=worker,
        is_training=pid == os.getpid(),
    )


def containers_of(owner: Any) -> list[tuple[HeldContainer, Any, str]]:
    """The containers that its attributes hold, and those of the objects in these, most bytes first.

    With each stand the object whose attribute leads to it, and the attribute's name. The bytes are estimated from a
    bounded sample; each object counts where it is met first.
    """
    found: list[tuple[HeldContainer, Any, str]] = []
    seen = set[int]()
    waiting: deque[tuple[Any, str, Any, str, int]] = deque([(owner, type(owner).__name__, owner, "", 0)])
    while waiting and len(seen) < MAX_VISITED:
        value, path, holder, name, depth = waiting.popleft()
        if issubclass(type(value), PROGRAM) or id(value) in seen:
            continue
        entries = _entries(value, NUM_SAMPLED)
        if entries is not None and entries[1] >= MIN_LENGTH:
            num_bytes = round(_bytes_of(value, NUM_SAMPLED, seen))
            if num_bytes >= MIN_BYTES:
                found.append((_described(value, path, entries, num_bytes), holder, name))
            continue
        seen.add(id(value))
        if depth == MAX_DEPTH:
            continue
        if entries is not None:
            waiting.extend((one, f"{path}[...]", holder, name, depth + 1) for one in entries[0])
        else:
            kind = type(value).__name__
            waiting.extend((one, f"{kind}.{of}", value, of, depth + 1) for of, one in _attributes(value))
    return sorted(found, key=lambda one: -one[0].object_bytes)[:MAX_LISTED]


def _bytes_of(value: Any, num_sampled: int, seen: set[int]) -> float:
    if id(value) in seen or issubclass(type(value), PROGRAM) or len(seen) >= MAX_VISITED:
        return 0.0
    seen.add(id(value))
    entries = _entries(value, num_sampled)
    sample = [one for _, one in _attributes(value)] if entries is None else entries[0]
    distinct = list({id(one): one for one in sample}.values())
    held = sum(_bytes_of(one, max(4, num_sampled // 4), seen) for one in distinct)
    # Labels are a few objects met again and again; texts are as many objects as there are entries.
    if entries is not None and len(distinct) > len(sample) / 2:
        held *= entries[1] / min(entries[1], num_sampled)
    return held + min(PAGE_BYTES, (sys.getsizeof(value, 0) + 15) // 16 * 16)


def _described(value: Any, path: str, entries: tuple[list[Any], int], num_bytes: int) -> HeldContainer:
    sample, length = entries
    values = sample[1::2] if isinstance(value, dict) else sample
    kind = Counter(type(one).__name__ for one in values).most_common(1)[0][0]
    return HeldContainer(path=path, type=type(value).__name__, element_type=kind, length=length, object_bytes=num_bytes)


def _entries(value: Any, number: int) -> tuple[list[Any], int] | None:
    """So many entries of a container and its length, by the methods of its built-in type; None where it is none.

    Those of a list are evenly spaced; of a dict each key comes before its value.
    """
    kind = base_of(value)
    if type(value) is np.ndarray and value.dtype == object:
        kind, value = np.ndarray, value.reshape(-1)
    if kind is None:
        return None
    length = kind.__len__(value)
    if kind is dict:
        return list(chain.from_iterable(islice(dict.items(value), number))), length
    if kind in (list, tuple, np.ndarray):
        value = kind.__getitem__(value, slice(None, None, max(1, length // number)))
    return list(islice(kind.__iter__(value), number)), length


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """What an object has of its own; of a table of pandas the columns of objects."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and type(value) is pandas.DataFrame:
        return [(str(name), column.to_numpy()) for name, column in value.items() if column.dtype == object]
    return [] if type(value) in PLAIN else attributes_of(value)
