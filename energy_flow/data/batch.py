"""A batch of text pairs, as the loader hands it over."""

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
