"""Undoes what the forward passes of a skipped step left in buffers such as BatchNorm's, on the device."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RunningState:
    """Keeps the persistent buffers as they were before the step, and puts them back where it is skipped.

    Each costs its memory once more and two small operations a step, also one that no forward pass writes to:
    BatchNorm writes without raising its buffers' version, so that only their content would tell. Constants had
    better be buffers that are not persistent; a model without persistent ones pays nothing.
    """

    def __init__(self, model: nn.Module) -> None:
        """Remember the buffers of `model` that go into its checkpoints."""
        self._model = model
        persistent = model.state_dict().keys()
        self._names = [name for name, _ in model.named_buffers() if name in persistent]
        self.remember()

    def remember(self) -> None:
        """Take the buffers' present state as the one from before the step; needed after loading a checkpoint."""
        self._before = {name: self._model.get_buffer(name).detach().clone() for name in self._names}

    @torch.no_grad()
    def settle(self, is_skipped: Tensor) -> None:
        """End a step: put the buffers back where `is_skipped` ([] bool) holds, and remember them for the next."""
        for name, before in self._before.items():
            buffer = self._model.get_buffer(name)
            torch.where(is_skipped, before, buffer, out=buffer)
            before.copy_(buffer)
