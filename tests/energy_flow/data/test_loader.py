import dataclasses
from itertools import chain

import pytest
import torch
from torch.utils.data import DataLoader

from energy_flow.config_parsing import load_config
from energy_flow.data.batch import Batch
from energy_flow.data.dataset import PairDataset
from energy_flow.data.loader import RunSampler, build_loader
from energy_flow.energy_config import EnergyConfig
from energy_flow.errors import EnergyFlowError

CPU = torch.device("cpu")


def _batches(config: EnergyConfig, dataset: PairDataset, num_workers: int) -> list[Batch]:
    data = dataclasses.replace(config.data, num_workers=num_workers)
    short = dataclasses.replace(config.training, steps=20)
    return list(build_loader(dataclasses.replace(config, data=data, training=short), dataset, CPU))


def _are_equal(ones: list[Batch], others: list[Batch]) -> bool:
    return all(
        torch.equal(field, other_field)
        for one, other in zip(ones, others, strict=True)
        for field, other_field in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("num_workers", [1, 2])
def test_the_number_of_workers_changes_neither_order_nor_dropped_words(
    augmented_config: EnergyConfig, augmented_dataset: PairDataset, num_workers: int
) -> None:
    alone = _batches(augmented_config, augmented_dataset, 0)
    assert _are_equal(_batches(augmented_config, augmented_dataset, num_workers), alone)


def test_every_epoch_holds_every_pair_once_in_an_order_of_its_own() -> None:
    keys = list(RunSampler(12, batch_size=4, num_batches=6, seed=1))
    first, second = (list(chain.from_iterable(keys[start : start + 3])) for start in (0, 3))
    assert sorted(first) == list(range(12))
    assert sorted(second) == list(range(12, 24))
    assert [key + 12 for key in first] != second


def test_a_run_that_begins_later_gives_the_rest_of_the_same_batches() -> None:
    whole = list(RunSampler(10, batch_size=4, num_batches=7, seed=1))
    assert list(RunSampler(10, batch_size=4, num_batches=7, seed=1, first_batch=5)) == whole[5:]


def test_another_seed_gives_another_order() -> None:
    orders = [list(RunSampler(50, batch_size=10, num_batches=5, seed=seed)) for seed in (0, 1)]
    assert orders[0] != orders[1]


def test_a_plain_loader_over_the_dataset_gives_batches_too(dataset: PairDataset) -> None:
    batch = next(iter(DataLoader(dataset, batch_size=4)))
    assert isinstance(batch, Batch)
    assert batch.input_embedding.shape == (4, 768)
    assert torch.equal(batch.target_tokens[2], dataset[2].target_tokens)


def test_a_dataset_smaller_than_a_batch_is_refused(dataset: PairDataset) -> None:
    config = load_config("debug", assignments=["training.batch_size=500"])
    with pytest.raises(EnergyFlowError, match=r"training\.batch_size=500"):
        build_loader(config, dataset, CPU)
