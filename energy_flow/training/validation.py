"""Validation: how near the model comes to held-out targets, as embedding and as text."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from energy_flow.data.batch import Batch, DeviceCopy
from energy_flow.model import EnergyFlowModel, Prediction
from energy_flow.processes import ALONE, Processes, sum_over_processes
from energy_flow.text_bridge.tokens import PADDING

_TIE = 1e-6  # similarities this near are of equal targets: float32 products of equal rows may differ in the last bits


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """Means over the held-out pairs of all processes."""

    cosine: float  # similarity of predicted and target embedding, -1 to 1
    retrieval_accuracy: float  # share of predictions that are nearest to their own target among their batch's
    token_accuracy: float  # share of target tokens, padding left out, that are the likeliest after those before
    num_pairs: int

    def __str__(self) -> str:
        """Say it in one line."""
        return (
            f"validation on {self.num_pairs} pairs  cosine {self.cosine:.4f}  "
            f"retrieval {self.retrieval_accuracy:.1%}  tokens {self.token_accuracy:.1%}"
        )


def validate(
    model: EnergyFlowModel,
    batches: Iterable[Batch],
    device: torch.device,
    autocast: AbstractContextManager[Any],
    processes: Processes = ALONE,
) -> Validation:
    """Validate `model`, not its DistributedDataParallel, on this process's `batches`; all processes must call this.

    The host waits for the device once, at the end. `autocast` is entered for each batch. The model comes back in
    the mode, training or not, that it came in.

    Raises:
        ValueError: when the batches of all processes together hold no pair.

    """
    was_training = model.training
    model.eval()
    to_device = DeviceCopy(device)
    sums = torch.zeros(5, device=device)
    try:
        with torch.no_grad():
            for batch in map(to_device, batches):
                with autocast:
                    predicted = model.predict(batch)
                sums += _sums(predicted, batch)
    finally:
        model.train(was_training)
    # In float32, as MPS has no float64; it counts up to 2**24 exactly, and beyond it a share needs no last digit.
    cosine, found, right, num_tokens, num_pairs = sum_over_processes(sums, processes).tolist()
    if num_pairs == 0:
        raise ValueError("there are no pairs to validate on")
    return Validation(
        cosine=cosine / num_pairs,
        retrieval_accuracy=found / num_pairs,
        token_accuracy=right / num_tokens,
        num_pairs=round(num_pairs),
    )


def _sums(predicted: Prediction, batch: Batch) -> Tensor:
    """Over a batch [5]: cosines, pairs found, tokens right, tokens, pairs."""
    # Both of unit length. The product may be in TF32, which ranks well enough; the cosine is told, and is not.
    similarity = predicted.embedding @ batch.target_embedding.T
    found = similarity.diagonal() >= similarity.amax(dim=1) - _TIE
    cosine = functional.cosine_similarity(predicted.embedding, batch.target_embedding)
    tokens = batch.target_tokens[:, 1:]
    is_token = tokens != PADDING
    is_right = is_token & (predicted.logits.argmax(dim=-1) == tokens)
    parts = [cosine.sum(), found.sum(), is_right.sum(), is_token.sum(), torch.ones_like(cosine).sum()]
    return torch.stack([part.float() for part in parts])
