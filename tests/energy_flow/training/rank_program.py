"""What two processes of one run do together, for `test_processes.py`: each writes <rank>.json into the folder."""

import json
import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from energy_flow.config_parsing import load_config
from energy_flow.data.dataset import PairDataset, build_dataset
from energy_flow.data.loader import build_validation_loader
from energy_flow.errors import EnergyFlowError
from energy_flow.model import build_model
from energy_flow.processes import (
    Processes,
    accumulating,
    agree_on,
    first_alone_then_all,
    joined,
    mean_over_processes,
    processes_of,
    wrap,
)
from energy_flow.training.energy_trainer import EnergyTrainer, build_optimizer
from energy_flow.training.gradient_control import GradientControl
from energy_flow.training.validation import validate
from tests.support.waiting import MAX_WAIT_S

CPU = torch.device("cpu")


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0])
    processes = processes_of()
    seen: dict[str, Any] = {}
    try:
        with joined(processes, CPU):
            dataset = _build_dataset(folder, processes, seen)
            seen["failure"] = _first_fails(processes)
            seen["too late"] = _first_is_late(processes)
            seen["mean"] = mean_over_processes(torch.tensor([float(processes.rank), 4.0]), processes).tolist()
            seen["skips"] = _train_with_a_bad_loss_on_one(processes)
            seen["validation"] = _validate(dataset, processes)
            seen["agree"] = [agree_on(number, CPU, processes) for number in (7, processes.rank)]
            seen["resumed"] = _resume_from_different_checkpoints(folder / f"run {processes.rank}", processes)
            raise KeyError("an error")
    except KeyError as error:
        seen["end"] = [str(error), distributed.is_initialized()]
    (folder / f"{processes.rank}.json").write_text(json.dumps(seen))


def _build_dataset(folder: Path, processes: Processes, seen: dict[str, Any]) -> PairDataset:
    config, place = load_config("debug"), folder / "dataset"

    def build() -> PairDataset:
        seen["found"] = place.exists()
        return build_dataset(config, place) if processes.is_first else PairDataset(place, config)

    return first_alone_then_all(processes, build, what="the dataset")


def _first_fails(processes: Processes) -> str:
    def build() -> None:
        raise ValueError("no space")

    try:
        first_alone_then_all(processes, build, what="the dataset")
    except (EnergyFlowError, ValueError) as error:
        return str(error)
    return ""


def _first_is_late(processes: Processes) -> str:
    release = distributed.distributed_c10d._get_default_store()

    def build() -> None:
        if processes.is_first:
            release.wait(["second gave up"], timedelta(seconds=MAX_WAIT_S))

    try:
        first_alone_then_all(processes, build, what="the dataset", max_wait=timedelta(seconds=1))
    except EnergyFlowError as error:
        release.set("second gave up", "")
        return str(error)
    except RuntimeError:  # nobody is left to be told
        return "nobody waits"
    return ""


def _train_with_a_bad_loss_on_one(processes: Processes) -> dict[str, Any]:
    """Three steps of two micro-batches, one of the second step with a loss not finite in the second process."""
    torch.manual_seed(0)
    model, config = torch.nn.Linear(3, 2), load_config("debug")
    replica = wrap(model, CPU, processes)
    optimizer = build_optimizer(config, model)
    control = GradientControl(config, model, optimizer, CPU, is_distributed=True)
    seen: dict[str, Any] = {"reasons": [], "weights": [], "exchanges": 0}

    def count(state: object, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        seen["exchanges"] += bucket.is_last()
        return allreduce_hook(None, bucket)

    assert isinstance(replica, DistributedDataParallel)
    replica.register_comm_hook(None, count)
    for added in (0.0, math.nan if processes.rank == 1 else 0.0, 0.0):
        for is_last in (False, True):
            with accumulating(replica, is_last=is_last):
                control.backward(replica(torch.ones(2, 3) + processes.rank).square().sum() + added)
        seen["reasons"].append(int(control.step().reason))
        optimizer.zero_grad()
        seen["weights"].append(model.weight.tolist())
    return seen


def _validate(dataset: PairDataset, processes: Processes) -> list[float]:
    config = load_config("debug", assignments=["training.validation_share=0.3"])
    loader = build_validation_loader(config, dataset, CPU, processes)
    validation = validate(build_model(config), loader, CPU, torch.autocast("cpu", enabled=False), processes)
    return [validation.cosine, validation.retrieval_accuracy, validation.token_accuracy, validation.num_pairs]


def _resume_from_different_checkpoints(out: Path, processes: Processes) -> str:
    config = load_config("debug")
    alone = EnergyTrainer(config, out=out)
    alone.step = 2 + processes.rank
    alone.gradients.global_step += alone.step  # as if none had been skipped, or there would be nothing to save
    alone.save()
    with pytest.raises(EnergyFlowError) as caught:
        EnergyTrainer(config, out=out, processes=processes).resume()
    return str(caught.value)
