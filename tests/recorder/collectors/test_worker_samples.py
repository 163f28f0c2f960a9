"""Which lines data workers are sampled at, and that nothing else of them changes."""

import gc
import math
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import worker

from efprof.artifacts.readings import WORKER_SAMPLES_FILE, WorkerSamples, read_worker_samples
from efprof.artifacts.run_file import SOURCES_FILE, SourceText, read_sources
from efprof.recorder.collectors import worker_samples
from efprof.recorder.collectors.worker_samples import LOOP, SWITCH_S, Sampler, WorkerFiles
from efprof.recorder.session.writing import RankFolder, claim_folder
from tests.recorder.recording import Recorded, line_of, record_here
from tests.support.processes import is_run_by_a_thread
from tests.support.waiting import MAX_WAIT_S, wait_until

HERE = Path(__file__)
NUM_BATCHES = 8
TURN_S = 0.01
NUM_SAMPLES = 95
DEFAULT_SWITCH_S = sys.getswitchinterval()


class Slow(Dataset[torch.Tensor]):
    """Each item holds the seconds of its Python line and of its numpy line, and what the worker is like."""

    def __init__(self, num_numbers: int = 400_000) -> None:
        self.num_numbers = num_numbers
        self.values = numpy.random.default_rng(0).random(num_numbers)

    def __len__(self) -> int:
        return 4 * NUM_BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        begun = time.perf_counter()
        sum(number % 7 for number in range(self.num_numbers))  # python
        between = time.perf_counter()
        numpy.sort(self.values)  # numpy
        ended = time.perf_counter()
        own = float(is_run_by_a_thread(Sampler._run))
        return torch.tensor([between - begun, ended - between, sys.getswitchinterval(), own])


class Lasting(Dataset[torch.Tensor]):
    """One item for each worker: as long of Python as of numpy, by turns, until there are enough samples of it."""

    def __init__(self, num_workers: int, are_enough: "Callable[[Taken], bool]") -> None:
        self.num_workers, self.are_enough = num_workers, are_enough
        self.values = numpy.random.default_rng(0).random(30_000)

    def __len__(self) -> int:
        return self.num_workers

    def __getitem__(self, index: int) -> torch.Tensor:
        taken, seconds, deadline = Taken(), numpy.zeros(2), time.monotonic() + MAX_WAIT_S
        while not self.are_enough(taken) and time.monotonic() < deadline:
            begun = time.perf_counter()
            while time.perf_counter() < begun + TURN_S:
                sum(number % 7 for number in range(200))  # lasting python
            between = time.perf_counter()
            while time.perf_counter() < between + TURN_S:
                numpy.sort(self.values)  # lasting numpy
            seconds += between - begun, time.perf_counter() - between
        return torch.tensor([*seconds, 0.0, 0.0], dtype=torch.float32)


class Taken:
    """What the sampler of this worker takes from now on; those that it is late with are taken at once."""

    def __init__(self) -> None:
        self._together, self._last_s = [1], 0.0
        self.lines = set[int]()
        """Those of this file."""
        worker_samples.PERIOD_S = TURN_S  # type: ignore[misc]
        sample = Sampler._sample

        def counted(sampler: Sampler) -> None:
            sample(sampler)
            is_late = time.perf_counter() - self._last_s < TURN_S / 4
            self._together = [*self._together[:-1], self._together[-1] + 1] if is_late else [*self._together, 1]
            self._last_s = time.perf_counter()
            self.lines |= {line_here(site) for site, _ in sampler._places}

        Sampler._sample = counted  # type: ignore[method-assign]

    @property
    def num_independent(self) -> float:
        """As many, of one weight each, tell a share as well as these."""
        weights = numpy.array(self._together)
        return float(weights.sum() ** 2 / (weights**2).sum())


def has_both_lines(taken: Taken) -> bool:
    return {line_of(HERE, "lasting python"), line_of(HERE, "lasting numpy")} <= taken.lines


