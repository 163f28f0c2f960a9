"""What is counted of threads that are ready to run: those of the process, those of its children, and who set them."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import ThreadsReady
from tests.recorder.recording import line_of, record_here

BUSY = "import time\nend = time.monotonic() + 600\nwhile time.monotonic() < end: pass"


@pytest.fixture
def busy_child() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", BUSY]) as child:
        yield
        child.kill()


def train() -> None:
    torch.set_num_threads(torch.get_num_threads())  # set
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(41):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        time.sleep(0.003)  # the kernel counts by its own ticks, of 4 ms


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs Linux's counts of each thread")
@pytest.mark.usefixtures("busy_child")
def test_threads_are_counted_from_reading_to_reading_with_those_of_children(tmp_path: Path) -> None:
    found = record_here(tmp_path, train, holders=False).events(ThreadsReady)
    assert [event.step for event in found] == [10, 20, 40]
    last = found[-1]
    assert 0 < last.children < last.ready
    assert last.waiting <= last.ready
    assert last.num_threads == torch.get_num_threads()
    assert last.site is not None
    assert last.site.endswith(f"test_ready_threads.py:{line_of(Path(__file__), 'set')}:train")
