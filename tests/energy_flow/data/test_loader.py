import dataclasses
import logging
from itertools import chain, islice

import pytest
import torch
from torch.utils.data import DataLoader

from energy_flow.config_parsing import load_config
from energy_flow.data.batch import Batch
from energy_flow.data.dataset import PairDataset
from energy_flow.data.loader import RunSampler, batches_per_epoch, build_loader, build_validation_loader, num_held_out
from energy_flow.energy_config import EnergyConfig
from energy_flow.errors import EnergyFlowError
from energy_flow.processes import ALONE, Processes

CPU = torch.device("cpu")
TWO = [Processes(rank=rank, world_size=2, local_rank=rank) for rank in (0, 1)]


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


def test_every_epoch_holds_every_pair_once_in_an_order_of_its_own_and_of_its_seed() -> None:
    keys = list(RunSampler(12, batch_size=4, num_batches=6, seed=1))
    first, second = (list(chain.from_iterable(keys[start : start + 3])) for start in (0, 3))
    assert sorted(first) == list(range(12))
    assert sorted(second) == list(range(12, 24))
    assert [key + 12 for key in first] != second
    orders = [list(RunSampler(50, batch_size=10, num_batches=5, seed=seed)) for seed in (0, 1)]
    assert orders[0] != orders[1]
    whole = list(RunSampler(10, batch_size=4, num_batches=7, seed=1))
    assert list(RunSampler(10, batch_size=4, num_batches=7, seed=1, first_batch=5)) == whole[5:]


def test_the_loader_s_settings_reach_it_and_memory_is_pinned_for_cuda_alone(dataset: PairDataset) -> None:
    settings = ["data.num_workers=2", "data.prefetch_factor=3", "data.persistent_workers=true", "data.pin_memory=true"]
    config = load_config("debug", assignments=settings)
    loaders = [build_loader(config, dataset, torch.device(kind)) for kind in ("cpu", "cuda")]
    assert [(loader.num_workers, loader.prefetch_factor, loader.persistent_workers) for loader in loaders] == [
        (2, 3, True)
    ] * 2
    assert [loader.pin_memory for loader in loaders] == [False, True]


def test_a_dataset_smaller_than_a_batch_of_all_processes_is_refused(dataset: PairDataset) -> None:
    config = load_config("debug", assignments=["training.batch_size=500"])
    with pytest.raises(EnergyFlowError, match=r"training\.batch_size=500"):
        build_loader(config, dataset, CPU)
    config = load_config("debug", assignments=["training.batch_size=100"])
    with pytest.raises(EnergyFlowError, match="of each of 2 processes; lower it"):
        build_loader(config, dataset, CPU, processes=TWO[1])


def test_two_processes_share_the_batches_of_one_also_where_they_begin_later() -> None:
    alone = list(RunSampler(30, batch_size=8, num_batches=7, seed=1, num_held_out=3))
    parts = [RunSampler(30, batch_size=4, num_batches=7, seed=1, num_held_out=3, processes=part) for part in TWO]
    assert [first + second for first, second in zip(*parts, strict=True)] == alone
    whole, rest = (
        [list(RunSampler(30, batch_size=4, num_batches=9, seed=1, first_batch=first, processes=part)) for part in TWO]
        for first in (0, 5)
    )
    assert rest == [batches[5:] for batches in whole]


