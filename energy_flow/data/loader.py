"""The loaders: batches of a run in an order that its seed fixes, made ahead by worker processes; held-out pairs."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Sampler

from energy_flow.data.batch import Batch
from energy_flow.data.dataset import PairDataset
from energy_flow.energy_config import EnergyConfig
from energy_flow.errors import EnergyFlowError
from energy_flow.processes import ALONE, Processes

logger = logging.getLogger(__name__)


class RunSampler(Sampler[list[int]]):
    """The keys of every batch of a run, epoch after epoch, so that workers never pause between epochs.

    The order depends on the seed and the batch's number alone: a run can begin at any batch. Several processes
    share one order: each takes its part of every `world_size * batch_size` keys.
    """

    def __init__(
        self,
        num_pairs: int,
        *,
        batch_size: int,
        num_batches: int,
        seed: int,
        first_batch: int = 0,
        num_held_out: int = 0,
        processes: Processes = ALONE,
    ) -> None:
        """Plan batches `first_batch` up to, not including, `num_batches`; an epoch's incomplete batch is left out.

        The last `num_held_out` of the `num_pairs` pairs are never among them.
        """
        self.num_pairs, self.num_held_out, self.seed = num_pairs, num_held_out, seed
        self.batch_size, self.processes = batch_size, processes
        self.batch_numbers = range(first_batch, num_batches)

    def __len__(self) -> int:
        """Count the batches."""
        return len(self.batch_numbers)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the keys of one batch of this process after the other."""
        joint_size = self.batch_size * self.processes.world_size
        per_epoch = (self.num_pairs - self.num_held_out) // joint_size
        shuffled_epoch, keys = -1, np.empty(0, dtype=np.int64)
        for number in self.batch_numbers:
            epoch, place = divmod(number, per_epoch)
            if epoch != shuffled_epoch:
                shuffled_epoch, keys = epoch, self._keys_of(epoch)
            first = place * joint_size + self.processes.rank * self.batch_size
            yield keys[first : first + self.batch_size].tolist()

    def _keys_of(self, epoch: int) -> npt.NDArray[np.int64]:
        # NumPy shuffles on the CPU whatever torch's default device is, and reads no tensor in the training step.
        order = np.random.default_rng([self.seed, epoch]).permutation(self.num_pairs - self.num_held_out)
        return order + epoch * self.num_pairs


class HostLoader(DataLoader[Batch]):
    """A loader that works whatever torch's default device is."""

    def __iter__(self) -> Any:
        """Start a pass; torch draws its workers' seed here from a CPU generator, into a tensor on that device."""
        with torch.device("cpu"):
            return super().__iter__()


def build_loader(
    config: EnergyConfig,
    dataset: PairDataset,
    device: torch.device,
    *,
    first_step: int = 0,
    processes: Processes = ALONE,
) -> DataLoader[Batch]:
    """A loader for the optimizer steps of a run from `first_step` on, each of `accumulation` batches.

    Raises:
        EnergyFlowError: when the dataset has not even one batch for every process.

    """
    training, data = config.training, config.data
    joint_size = training.batch_size * processes.world_size
    if len(dataset) < joint_size:
        shared = f" of each of {processes.world_size} processes" if processes.world_size > 1 else ""
        raise EnergyFlowError(
            f"the dataset in {dataset.folder} has {len(dataset)} pairs, fewer than "
            f"training.batch_size={training.batch_size}{shared}; lower it or build a larger dataset"
        )
    sampler = RunSampler(
        len(dataset),
        batch_size=training.batch_size,
        num_batches=training.steps * training.accumulation,
        seed=training.seed,
        first_batch=first_step * training.accumulation,
        num_held_out=num_held_out(config, len(dataset), processes),
        processes=processes,
    )
    has_workers = data.num_workers > 0
    return HostLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=data.num_workers,
        prefetch_factor=data.prefetch_factor if has_workers else None,
        persistent_workers=data.persistent_workers and has_workers,
        pin_memory=data.pin_memory and device.type == "cuda",
        generator=_generator(config),
    )


def build_validation_loader(
    config: EnergyConfig, dataset: PairDataset, device: torch.device, processes: Processes = ALONE
) -> DataLoader[Batch] | None:
    """A loader for this process's part of the held-out pairs, in their order; None when none are held out.

    The batches are of nearly equal size, at most `batch_size`: a much smaller last one would make it too easy to
    find the target among its batch. They come from this process, which reads them without dropping words: that
    is cheaper than workers that start for every pass, or stay for the next one.
    """
    held_out = num_held_out(config, len(dataset), processes)
    if held_out == 0:
        if config.training.validation_share > 0:
            logger.warning(
                "no validation: %d pairs are too few to hold out training.validation_share=%g of them and a batch",
                len(dataset),
                config.training.validation_share,
            )
        return None
    whole_texts = dataclasses.replace(config, data=dataclasses.replace(config.data, word_dropout=0.0))
    batches = _validation_batches(config, range(len(dataset) - held_out, len(dataset)))
    return HostLoader(
        PairDataset(dataset.folder, whole_texts),
        batch_sampler=batches[processes.rank :: processes.world_size],
        pin_memory=config.data.pin_memory and device.type == "cuda",
        generator=_generator(config),
    )


def batches_per_epoch(config: EnergyConfig, num_pairs: int, processes: Processes = ALONE) -> int:
    """Micro-batches of each process in one pass over the training pairs of a dataset of `num_pairs`."""
    num_training = num_pairs - num_held_out(config, num_pairs, processes)
    return num_training // (config.training.batch_size * processes.world_size)


def num_held_out(config: EnergyConfig, num_pairs: int, processes: Processes = ALONE) -> int:
    """Pairs at the end of a dataset that are kept for validation: `validation_share`, and a batch at least.

    None where fewer pairs would be left to train on than held out, or not a batch for every process.
    """
    joint_size = config.training.batch_size * processes.world_size
    share = config.training.validation_share
    held_out = max(round(share * num_pairs), joint_size) if share > 0 else 0
    return held_out if num_pairs - held_out >= max(held_out, joint_size) else 0


def _validation_batches(config: EnergyConfig, held_out: Iterable[int]) -> list[list[int]]:
    indices = np.array(held_out)
    num_batches = math.ceil(len(indices) / config.training.batch_size)
    batches = [batch.tolist() for batch in np.array_split(indices, num_batches)]
    return batches[: config.training.validation_batches or None]


def _generator(config: EnergyConfig) -> torch.Generator:
    """The loader's own: a pass must not draw from torch's, or validating would change how training goes on."""
    return torch.Generator("cpu").manual_seed(config.training.seed)