def has_enough_for_shares(taken: Taken, *, num_workers: int) -> bool:
    return taken.num_independent >= NUM_SAMPLES / num_workers


class Killed(Slow):
    """Its last item kills the worker once samples of it were written."""

    def __init__(self, run: Path) -> None:
        super().__init__(200_000)
        self.run = run

    def __getitem__(self, index: int) -> torch.Tensor:
        item = super().__getitem__(index)
        if index == 4 * NUM_BATCHES - 1:
            while not self.is_written():
                item = super().__getitem__(index)
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    def is_written(self) -> bool:
        rank = self.run / "rank0"
        is_there = (rank / WORKER_SAMPLES_FILE).exists()
        return is_there and by_line(read_worker_samples(rank))[line_of(HERE, "python")] > 0


class Listed(Slow):
    def __getitem__(self, index: int) -> torch.Tensor:
        for _ in range(20):
            torch.ones(100_000).tolist()  # list
        return torch.zeros(4)


class Program:
    """Trains on a loader with two workers, and keeps the items."""

    def __init__(self, data: Dataset[torch.Tensor] | None = None, *, num_epochs: int = 1, **options: object) -> None:
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        options = {"num_workers": 2, "batch_size": 4} | options
        self.loader = DataLoader(data or Slow(20_000), **options)  # type: ignore[arg-type]
        self.num_epochs = num_epochs
        self.batches: list[torch.Tensor] = []

    def run(self) -> None:
        for _ in range(self.num_epochs):
            for batch in self.loader:
                self.batches.append(batch)
                self.optimizer.zero_grad()
                self.model(batch).mean().backward()
                self.optimizer.step()

    @property
    def items(self) -> torch.Tensor:
        """[items, 4]"""
        return torch.cat(self.batches)


def samples_of(recorded: Recorded) -> list[WorkerSamples]:
    return read_worker_samples(recorded.rank)


def by_line(samples: list[WorkerSamples]) -> Counter[int]:
    """How often each line of this file was met, whatever its function."""
    found: Counter[int] = Counter()
    for one in samples:
        for line in one.lines:
            if number := line_here(line.site):
                found[number] += line.num_samples
    return found


def line_here(site: str | None) -> int:
    """The line in this file; 0 where the site is elsewhere."""
    if site is None or not f"/{site}".rpartition("/")[2].startswith(f"{HERE.name}:"):
        return 0
    return int(site.split(":")[1])


@pytest.mark.parametrize(("method", "num_workers"), [("fork", 2), ("spawn", 1)])
def test_lines_of_python_and_of_numpy_are_met(tmp_path: Path, method: str, num_workers: int) -> None:
    """Each worker goes on until it has met both, whatever the load."""
    samples, _ = sampled(tmp_path, method, Lasting(num_workers, has_both_lines))
    lines = by_line(samples)
    assert lines[line_of(HERE, "lasting python")] > 0
    assert lines[line_of(HERE, "lasting numpy")] > 0
    assert {one.loader for one in samples} == {0}
    assert len({one.pid for one in samples}) == num_workers


@pytest.mark.long
@pytest.mark.parametrize(("method", "num_workers"), [("fork", 2), ("spawn", 1)])
def test_lines_are_met_as_often_as_they_take_long(tmp_path: Path, method: str, num_workers: int) -> None:
    """By Hoeffding's bound a share is wrong by over 0.3 once in 2e7 runs; 0.05 are the edges between two lines.

    On a machine so busy that the sampler gets no core while a line runs, it meets the next one: this wants a quiet one.
    """
    assert 2 * math.exp(-2 * NUM_SAMPLES * 0.3**2) < 1e-7
    are_enough = partial(has_enough_for_shares, num_workers=num_workers)
    samples, seconds = sampled(tmp_path, method, Lasting(num_workers, are_enough))
    lines = by_line(samples)
    in_python, in_numpy = lines[line_of(HERE, "lasting python")], lines[line_of(HERE, "lasting numpy")]
    measured = float(seconds[0] / (seconds[0] + seconds[1]))
    assert in_python / (in_python + in_numpy) == pytest.approx(measured, abs=0.35)


