"""The trainer: a step that reads top to bottom, and never makes the host wait for the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from energy_flow.data.batch import Batch, prepare_batch
from energy_flow.data.dataset import PairDataset
from energy_flow.data.loader import build_loader
from energy_flow.energy_config import EnergyConfig
from energy_flow.model import Losses, build_model
from energy_flow.training.checkpoint import load_checkpoint, save_checkpoint
from energy_flow.training.device import choose_device, prepare_process
from energy_flow.training.gradient_control import GradientControl
from energy_flow.training.metrics import MetricsLog, StepMetrics

CHECKPOINT_NAME, METRICS_NAME = "checkpoint.pt", "metrics.jsonl"


class EnergyTrainer:
    """Model, optimizer and gradient control of one run, and the step that uses them."""

    def __init__(self, config: EnergyConfig, *, out: Path) -> None:
        """Build everything that `config` asks for; checkpoints and metrics go to the folder `out`."""
        prepare_process(config.runtime)
        self.config, self.out = config, out
        self.device = choose_device(config.runtime)
        self.model = build_model(config).to(self.device)
        self.optimizer = build_optimizer(config, self.model)
        self.gradients = GradientControl(config, self.model, self.device)
        self.num_batches = 0
        self.step = 0

    def train(self, dataset: PairDataset, *, say: Callable[[StepMetrics], None]) -> None:
        """Train from the present step to `training.steps`; `say` is given a step's metrics now and then."""
        loader: DataLoader[Batch] = build_loader(self.config, dataset, self.device, first_step=self.step)
        log_interval = self.config.training.log_interval
        self.model.train()
        if self.step == 0:
            (self.out / METRICS_NAME).unlink(missing_ok=True)
        with MetricsLog(self.out / METRICS_NAME, log_interval=log_interval, say=say) as metrics:
            for batch in loader:
                metrics.batch_fetched()
                self.train_batch(batch, metrics)
        self.save()

    def train_batch(self, batch: Batch, metrics: MetricsLog) -> None:
        """Go forward and backward over a micro-batch, and step when it is the last of its step."""
        batch = prepare_batch(batch, self.device)
        with self.autocast():
            losses: Losses = self.model(batch)
        loss = self.gradients.scaled(losses.total / self.config.training.accumulation)
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types there
        metrics.batch_done(losses, num_samples=batch.input_tokens.shape[0])
        self.num_batches += 1
        if self.num_batches % self.config.training.accumulation:
            return
        gradient = self.gradients.step(self.optimizer)
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        metrics.step_done(self.step, gradient)
        self._save_when_due()

    def autocast(self) -> torch.autocast:
        """The precision that the forward pass runs in."""
        precision = self.config.runtime.precision
        return torch.autocast(
            self.device.type,
            dtype=torch.float16 if precision == "float16" else torch.bfloat16,
            enabled=precision != "float32",
        )

    def save(self) -> None:
        """Write a checkpoint of the present step."""
        save_checkpoint(
            self.out / CHECKPOINT_NAME,
            config=self.config,
            step=self.step,
            model=self.model,
            optimizer=self.optimizer,
            scaler=self.gradients.scaler,
        )

    def resume(self) -> None:
        """Go on from the checkpoint in `out`."""
        self.step = load_checkpoint(
            self.out / CHECKPOINT_NAME,
            model=self.model,
            optimizer=self.optimizer,
            scaler=self.gradients.scaler,
        )

    def _save_when_due(self) -> None:
        interval = self.config.training.checkpoint_interval
        if interval and self.step % interval == 0 and self.step < self.config.training.steps:
            self.save()


def build_optimizer(config: EnergyConfig, model: nn.Module) -> torch.optim.AdamW:
    """AdamW over all parameters; fused, so that it can skip a step on the device (see `gradient_control.py`)."""
    return torch.optim.AdamW(
        model.parameters(),
        lr=config.optimizer.learning_rate,
        weight_decay=config.optimizer.weight_decay,
        fused=True,
    )
