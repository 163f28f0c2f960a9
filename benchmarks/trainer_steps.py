"""One training step of energy_flow, and of the naive loop that it replaces, ready to be timed on a made batch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from energy_flow.data.batch import Batch, prepare_batch
from energy_flow.energy_config import EMBEDDING_SIZE, EnergyConfig
from energy_flow.model import EnergyFlowModel, Losses, build_model
from energy_flow.text_bridge.tokens import encode
from tests.energy_flow.naive_reference import naive_losses

LEARNING_RATE = 0.0
"""AdamW's work does not depend on it, and this way every step has the same weights as the first."""

_ALPHABET = torch.tensor(list(b"abcdefghijklmnopqrstuvwxyz      "))


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """A whole step to be called: forward, backward, clipping, AdamW; its gradients stay until the next call."""

    model: EnergyFlowModel
    run: Callable[[], Losses]
    num_samples: int


def trainer_step(config: EnergyConfig, device: torch.device) -> TimedStep:
    """The step as it is trained: every micro-batch moves all its flows at once."""
    return _timed_step(config, device, lambda model, batch: model(batch))


def naive_step(config: EnergyConfig) -> TimedStep:
    """The same step as a loop over texts, flows and flow steps, on the CPU."""
    return _timed_step(config, torch.device("cpu"), lambda model, batch: naive_losses(model, config, batch))


def made_batch(config: EnergyConfig, device: torch.device) -> Batch:
    """A batch of random letters, of any length up to `max_bytes`, and random embeddings: the same at every call."""
    generator = torch.Generator().manual_seed(0)
    num_texts, max_bytes = config.training.batch_size, config.bridge.max_bytes

    def embeddings() -> torch.Tensor:
        return nn.functional.normalize(torch.randn(num_texts, EMBEDDING_SIZE, generator=generator), dim=-1)

    def tokens() -> torch.Tensor:
        lengths = torch.randint(1, max_bytes + 1, (num_texts,), generator=generator).tolist()
        letters = (torch.randint(len(_ALPHABET), (length,), generator=generator) for length in lengths)
        texts = (bytes(_ALPHABET[letter].tolist()).decode() for letter in letters)
        return torch.stack([torch.from_numpy(encode(text, max_bytes)) for text in texts])

    return prepare_batch(Batch(embeddings(), embeddings(), tokens(), tokens()), device)


def _timed_step(
    config: EnergyConfig, device: torch.device, forward: Callable[[EnergyFlowModel, Batch], Losses]
) -> TimedStep:
    model, batch = build_model(config).to(device), made_batch(config, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    precision = config.runtime.precision
    accumulation = config.training.accumulation

    def run() -> Losses:
        optimizer.zero_grad(set_to_none=True)
        for _ in range(accumulation):
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision != "float32"):
                losses = forward(model, batch)
            (losses.total / accumulation).backward()  # type: ignore[no-untyped-call]  # torch has no types there
        nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.gradient_clip_norm)
        optimizer.step()
        return losses

    return TimedStep(model=model, run=run, num_samples=accumulation * config.training.batch_size)
