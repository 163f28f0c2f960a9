"""One small dataset, built once, and the debug configuration, for all tests of the trainer."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from energy_flow.config_parsing import load_config
from energy_flow.data.dataset import PairDataset, build_dataset
from energy_flow.energy_config import EnergyConfig
from tests.energy_flow.training.started_trainings import Starter


@pytest.fixture(scope="session")
def config() -> EnergyConfig:
    return load_config("debug")


@pytest.fixture(scope="session")
def dataset(config: EnergyConfig, tmp_path_factory: pytest.TempPathFactory) -> PairDataset:
    return build_dataset(config, tmp_path_factory.mktemp("data") / "debug")


@pytest.fixture(scope="session")
def augmented_config() -> EnergyConfig:
    return load_config("debug", assignments=["data.word_dropout=0.3"])


@pytest.fixture(scope="session")
def augmented_dataset(augmented_config: EnergyConfig, dataset: PairDataset) -> PairDataset:
    return PairDataset(dataset.folder, augmented_config)


@pytest.fixture(scope="session")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Starter:
    return Starter(tmp_path_factory.mktemp("said"))


@pytest.fixture
def _package_logger() -> Iterator[None]:
    """The package's logger is as it was afterwards."""
    logger = logging.getLogger("energy_flow")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture
def pairs_file(tmp_path: Path) -> Path:
    file = tmp_path / "pairs.tsv"
    file.write_text("the cat sat\tthe cat slept\nein Käfer\tzwei Käfer\n", encoding="utf-8")
    return file
