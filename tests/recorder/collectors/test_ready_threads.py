"""What is counted of threads that are ready to run: those of the process, those of its children, and who set them."""

import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import ThreadsReady
from tests.recorder.recording import line_of, record_here


def train() -> None:
    torch.set_num_threads(torch.get_num_threads())  # set
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(41):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        until = time.perf_counter() + 0.006  # some kernels count by their ticks, of 4 ms
        while time.perf_counter() < until:
            pass


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs Linux's counts of each thread")
def test_threads_are_counted_from_reading_to_reading_with_those_of_children(tmp_path: Path) -> None:
    alone = record_here(tmp_path / "alone", train, holders=False).events(ThreadsReady)
    assert alone[-1].children < 0.1 < alone[-1].ready
    busy = "import os\nos.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\nprint(flush=True)\nwhile True: pass"
    start = partial(subprocess.Popen, [sys.executable, "-c", busy], stdout=subprocess.PIPE)
    with start() as first, start() as second:  # they share a core: one of them waits
        try:
            assert all(child.stdout and child.stdout.readline() for child in (first, second))
            found = record_here(tmp_path / "both", train, holders=False).events(ThreadsReady)
        finally:
            first.kill()
            second.kill()
    assert [event.step for event in found] == [10, 20, 40]
    last = found[-1]
    assert 0.1 < last.children < 2.5  # two threads, since the reading before
    assert 0 < last.children_waiting <= last.waiting < last.ready
    assert 0 < last.own <= last.busy + 0.1  # in ticks
    assert last.num_threads == torch.get_num_threads()
    assert str(last.site).endswith(f"test_ready_threads.py:{line_of(Path(__file__), 'set')}:train")
