"""energy_flow without its guard against numbers that are not finite, and with one fault."""

import math
import sys
from pathlib import Path

import torch

from energy_flow.config_parsing import load_config
from energy_flow.core.flow_processor import FlowProcessor, Tally
from energy_flow.core.flow_storage import Flows
from energy_flow.data.batch import Batch
from energy_flow.data.dataset import open_or_build_dataset
from energy_flow.training.energy_trainer import EnergyTrainer
from energy_flow.training.gradient_control import GradientControl
from energy_flow.training.metrics import MetricsLog

FAULT = sys.argv[1]
FIRST_BAD = 25


class Plain(GradientControl):
    """Backward and update, whatever the numbers are."""

    def backward(self, loss: torch.Tensor) -> None:
        self._loss_sum = self._loss_sum + loss.detach()
        self.scaler.scale(loss).backward()

    def _reason(self, norm: torch.Tensor) -> torch.Tensor:
        super()._reason(norm)
        return torch.zeros((), dtype=torch.int64)


class LargeFlows(FlowProcessor):
    """Sums energies in the precision of autocast."""

    num_calls = 0

    def launch(self, surface: torch.Tensor) -> tuple[Flows, Tally]:
        self.num_calls += 1
        weight = self.start.weight * (3e3 if self.num_calls > FIRST_BAD else 1.0)
        surface = surface + 0 * (weight @ weight.T).sum()  # born
        return super().launch(surface)


class Trainer(EnergyTrainer):
    def train_batch(self, batch: Batch, metrics: MetricsLog) -> None:
        if FAULT == "batch" and self.step == FIRST_BAD:
            batch.input_embedding[3, 5] = math.nan
        super().train_batch(batch, metrics)


settings = ["training.steps=40"]
if FAULT == "half":
    settings.append("runtime.precision=float16")
if FAULT == "clip":
    settings += ["optimizer.learning_rate=20.0", "optimizer.gradient_clip_norm=1000000000"]
config = load_config("debug", assignments=settings)
folder = Path("data/energy_flow")
trainer = Trainer(config, out=folder / "runs" / "plain")
trainer.gradients.__class__ = Plain
if FAULT == "clip":
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=20.0, momentum=0.9)
    trainer.gradients.optimizer, trainer.gradients._skips_on_device = trainer.optimizer, False
if FAULT == "half":
    trainer.model.flows.__class__ = LargeFlows
trainer.train(open_or_build_dataset(config, folder / config.name), say=print)