def sampled(tmp_path: Path, method: str, data: Lasting) -> tuple[list[WorkerSamples], torch.Tensor]:
    """Of a recorded program: the samples, and for how long each of the two lines ran."""
    program = Program(data, multiprocessing_context=method, num_workers=data.num_workers, batch_size=1)
    samples = samples_of(record_here(tmp_path, program.run))
    return samples, program.items.sum(0)


def num_samples(monkeypatch: pytest.MonkeyPatch, *, until_s: float, late_s: Callable[[float], float]) -> int:
    """How many are taken up to then, where the thread goes on late by so much after each wait."""
    now_s, number = 0.0, 0

    def wait(seconds: float) -> bool:
        nonlocal now_s
        now_s += seconds + late_s(now_s) if seconds > 0 else 0.0
        return now_s >= until_s

    def sample() -> None:
        nonlocal number
        number += 1

    sampler = Sampler(0, SimpleNamespace(), SimpleNamespace(write_samples=lambda _: None))  # type: ignore[arg-type]
    monkeypatch.setattr(sampler, "_is_over", SimpleNamespace(wait=wait))
    monkeypatch.setattr(sampler, "_sample", sample)
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    sampler._run()
    return number


def test_samples_that_come_late_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the worker has Python's lock and, on a busy machine, no core."""
    assert 333 <= num_samples(monkeypatch, until_s=10.0, late_s=lambda _: 0.07) + 10 <= 1000


def test_a_worker_that_was_stopped_has_samples_of_the_last_second_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert num_samples(monkeypatch, until_s=3603.0, late_s=lambda now_s: 3600.0 if now_s < 1.0 else 0.0) < 500


def test_workers_that_wait_to_be_asked_are_idle(tmp_path: Path) -> None:
    program = Program(Slow(100), num_epochs=2, persistent_workers=True)
    program.model.register_forward_hook(lambda *_: time.sleep(0.1))

    def train() -> None:
        program.run()
        del program.loader  # which stops the workers

    samples = samples_of(record_here(tmp_path, train))
    assert len({one.pid for one in samples}) == 2
    assert sum(one.num_idle for one in samples) > sum(by_line(samples).values())


def test_workers_of_each_epoch_are_sampled_and_the_text_of_a_file_is_not_written_by_each(tmp_path: Path) -> None:
    recorded = record_here(tmp_path, Program(Slow(50_000), num_epochs=3).run)
    assert len({one.pid for one in samples_of(recorded)}) == 6
    texts = (recorded.rank / SOURCES_FILE).read_text().splitlines()
    assert 1 <= sum(HERE.name in text[:200] for text in texts) <= 3  # the training, and two workers at one time


def test_the_thread_and_the_switch_interval_are_the_workers_alone(tmp_path: Path) -> None:
    program = Program()
    record_here(tmp_path, program.run)
    assert program.items[:, 2].tolist() == pytest.approx([SWITCH_S] * len(program.items))
    assert program.items[:, 3].tolist() == [1.0] * len(program.items)
    assert sys.getswitchinterval() == DEFAULT_SWITCH_S
    assert not is_run_by_a_thread(Sampler._run)
    wait_until(lambda: not multiprocessing.active_children())
    assert worker._worker_loop is LOOP


def test_the_recorder_s_own_functions_are_no_library_s(tmp_path: Path) -> None:
    program = Program(Listed())
    lines = [line for one in samples_of(record_here(tmp_path, program.run)) for line in one.lines]
    assert by_line(samples_of(Recorded(folder=tmp_path)))[line_of(HERE, "list")] > 0
    assert not [line for line in lines if line.inside is not None and line.inside.startswith("efprof.")]


def test_without_a_recording_workers_are_as_ever(tmp_path: Path) -> None:
    record_here(tmp_path, Program().run)
    program = Program()
    program.run()
    assert program.items[:, 2].tolist() == pytest.approx([DEFAULT_SWITCH_S] * len(program.items))
    assert program.items[:, 3].sum() == 0


