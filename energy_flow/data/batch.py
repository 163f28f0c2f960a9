"""A batch of text pairs, as the loader hands it over, and how it comes to the device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Embeddings are float32, tokens int64; a named tuple, so that the loader can pin and pass it as it is."""

    input_embedding: Tensor  # [batch, 768], unit length
    target_embedding: Tensor  # [batch, 768], unit length
    input_tokens: Tensor  # [batch, max_bytes + 2]
    target_tokens: Tensor  # [batch, max_bytes + 2]


def prepare_batch(batch: Batch, device: torch.device) -> Batch:
    """The batch on `device`; from pinned memory the copies run while the host goes on."""
    return Batch(*(field.to(device, non_blocking=True) for field in batch))


class DeviceCopy:
    """Copies batches to one device, in the order that it is given them.

    On CUDA a stream of its own copies, which waits for no computation: the host is ahead of the device, so a batch
    from pinned memory travels while the device still computes on the one before. Elsewhere there is no other stream.
    """

    def __init__(self, device: torch.device) -> None:
        """Copy to `device`."""
        self.device = device
        self._stream = _copying_stream(device) if device.type == "cuda" else None

    def __call__(self, batch: Batch) -> Batch:
        """The batch on the device, for use on the stream that is current there."""
        if self._stream is None:
            return prepare_batch(batch, self.device)
        with torch.cuda.stream(self._stream):
            copied = prepare_batch(batch, self.device)
        computing = torch.cuda.current_stream(self.device)
        computing.wait_stream(self._stream)
        for field in copied:
            # The memory belongs to the copying stream: it must not go to a next batch while this one is in use.
            field.record_stream(computing)
        return copied


def _copying_stream(device: torch.device) -> torch.cuda.Stream:
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types there
    return stream
