"""What sampling the lines of a data worker costs: `python -m benchmarks.recording.worker_samples FOLDER [ROUNDS]`.

Each round goes through a loader with the thread in its one worker and without it, in turns. CPU time is the worker's;
the wall clock tells something on an idle machine only.
"""

import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import worker

from benchmarks.machine import machine_line
from efprof.recorder.collectors.worker_samples import LOOP, SampledLoop
from tests.recorder.recording import open_session

NUM_ITEMS, BATCH_SIZE, ROUNDS = 1600, 16, 24


class PythonItems(Dataset[torch.Tensor]):
    """About 1 ms of pure Python each."""

    def __len__(self) -> int:
        return NUM_ITEMS

    def __getitem__(self, index: int) -> torch.Tensor:
        total = 0
        for number in range(20_000):
            total += number % 7
        return torch.tensor(float(total))


class NumpyItems(PythonItems):
    """About as long in eight calls of numpy each."""

    def __init__(self) -> None:
        self.values = numpy.random.default_rng(0).random(20_000)

    def __getitem__(self, index: int) -> torch.Tensor:
        values = self.values
        for _ in range(8):
            values = numpy.tanh(numpy.sort(values[::-1]))
        return torch.tensor(values[:4])


def seconds_with(loop: Any, items: Dataset[torch.Tensor]) -> tuple[float, float]:
    """By the wall clock, and of the worker's CPU time."""
    worker._worker_loop = loop
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    for _ in DataLoader(items, batch_size=BATCH_SIZE, num_workers=1):
        pass
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(folder: Path, rounds: int) -> None:
    """Print a line for each kind of items and clock."""
    session = open_session(folder)
    sampled: Any = SampledLoop(session.run_folder, session.options.root, session.sites.own_package)
    sampled.loader = 0
    print(
        machine_line(), "\n\n| items | clock | without, fastest | with, fastest | median pair |\n" + "| --- " * 5 + "|"
    )
    for items in (PythonItems(), NumpyItems()):
        both: dict[Any, list[tuple[float, float]]] = {LOOP: [], sampled: []}
        for number in range(rounds):
            for loop in sorted(both, key=lambda one: (one is LOOP) == bool(number % 2)):
                both[loop].append(seconds_with(loop, items))
        for place, clock in enumerate(("wall", "CPU")):
            bare, ours = ([pair[place] for pair in both[loop]] for loop in (LOOP, sampled))
            ratio = statistics.median(one / other for one, other in zip(ours, bare, strict=True))
            print(f"| {type(items).__name__} | {clock} | {min(bare):.3f} s | {min(ours):.3f} s | {ratio - 1:+.1%} |")
    worker._worker_loop = LOOP


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS)
