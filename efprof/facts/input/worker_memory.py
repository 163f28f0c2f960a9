"""What data workers copied of the memory that they shared with the training process, and what the data set holds."""

import statistics
from typing import Self

from efprof.artifacts.readings import (
    WORKER_MEMORY_FILE,
    DataSetObjects,
    HeldContainer,
    ProcessesSample,
    ProcessMemory,
    read_worker_memory,
)
from efprof.facts.run.run import Run
from efprof.facts.source.sources import line_at
from efprof.model import (
    Evidence,
    Narrative,
    NothingToLookAt,
    NotRecorded,
    Series,
    SeriesLine,
    SourceLine,
    Table,
    ThinEvidence,
    frozen_dataclass,
)
from efprof.units import MIB, format_bytes

MIN_OBJECTS = 16 * MIB
"""What a data set may hold in Python objects: the interpreter with torch takes five times as much."""
MIN_COPIED = 8 * MIB
MIN_SHARE = 0.25
"""Of these objects, by the time a worker was read last. With arrays a worker copied 1 to 3 MiB of a whole epoch, with
strings all of them, nine tenths in the first half of it (measured, Python 3.11)."""
MAX_LINES = 8


@frozen_dataclass
class Worker:
    """One process of a loader's, by its place among them, at each step at which it was read."""

    place: int
    readings: tuple[tuple[int, ProcessMemory], ...]

    @property
    def copied_bytes(self) -> int:
        """What it no longer shares: pages that it, or the training process, has written since."""
        first, last = self.readings[0][1], self.readings[-1][1]
        return max(0, first.shared_anonymous_bytes - last.shared_anonymous_bytes)


@frozen_dataclass
class WorkerMemory:
    """Of the loader whose workers copied most: its workers that were read twice, and what its data set held."""

    data_set: DataSetObjects
    workers: tuple[Worker, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded where no loader had workers, ThinEvidence where none of them was read twice."""
        if not (run.rank_folder / WORKER_MEMORY_FILE).exists():
            raise NothingToLookAt("data workers (on Linux)")
        samples, data_sets = read_worker_memory(run.rank_folder)
        found = [cls(data_set=one, workers=_workers_of(samples, one.loader)) for one in data_sets]
        read_twice = [one for one in found if one.workers]
        if not read_twice:
            raise ThinEvidence("no data worker lived long enough to be read twice; record a longer epoch.")
        return max(read_twice, key=lambda one: len(one.workers) * one.copied_bytes)

    @property
    def copied_bytes(self) -> int:
        """By the median worker."""
        return round(statistics.median(worker.copied_bytes for worker in self.workers))

    @property
    def object_bytes(self) -> int:
        """Of all the data set's Python objects, by the estimate."""
        return sum(held.object_bytes for held in self.data_set.containers)

    @property
    def copied_container(self) -> HeldContainer | None:
        """The one with most bytes, where the data set's objects explain what was copied."""
        held = self.object_bytes
        is_explained = held >= MIN_OBJECTS and self.copied_bytes >= max(MIN_COPIED, MIN_SHARE * held)
        return self.data_set.containers[0] if is_explained else None

    @property
    def last_step(self) -> int:
        return max(worker.readings[-1][0] for worker in self.workers)

    def blame(self, run: Run) -> SourceLine:
        """The line that fills the container, else the loop's."""
        site = self.data_set.containers[0].site or self.data_set.site
        if site is None:
            raise ThinEvidence(
                f"workers copied {format_bytes(self.copied_bytes)} each, of a data set of no known line."
            )
        return line_at(run, site)

    def evidence(self) -> tuple[Evidence, ...]:
        lines = (
            SeriesLine(
                label=f"worker {worker.place}",
                x=tuple(float(step) for step, _ in worker.readings),
                y=tuple(float(process.private_bytes) for _, process in worker.readings),
                is_highlighted=worker is self.workers[0],
            )
            for worker in self.workers[:MAX_LINES]
        )
        title = "Memory that each data worker has alone"
        private = Series(title=title, x_unit="", y_label="private memory", y_unit="bytes", lines=tuple(lines))
        return private, NARRATIVE


NARRATIVE = Narrative.of(
    "A forked worker shares the memory of the training process until one of them writes to it. Python counts "
    "references within each object, so that reading one writes to it: the system then copies the page of memory "
    "that the object lies in. What a worker shared when it was read first and no longer when it was read last, it "
    "copied, as Linux tells. The size of the data set's objects is an estimate from a few hundred of them. "
    "Where there is but one worker, what the training process writes is counted as well.",
)


def process_table(run: Run) -> Table | None:
    """All processes when they took most together; None where no loader had workers, or nobody told of them."""
    try:
        samples, _ = read_worker_memory(run.rank_folder)
    except NotRecorded:
        return None
    if not samples:
        return None
    fullest = max(samples, key=_total_bytes)
    held = format_bytes(_total_bytes(fullest))
    ordered = sorted(fullest.processes, key=lambda process: (not process.is_training, -process.pss_bytes))
    return Table.of(
        f"All processes at step {fullest.step:,}, when they held most: {held}",
        {"process": "", "its part of all": "bytes", "private": "bytes"},
        ((process.name, float(process.pss_bytes), float(process.private_bytes)) for process in ordered),
    )


def _total_bytes(sample: ProcessesSample) -> int:
    return sum(process.pss_bytes for process in sample.processes)


def _workers_of(samples: list[ProcessesSample], loader: int) -> tuple[Worker, ...]:
    """Of each place the process, of those read twice, that copied most; a new epoch brings new ones."""
    read: dict[tuple[int, int], list[tuple[int, ProcessMemory]]] = {}
    for sample in samples:
        for process in sample.processes:
            if process.loader == loader and process.worker is not None:
                read.setdefault((process.worker, process.pid), []).append((sample.step, process))
    every = [Worker(place=place, readings=tuple(one)) for (place, _), one in read.items() if len(one) > 1]
    every.sort(key=lambda worker: worker.copied_bytes)
    most = {worker.place: worker for worker in every}
    return tuple(most[place] for place in sorted(most))
