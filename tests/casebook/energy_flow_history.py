"""energy_flow with three faults of its history put back: losses kept with their graphs, no workers, scalar reads.

The reads wait for a GPU; on a CPU they take less than 1 % of the step, and pass.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from energy_flow.config_parsing import load_config
from energy_flow.core.flow_processor import FlowProcessor
from energy_flow.core.flow_storage import Flows
from energy_flow.data.batch import Batch, prepare_batch
from energy_flow.data.dataset import PairDataset, open_or_build_dataset
from energy_flow.data.loader import build_loader
from energy_flow.energy_config import EnergyConfig
from energy_flow.training.energy_trainer import EnergyTrainer
from energy_flow.training.metrics import MetricsLog
from energy_flow.training.metrics_file import StepMetrics

EXPECTED = ("input_stall", "retained_graph")


class HistoricFlowProcessor(FlowProcessor):
    """Looks at the flows after every flow step, as the first version's debug log did."""

    largest_energy = 0.0

    def step(self, flows: Flows) -> Flows:
        flows = super().step(flows)
        self.largest_energy = max(self.largest_energy, flows.energy.abs().max().item())
        return flows


class HistoricTrainer(EnergyTrainer):
    """The trainer as it once was."""

    def __init__(self, config: EnergyConfig, *, out: Path) -> None:
        super().__init__(config, out=out)
        self.model.flows.__class__ = HistoricFlowProcessor
        self.history: list[torch.Tensor] = []

    def train(self, dataset: PairDataset, *, say: Callable[[StepMetrics], None]) -> None:
        sampler = build_loader(self.config, dataset, self.device).batch_sampler
        loader: DataLoader[Batch] = DataLoader(dataset, batch_sampler=sampler)  # fault: input_stall
        self.model.train()
        with MetricsLog(self.out / "metrics.jsonl", log_interval=20, say=say) as metrics:
            for batch in loader:
                metrics.batch_fetched()
                self.train_batch(batch, metrics)

    def train_batch(self, batch: Batch, metrics: MetricsLog) -> None:
        batch = prepare_batch(batch, self.device)
        with self.autocast():
            losses = self.model(batch)
        self.gradients.backward(losses.total)
        self.history.append(losses.total)  # fault: retained_graph
        metrics.batch_done(losses, num_samples=batch.input_tokens.shape[0])
        gradient = self.gradients.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        metrics.step_done(self.step, gradient)


def main(arguments: list[str]) -> None:
    """Train like `energy-flow train --config NAME --steps N`, with the faults unless --healthy is an argument."""
    name = arguments[arguments.index("--config") + 1] if "--config" in arguments else "cpu_demo"
    steps = [f"training.steps={arguments[arguments.index('--steps') + 1]}"] if "--steps" in arguments else []
    config = load_config(name, assignments=steps)
    folder = Path("data/energy_flow")
    dataset = open_or_build_dataset(config, folder / config.name)
    trainer_class = EnergyTrainer if "--healthy" in arguments else HistoricTrainer
    trainer = trainer_class(config, out=folder / "runs" / "history")
    trainer.train(dataset, say=print)


if __name__ == "__main__":
    main(sys.argv[1:])