def test_held_out_pairs_never_appear_in_training_and_others_keep_their_draws() -> None:
    keys = chain.from_iterable(RunSampler(30, batch_size=4, num_batches=50, seed=1, num_held_out=5))
    assert {key % 30 for key in keys} == set(range(25))
    keys = list(chain.from_iterable(RunSampler(30, batch_size=5, num_batches=15, seed=1, num_held_out=5)))
    assert [key // 30 for key in keys] == [draw for draw in (0, 1, 2) for _ in range(25)]


@pytest.mark.parametrize(
    ("num_pairs", "share", "held_out"),
    [
        (1000, 0.05, 50),  # the share
        (100, 0.05, 8),  # a batch at least
        (16, 0.05, 8),  # as many are left as held out
        (15, 0.05, 0),  # fewer would be left than held out
        (1000, 0.0, 0),  # none asked for
    ],
)
def test_the_share_is_held_out_or_a_batch_or_nothing_where_pairs_are_few(
    num_pairs: int, share: float, held_out: int
) -> None:
    config = load_config("debug", assignments=[f"training.validation_share={share}"])
    assert num_held_out(config, num_pairs) == held_out


def test_an_epoch_counts_the_batches_of_each_process_without_held_out_pairs(config: EnergyConfig) -> None:
    assert batches_per_epoch(config, 128) == 15  # of 8 pairs; 8 are held out
    assert batches_per_epoch(config, 128, TWO[0]) == 7  # of 16; 16 are held out


def test_a_run_trains_on_the_pairs_that_validation_never_sees_and_reads_whole(
    config: EnergyConfig, dataset: PairDataset, augmented_config: EnergyConfig, augmented_dataset: PairDataset
) -> None:
    validation = build_validation_loader(config, dataset, CPU)
    held_out = set(chain.from_iterable(validation.batch_sampler))
    trained = {key % len(dataset) for key in chain.from_iterable(build_loader(config, dataset, CPU).batch_sampler)}
    assert held_out == set(range(120, 128))
    assert trained == set(range(120))
    validation = build_validation_loader(augmented_config, augmented_dataset, CPU)
    (batch,) = validation
    assert _are_equal([batch], [next(iter(DataLoader(dataset, batch_sampler=[list(range(120, 128))])))])


def test_validation_batches_are_of_nearly_equal_size_shared_out_and_no_more_than_configured(
    dataset: PairDataset,
) -> None:
    config = load_config("debug", assignments=["training.validation_share=0.32"])  # 41 pairs, batches of at most 8
    sizes = [[len(keys) for keys in _validation_keys(config, dataset, part)] for part in (ALONE, *TWO)]
    assert sizes == [[7, 7, 7, 7, 7, 6], [7, 7, 7], [7, 7, 6]]
    parts = [set(chain.from_iterable(_validation_keys(config, dataset, part))) for part in TWO]
    assert parts[0].isdisjoint(parts[1])
    assert parts[0] | parts[1] == set(range(128 - 41, 128))
    assignments = ["training.validation_share=0.32", "training.validation_batches=2"]
    config = load_config("debug", assignments=assignments)
    assert len(_validation_keys(config, dataset, ALONE)) == 2


def test_too_few_pairs_to_hold_any_out_is_said_and_none_asked_for_is_not(
    dataset: PairDataset, caplog: pytest.LogCaptureFixture
) -> None:
    config = load_config("debug", assignments=["training.validation_share=0"])
    assert build_validation_loader(config, dataset, CPU) is None
    assert caplog.text == ""
    config = load_config("debug", assignments=["training.batch_size=100"])
    with caplog.at_level(logging.WARNING, logger="energy_flow"):
        assert build_validation_loader(config, dataset, CPU) is None
    assert "128 pairs are too few to hold out training.validation_share=0.05" in caplog.text


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_come_to_the_cpu_whatever_the_default_device_is(dataset: PairDataset, num_workers: int) -> None:
    config = load_config("debug", assignments=[f"data.num_workers={num_workers}", "data.persistent_workers=true"])
    validation = build_validation_loader(config, dataset, CPU)
    expected = [*islice(build_loader(config, dataset, CPU), 2), *validation]
    torch.set_default_device("meta")
    try:
        batches = [*islice(build_loader(config, dataset, CPU), 2), *validation]
    finally:
        torch.set_default_device(None)
    assert _are_equal(batches, expected)


def test_passes_draw_nothing_from_the_random_state_of_the_training(config: EnergyConfig, dataset: PairDataset) -> None:
    before = torch.random.get_rng_state()
    validation = build_validation_loader(config, dataset, CPU)
    for loader in (validation, build_loader(config, dataset, CPU)):
        next(iter(loader))
    assert torch.equal(torch.random.get_rng_state(), before)


def _validation_keys(config: EnergyConfig, dataset: PairDataset, processes: Processes) -> list[list[int]]:
    loader = build_validation_loader(config, dataset, CPU, processes)
    return list(loader.batch_sampler)
