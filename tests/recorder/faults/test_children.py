"""Processes that a training program forks: those that serve it write nothing, those that train are ranks."""

from efprof.artifacts.events import RecordingEnded, TrainingRaised, read_events
from efprof.artifacts.runs import list_attempts, read_process
from efprof.artifacts.steps import read_steps
from tests.recorder.conftest import Begin
from tests.recorder.faults.programs import training
from tests.recorder.recording import Recorded
from tests.support.waiting import MAX_WAIT_S


def test_forked_data_workers_write_nothing(begin: Begin) -> None:
    child = begin(training(workers=2))
    assert child.wait() == 0
    (attempt,) = list_attempts(child.folder)
    (rank,) = attempt.rank_folders
    process = read_process(rank)
    assert process is not None
    assert process.pid == child.pid
    assert len(Recorded(folder=child.folder).steps) == 40


FORKING = f"""
import sys, torch
import torch.multiprocessing as processes

together = processes.get_context("fork").Barrier(2)

def train(rank):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8 + rank):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        if step == 0:
            together.wait({MAX_WAIT_S})  # as ranks that exchange gradients: none is done before the other has begun
        if rank == 1 and step == 5:
            raise ArithmeticError("in a child")

children = processes.start_processes(train, nprocs=2, start_method="fork", join=False)
while not children.join(grace_period={MAX_WAIT_S}):
    pass
"""


def test_children_that_are_forked_to_train_are_ranks_and_their_launcher_is_none(begin: Begin) -> None:
    child = begin(FORKING)
    assert child.wait() == 1
    (attempt,) = list_attempts(child.folder)
    steps = [read_steps(rank)[0] for rank in attempt.rank_folders]
    events = [read_events(rank)[0] for rank in attempt.rank_folders]
    assert sorted(map(len, steps)) == [6, 8]
    errors = [event.error for some in events for event in some if isinstance(event, TrainingRaised)]
    assert errors == ["ArithmeticError"]
    assert all(any(isinstance(event, RecordingEnded) for event in some) for some in events)
