"""What is sampled of the training thread while a step lasts far longer than usual."""

import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from efprof.artifacts.events import CollectorStopped
from efprof.artifacts.readings import LONG_STEPS_FILE, read_long_steps
from efprof.recorder.collectors import long_steps
from tests.recorder.recording import HARDLY_ANY_IN_FULL, Recorded, record_here
from tests.recorder.training import train_plainly
from tests.support.processes import is_run_by_a_thread
from tests.support.waiting import wait_until

SLOW_ITEM, CHECKPOINT, NUM_STEPS = 12, 30, 40


class Items(Dataset[torch.Tensor]):
    """One of its items takes until the recorder has written down that it takes long."""

    def __init__(self, program: "Program") -> None:
        self.program = program

    def __len__(self) -> int:
        return NUM_STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == SLOW_ITEM:
            self.program.wait_for_samples("# the item")  # the item
        return torch.randn(8)


class Program:
    """Trains on these items, and once makes a checkpoint that takes as long."""

    def __init__(self, rank: Path) -> None:
        self.rank = rank
        self.model = nn.Linear(8, 8)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def wait_for_samples(self, mark: str) -> None:
        wait_until(lambda: any(line.endswith(mark) for line in lines_of(self.rank)))

    def save(self) -> None:
        self.wait_for_samples("# the checkpoint")

    def run(self) -> None:
        for step, batch in enumerate(DataLoader(Items(self))):  # the loop
            self.optimizer.zero_grad()
            self.model(batch).square().mean().backward()
            self.optimizer.step()
            if step == CHECKPOINT:
                self.save()  # the checkpoint


@pytest.fixture(scope="module", params=[1.0, HARDLY_ANY_IN_FULL], ids=["full", "light"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("long")
    return record_here(folder, Program(folder / "rank0").run, overhead=request.param)


def lines_of(rank: Path) -> list[str]:
    """The texts of the lines where the stacks of long steps leave those of usual ones, one of each step."""
    lines = []
    for step in read_long_steps(rank) if (rank / LONG_STEPS_FILE).exists() else ():
        sites = {stack.lines[0] for stack in step.stacks if stack.lines}
        for file, line, _ in (site.split(":") for site in sites):
            lines.append((Path(__file__).parents[3] / file).read_text().splitlines()[int(line) - 1])
    return lines


def test_the_line_is_where_the_stack_leaves_that_of_a_usual_update(recorded: Recorded) -> None:
    assert len([line for line in lines_of(recorded.rank) if line.endswith("# the checkpoint")]) == 1


def test_a_loop_over_a_loader_is_not_the_line_but_the_item_within(recorded: Recorded) -> None:
    assert len([line for line in lines_of(recorded.rank) if line.endswith("# the item")]) == 1
    assert [line for line in lines_of(recorded.rank) if line.endswith("# the loop")] == []


def test_a_long_step_is_written_while_it_goes_on_and_read_once(recorded: Recorded) -> None:
    """The program waited for that."""
    num_written = len((recorded.rank / LONG_STEPS_FILE).read_text().splitlines())
    assert num_written >= len(read_long_steps(recorded.rank)) + 2


def test_no_thread_of_ours_outlives_the_recording_and_the_program_sees_none(tmp_path: Path) -> None:
    """One that waits until its own are over waits for `threading.active_count()`."""
    before, seen, runs = threading.enumerate(), list[bool](), long_steps.LongSteps._run

    def train() -> None:
        train_plainly(12)
        seen.extend((is_run_by_a_thread(runs), threading.enumerate() == before))

    record_here(tmp_path, train)
    assert seen == [True, True]
    assert not is_run_by_a_thread(runs)


def test_a_sampler_that_raises_costs_a_sentence_and_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no sample")

    monkeypatch.setattr(long_steps.LongSteps, "_sample", fail)
    program = Program(tmp_path / "rank0")
    program.wait_for_samples = lambda mark: None  # type: ignore[method-assign]
    recorded = record_here(tmp_path, program.run)
    (stopped,) = recorded.events(CollectorStopped)
    assert stopped.collector == "long_steps"
    assert len(recorded.steps) == NUM_STEPS
