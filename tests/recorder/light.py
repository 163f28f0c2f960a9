"""Records a training twice, with light steps and with every step in full: what both tell must be the same."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from efprof.artifacts.events import CollectorStopped
from efprof.artifacts.steps import StepRecord
from tests.recorder.recording import EVERY_STEP_IN_FULL, HARDLY_ANY_IN_FULL, record_here


def told(steps: list[StepRecord]) -> list[tuple[object, ...]]:
    """What light steps and full ones have in common, but for the clock."""
    return [(step.step, step.micro_batches, step.loss, step.is_skipped) for step in steps]


def record_both_ways(train_it: Callable[[], object]) -> tuple[list[StepRecord], list[StepRecord], int]:
    """With light steps, and all in full; and how many were light."""
    recorded = []
    for overhead in (HARDLY_ANY_IN_FULL, EVERY_STEP_IN_FULL):
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(0)
            run = record_here(Path(folder) / "run", train_it, overhead=overhead)
            assert run.events(CollectorStopped) == []
            recorded.append(run.steps)
    return recorded[0], recorded[1], sum(not step.is_full for step in recorded[0])
