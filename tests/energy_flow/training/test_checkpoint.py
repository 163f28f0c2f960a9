from pathlib import Path

import pytest
import torch

from energy_flow.config_parsing import load_config
from energy_flow.data.dataset import PairDataset
from energy_flow.energy_config import EnergyConfig
from energy_flow.errors import EnergyFlowError
from energy_flow.training.energy_trainer import EnergyTrainer


def _trained(config: EnergyConfig, dataset: PairDataset, out: Path) -> EnergyTrainer:
    trainer = EnergyTrainer(config, out=out)
    trainer.train(dataset, say=lambda metrics: None)
    return trainer


@pytest.fixture(scope="module")
def short_config() -> EnergyConfig:
    return load_config("debug", assignments=["training.steps=3"])


def test_a_checkpoint_brings_back_weights_moments_and_step(
    short_config: EnergyConfig, dataset: PairDataset, tmp_path: Path
) -> None:
    trained = _trained(short_config, dataset, tmp_path)
    resumed = EnergyTrainer(short_config, out=tmp_path)
    resumed.resume()
    assert resumed.step == 3
    for name, weight in trained.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], weight), name
    for key, state in trained.optimizer.state_dict()["state"].items():
        for name, value in state.items():
            assert torch.equal(resumed.optimizer.state_dict()["state"][key][name], value), name


def test_a_run_that_goes_on_from_a_checkpoint_ends_like_one_that_never_stopped(
    short_config: EnergyConfig, dataset: PairDataset, tmp_path: Path
) -> None:
    longer = load_config("debug", assignments=["training.steps=6"])
    whole = _trained(longer, dataset, tmp_path / "whole")
    _trained(short_config, dataset, tmp_path / "parts")
    resumed = EnergyTrainer(longer, out=tmp_path / "parts")
    resumed.resume()
    resumed.train(dataset, say=lambda metrics: None)
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], weight), name


def test_a_checkpoint_of_another_size_is_refused(
    short_config: EnergyConfig, dataset: PairDataset, tmp_path: Path
) -> None:
    _trained(short_config, dataset, tmp_path)
    other = EnergyTrainer(load_config("debug", assignments=["lattice.width=9"]), out=tmp_path)
    with pytest.raises(EnergyFlowError, match=r"checkpoint\.pt is of a model of another size"):
        other.resume()


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04cut"])
def test_a_damaged_checkpoint_is_refused_by_name(config: EnergyConfig, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(content)
    with pytest.raises(EnergyFlowError, match=r"checkpoint\.pt"):
        EnergyTrainer(config, out=tmp_path).resume()


def test_a_missing_checkpoint_is_named(config: EnergyConfig, tmp_path: Path) -> None:
    with pytest.raises(EnergyFlowError, match=r"no checkpoint .*checkpoint\.pt"):
        EnergyTrainer(config, out=tmp_path).resume()


def test_no_partial_file_is_left_beside_a_checkpoint(
    short_config: EnergyConfig, dataset: PairDataset, tmp_path: Path
) -> None:
    _trained(short_config, dataset, tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checkpoint.pt", "metrics.jsonl"]
