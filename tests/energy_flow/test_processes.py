"""What processes do together, seen in two that were started once for all tests here."""

import json
from typing import Any

import pytest
import torch
from torch import distributed

from energy_flow.config_parsing import load_config
from energy_flow.data.dataset import PairDataset
from energy_flow.data.loader import build_validation_loader
from energy_flow.errors import EnergyFlowError
from energy_flow.model import build_model
from energy_flow.processes import (
    ALONE,
    Processes,
    accumulating,
    agree_on,
    first_alone_then_all,
    joined,
    mean_over_processes,
    processes_of,
    wrap,
)
from energy_flow.training.gradient_control import SkipReason
from energy_flow.training.validation import validate
from tests.energy_flow.training import rank_program
from tests.energy_flow.training.started_trainings import Starter

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def two(starter: Starter, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes saw in `rank_program.py`."""
    folder = tmp_path_factory.mktemp("ranks")
    for rank in starter.start_two([str(folder)], main=rank_program.main):
        assert rank.end() == 0, rank.said
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def test_the_variables_of_torchrun_say_who_a_process_is() -> None:
    environment = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    assert processes_of(environment) == Processes(rank=5, world_size=8, local_rank=1)


@pytest.mark.parametrize("environment", [{}, {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}])
def test_without_torchrun_and_with_one_process_of_it_a_run_is_alone(environment: dict[str, str]) -> None:
    assert processes_of(environment) is ALONE


@pytest.mark.parametrize("environment", [{"RANK": "0"}, {"RANK": "0", "WORLD_SIZE": "two", "LOCAL_RANK": "0"}])
def test_half_of_the_variables_is_a_mistake_in_one_sentence(environment: dict[str, str]) -> None:
    with pytest.raises(EnergyFlowError, match=r"start with torchrun, or unset RANK$"):
        processes_of(environment)


def test_a_master_that_does_not_answer_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "no port")
    two = Processes(rank=0, world_size=2, local_rank=0)
    with pytest.raises(EnergyFlowError, match=r"^process 0 of 2 cannot join the others"), joined(two, CPU):
        pass


def test_alone_nothing_is_initialised_wrapped_or_exchanged() -> None:
    model, numbers = torch.nn.Linear(2, 2), torch.ones(2)
    with joined(ALONE, CPU), accumulating(model, is_last=False):
        assert not distributed.is_initialized()
        assert wrap(model, CPU, ALONE) is model
        assert mean_over_processes(numbers, ALONE) is numbers
        assert first_alone_then_all(ALONE, lambda: 3, what="a number") == 3


def test_processes_build_agree_take_means_and_end_together(two: list[dict[str, Any]]) -> None:
    assert [seen["found"] for seen in two] == [False, True]
    failures = [seen["failure"] for seen in two]
    assert failures == ["no space", "the first process could not make the dataset; see what it says"]
    assert two[1]["too late"].startswith("waited 0:00:01 for the first process to make the dataset")
    assert [seen["mean"] for seen in two] == [[0.5, 4.0]] * 2
    assert [seen["agree"] for seen in two] == [[True, False]] * 2
    assert agree_on(7, CPU, ALONE)
    assert all(seen["resumed"].startswith("processes find different checkpoints in ") for seen in two)
    assert [seen["end"] for seen in two] == [["'an error'", False]] * 2


def test_gradients_are_exchanged_once_a_step_which_a_bad_loss_in_one_process_skips_in_all(
    two: list[dict[str, Any]],
) -> None:
    ours, theirs = (seen["skips"] for seen in two)
    assert ours["reasons"] == [SkipReason.TAKEN, SkipReason.LOSS_NOT_FINITE, SkipReason.TAKEN]
    assert ours["weights"][0] == ours["weights"][1] != ours["weights"][2]
    assert ours["exchanges"] == 3, "of 6 micro-batches"
    assert ours == theirs


def test_validation_counts_the_pairs_of_all_processes(two: list[dict[str, Any]], dataset: PairDataset) -> None:
    config = load_config("debug", assignments=["training.validation_share=0.3"])
    loader = build_validation_loader(config, dataset, CPU)
    alone = validate(build_model(config), loader, CPU, torch.autocast("cpu", enabled=False))
    expected = [alone.cosine, alone.retrieval_accuracy, alone.token_accuracy, alone.num_pairs]
    for seen in two:
        assert seen["validation"] == pytest.approx(expected, abs=1e-5)
