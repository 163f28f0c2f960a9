"""The loader: batches of a run in an order that its seed fixes, made ahead by worker processes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Sampler

from energy_flow.data.batch import Batch
from energy_flow.data.dataset import PairDataset
from energy_flow.energy_config import EnergyConfig
from energy_flow.errors import EnergyFlowError


class RunSampler(Sampler[list[int]]):
    """The keys of every batch of a run, epoch after epoch, so that workers never pause between epochs.

    The order depends on the seed and the batch's number alone: a run can begin at any batch.
    """

    def __init__(self, num_pairs: int, *, batch_size: int, num_batches: int, seed: int, first_batch: int = 0) -> None:
        """Plan batches `first_batch` up to, not including, `num_batches`; an epoch's incomplete batch is left out."""
        self.num_pairs, self.batch_size, self.seed = num_pairs, batch_size, seed
        self.batch_numbers = range(first_batch, num_batches)

    def __len__(self) -> int:
        """Count the batches."""
        return len(self.batch_numbers)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the keys of one batch after the other."""
        batches_per_epoch = self.num_pairs // self.batch_size
        shuffled_epoch, keys = -1, np.empty(0, dtype=np.int64)
        for number in self.batch_numbers:
            epoch, place = divmod(number, batches_per_epoch)
            if epoch != shuffled_epoch:
                shuffled_epoch, keys = epoch, self._keys_of(epoch)
            yield keys[place * self.batch_size : (place + 1) * self.batch_size].tolist()

    def _keys_of(self, epoch: int) -> npt.NDArray[np.int64]:
        # NumPy shuffles on the CPU whatever torch's default device is, and reads no tensor in the training step.
        order = np.random.default_rng([self.seed, epoch]).permutation(self.num_pairs)
        return order + epoch * self.num_pairs


def build_loader(
    config: EnergyConfig, dataset: PairDataset, device: torch.device, *, first_step: int = 0
) -> DataLoader[Batch]:
    """A loader for the optimizer steps of a run from `first_step` on, each of `accumulation` batches."""
    training, data = config.training, config.data
    if len(dataset) < training.batch_size:
        raise EnergyFlowError(
            f"the dataset in {dataset.folder} has {len(dataset)} pairs, fewer than "
            f"training.batch_size={training.batch_size}; lower it or build a larger dataset"
        )
    sampler = RunSampler(
        len(dataset),
        batch_size=training.batch_size,
        num_batches=training.steps * training.accumulation,
        seed=training.seed,
        first_batch=first_step * training.accumulation,
    )
    has_workers = data.num_workers > 0
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=data.num_workers,
        prefetch_factor=data.prefetch_factor if has_workers else None,
        persistent_workers=data.persistent_workers and has_workers,
        pin_memory=data.pin_memory and device.type == "cuda",
        generator=torch.Generator("cpu").manual_seed(training.seed),
    )
