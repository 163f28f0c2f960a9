"""Work that is always the same, to tell a training that slows down from a machine that does."""

import time

import torch
from torch.utils.data import default_collate

from energy_flow.data.batch import Batch
from energy_flow.data.dataset import PairDataset
from energy_flow.energy_config import EnergyConfig
from energy_flow.model import build_model

STEPS_BETWEEN = 3
"""A sample of fifteen, at one in ten steps of a short phase, was off by a tenth (measured)."""


class ReferenceWork:
    """Forward and backward of a new model on one batch, every few steps, by CPU time.

    The same kinds of work as training itself, for a shared machine slows small and large operations by different
    shares: it loses a fifth of its pace within a minute (measured).
    """

    def __init__(self, config: EnergyConfig, dataset: PairDataset) -> None:
        """Run it once, so that all its memory is there from the beginning."""
        self._model = build_model(config)
        indices = range(config.training.batch_size)
        self._batch: Batch = default_collate(dataset.__getitems__(indices))
        self._ms = 0.0
        self.measure(0)

    def measure(self, step: int) -> float:
        """Milliseconds that the work took at this step, or at the last one at which it was done."""
        if step % STEPS_BETWEEN == 0:
            began = time.process_time()
            self._model.zero_grad(set_to_none=False)
            torch.autograd.backward(self._model(self._batch).total)
            self._ms = 1000 * (time.process_time() - began)
        return self._ms