def test_a_loader_of_another_thread_and_one_without_workers_are_left_alone(tmp_path: Path) -> None:
    program = Program(num_epochs=0)

    def train() -> None:
        other = threading.Thread(target=lambda: program.batches.extend(program.loader))
        other.start()
        other.join()
        plain = Program()
        plain.loader = DataLoader(Slow(100), batch_size=4)
        plain.run()
        program.batches.extend(plain.batches)

    recorded = record_here(tmp_path, train)
    assert program.items[:, 3].sum() == 0
    assert not (recorded.rank / WORKER_SAMPLES_FILE).exists()


def test_what_a_worker_has_to_tell_waits_until_the_training_process_has_a_folder(tmp_path: Path) -> None:
    files = WorkerFiles(RankFolder(tmp_path, waits_for_training=True), trained_by=os.getpid())
    files.texts.append(SourceText(file="data.py", text="x = 1"))
    files.write_samples(WorkerSamples(loader=0, pid=1, num_idle=1, lines=[]))
    assert list(tmp_path.iterdir()) == []
    rank = claim_folder(tmp_path)
    files.write_samples(WorkerSamples(loader=0, pid=1, num_idle=2, lines=[]))
    assert [one.num_idle for one in read_worker_samples(rank)] == [1, 2]
    assert read_sources(rank) == {"data.py": ["x = 1"]}


def error_of(train: Callable[[], object]) -> str:
    """The text of what it raises: its traceback would keep the workers."""
    try:
        train()
    except Exception as error:
        return str(error)
    finally:
        gc.collect()
    return ""


def noting(folder: Path) -> Callable[[int], None]:
    def note(number: int) -> None:
        (folder / f"worker-{number}").touch()

    return note


def failing(_: int) -> None:
    raise ArithmeticError("of the program")


def test_the_program_s_own_start_of_workers_runs_and_stays_its_own(tmp_path: Path) -> None:
    own = noting(tmp_path)
    program = Program(worker_init_fn=own)
    record_here(tmp_path / "run", program.run)
    assert {path.name for path in tmp_path.glob("worker-*")} == {"worker-0", "worker-1"}
    assert program.loader.worker_init_fn is own


def test_what_the_program_s_own_start_raises_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)  # torch waits so long for its end
    program = Program(worker_init_fn=failing, num_workers=1)
    assert "ArithmeticError: of the program" in error_of(lambda: record_here(tmp_path, program.run))
    wait_until(lambda: not multiprocessing.active_children())


def test_a_killed_worker_leaves_what_it_wrote_and_the_program_s_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_samples, "WRITE_S", 0.05)
    monkeypatch.setattr(worker_samples, "PERIOD_S", 0.002)
    error = error_of(lambda: record_here(tmp_path, Program(Killed(tmp_path)).run))
    assert re.search(r"exited unexpectedly|is killed by signal", error)  # whichever torch sees first
    assert by_line(read_worker_samples(tmp_path / "rank0"))[line_of(HERE, "python")] > 0
    wait_until(lambda: not multiprocessing.active_children())


def test_a_sampler_that_fails_is_told_of_and_the_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Sampler) -> None:
        raise ArithmeticError("ours")

    monkeypatch.setattr(Sampler, "_sample", fail)
    program = Program(Slow(200_000))
    record_here(tmp_path, program.run)
    assert len(program.batches) == NUM_BATCHES
    assert "the worker_samples collector stopped, training goes on: ArithmeticError: ours" in capfd.readouterr().err


def test_a_long_run_of_short_epochs_is_sampled_at_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_samples, "MAX_STARTS", 1)
    program = Program(num_epochs=2)
    record_here(tmp_path, program.run)
    assert program.items[:, 3].tolist() == [1.0] * 4 * NUM_BATCHES + [0.0] * 4 * NUM_BATCHES
