"""One training step of energy_flow, and of the naive loop that it replaces, ready to be timed on a made batch."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from energy_flow.data.batch import Batch, prepare_batch
from energy_flow.energy_config import EMBEDDING_SIZE, EnergyConfig
from energy_flow.model import Losses, build_model
from energy_flow.text_bridge.tokens import encode
from energy_flow.training.energy_trainer import EnergyTrainer
from energy_flow.training.metrics import MetricsLog, Sources
from energy_flow.training.stage_times import stage_times
from tests.energy_flow.naive_reference import naive_losses

LEARNING_RATE = 0.0
"""AdamW's work does not depend on it, and this way every step has the same weights as the first."""

_ALPHABET = torch.tensor(list(b"abcdefghijklmnopqrstuvwxyz      "))


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """A whole step to be called, and what is compared of it afterwards."""

    run: Callable[[], Losses]  # gives those of the last micro-batch
    gradients: Callable[[], list[Tensor]]  # of the last step, clipped, in the order of the parameters
    num_samples: int


def trainer_step(config: EnergyConfig, device: torch.device) -> TimedStep:
    """`EnergyTrainer.train_batch` itself, with all that it does for safety and metrics; they go to no file."""
    settings = replace(config.optimizer, learning_rate=LEARNING_RATE)
    runtime = replace(config.runtime, device=str(device))
    trainer = EnergyTrainer(replace(config, optimizer=settings, runtime=runtime), out=Path())
    trainer.model.train()
    batch = made_batch(config, torch.device("cpu"))
    batch = prepare_batch(batch, trainer.device)
    metrics = MetricsLog(None, sources=Sources(stages=stage_times(trainer.model, trainer.device)))
    metrics.stages.__enter__()
    seen: dict[str, Any] = {}
    trainer.model.register_forward_hook(lambda *call: seen.update(losses=call[-1]))
    parameters = list(trainer.model.parameters())
    trainer.optimizer.register_step_post_hook(
        lambda *_: seen.update(gradients=[parameter.grad for parameter in parameters])
    )

    def run() -> Losses:
        for _ in range(config.training.accumulation):
            trainer.train_batch(batch, metrics)
        losses: Losses = seen["losses"]
        return losses

    return TimedStep(run=run, gradients=lambda: seen["gradients"], num_samples=_num_samples(config))


def naive_step(config: EnergyConfig) -> TimedStep:
    """Forward, backward, clipping and AdamW as a loop over texts, flows and flow steps, on the CPU."""
    model, batch = build_model(config), made_batch(config, torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    accumulation = config.training.accumulation

    def run() -> Losses:
        optimizer.zero_grad(set_to_none=True)
        for _ in range(accumulation):
            losses = naive_losses(model, config, batch)
            (losses.total / accumulation).backward()  # type: ignore[no-untyped-call]  # torch has no types there
        nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.gradient_clip_norm)
        optimizer.step()
        return losses

    def gradients() -> list[Tensor]:
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    return TimedStep(run=run, gradients=gradients, num_samples=_num_samples(config))


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


def _num_samples(config: EnergyConfig) -> int:
    return config.training.accumulation * config.training.batch_size
