"""What is counted of threads that are ready to run: those of the process, those of its children, and who set them."""

import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import ThreadsReady
from efprof.recorder.collectors.ready_threads import seconds_of_cores, times_of_threads
from tests.recorder.recording import line_of, record_here, record_script


def train(num_steps: int = 41) -> None:
    torch.set_num_threads(torch.get_num_threads())  # set
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        until = time.perf_counter() + 0.006  # some kernels count by their ticks, of 4 ms
        while time.perf_counter() < until:
            pass


needs_counts = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="needs Linux's counts of each thread"
)


@needs_counts
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


WORKER = """
import subprocess, sys, threading, time

def work():
    while time.thread_time() < 0.3:
        pass

thread = threading.Thread(target=work)
thread.start()
thread.join()
subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.3: pass"])
print(flush=True)
sys.stdin.read()
"""


@needs_counts
def test_programs_that_a_worker_ran_and_its_threads_that_ended_are_its_own_and_counted_once(tmp_path: Path) -> None:
    name = tmp_path / "a) R 9 (b"  # as Linux has it between parentheses
    name.symlink_to(sys.executable)
    before = own_seconds()
    with subprocess.Popen([name, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout
        assert worker.stdout.readline()
        living = own_seconds() - before
    assert living > 0.6
    assert own_seconds() - before == pytest.approx(living, abs=0.1)


def own_seconds() -> float:
    return seconds_of_cores(times_of_threads())[1]


@needs_counts
def test_a_last_reading_is_taken_at_the_end_unless_something_longer_came_after_the_training(tmp_path: Path) -> None:
    def train_and_wait() -> None:
        train(19)
        time.sleep(1)

    ended = record_here(tmp_path / "ended", partial(train, 19), holders=False)
    assert [event.step for event in ended.events(ThreadsReady)] == [10, 19]
    waited = record_here(tmp_path / "waited", train_and_wait, holders=False)
    assert [event.step for event in waited.events(ThreadsReady)] == [10]


TRAINING = """
import sys, time, torch

def fetch(index):
    until = time.thread_time() + 0.01
    while time.thread_time() < until:
        pass
    return torch.ones(4)

if __name__ == "__main__":
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(range(19), collate_fn=fetch, num_workers=1)
    for step, batch in enumerate(loader):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        if step == 18:
            ENDING
"""


@needs_counts
@pytest.mark.parametrize(
    "ending",
    ["raise ValueError", *(pytest.param(one, marks=pytest.mark.long) for one in ("pass", "sys.exit(3)", "break"))],
)
def test_the_last_reading_has_the_workers_however_the_program_ends(tmp_path: Path, ending: str) -> None:
    recorded = record_script(tmp_path / "home", TRAINING.replace("ENDING", ending))
    first, last = recorded.events(ThreadsReady)
    assert first.step == 10
    assert last.step >= 18
    assert last.children > 0.1
