"""The trainer: a step that reads top to bottom, and never makes the host wait for the device."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from energy_flow.data.batch import Batch, DeviceCopy
from energy_flow.data.dataset import PairDataset
from energy_flow.data.loader import batches_per_epoch, build_loader, build_validation_loader
from energy_flow.energy_config import EnergyConfig
from energy_flow.errors import EnergyFlowError
from energy_flow.model import Losses, build_model
from energy_flow.processes import ALONE, Processes, accumulating, agree_on, wrap
from energy_flow.training.checkpoint import Progress, load_latest, write_checkpoint
from energy_flow.training.checkpoint_folder import discard_checkpoints
from energy_flow.training.device import choose_device, prepare_device, prepare_process, return_unused_memory
from energy_flow.training.gradient_control import GradientControl
from energy_flow.training.gradient_detail import LayerGradients
from energy_flow.training.metrics import MetricsLog
from energy_flow.training.metrics_file import StepMetrics
from energy_flow.training.observation import observed
from energy_flow.training.validation import validate

_logger = logging.getLogger(__name__)


class EnergyTrainer:
    """Model, optimizer and gradient control of one run, and the step that uses them."""

    def __init__(self, config: EnergyConfig, *, out: Path, processes: Processes = ALONE) -> None:
        """Build everything that `config` asks for; checkpoints and metrics go to the folder `out`.

        Several processes must have joined before (`processes.joined`).
        """
        prepare_process(config.runtime)
        self.config, self.out, self.processes = config, out, processes
        self.device = choose_device(config.runtime, processes)
        prepare_device(self.device, config.runtime)
        self.model = build_model(config).to(self.device)
        self.replica = wrap(self.model, self.device, processes)
        self.optimizer = build_optimizer(config, self.model)
        self.gradients = GradientControl(
            config, self.model, self.optimizer, self.device, is_distributed=processes.world_size > 1
        )
        self.to_device = DeviceCopy(self.device)
        self.num_batches = 0
        self.dataset: dict[str, Any] = {}  # the manifest of the one that was trained on
        self.step = 0  # optimizer steps tried; those that were taken are `gradients.global_step`
        self._saved_steps = 0, 0  # tried and taken, of the newest checkpoint, or of the beginning

    def train(self, dataset: PairDataset, *, say: Callable[[StepMetrics], None] | None = None) -> None:
        """Train from the present step to `training.steps`; `say` is given a step's metrics now and then."""
        config, processes = self.config, self.processes
        loader = build_loader(config, dataset, self.device, first_step=self.step, processes=processes)
        held_out = build_validation_loader(config, dataset, self.device, processes)
        self._note_dataset(dataset)
        if self.step == 0 and processes.is_first:
            discard_checkpoints(self.out)
        self.model.train()
        with observed(
            config,
            out=self.out,
            model=self.model,
            device=self.device,
            batches_per_epoch=batches_per_epoch(config, len(dataset), processes),
            first_step=self.step,
            processes=processes,
            say=say,
        ) as metrics:
            for batch in loader:
                metrics.batch_fetched()
                self.train_batch(batch, metrics)
                if self.num_batches % config.training.accumulation == 0:
                    self._pause_when_due(metrics, held_out)
            with metrics.between_steps():
                if self.gradients.detail is not None:
                    _tell_layers(self.gradients.detail.drain())
                self._validate(held_out)
                folder = self.save()
        if folder is not None:
            _logger.info("step %5d  saved %s", self.step, folder)

    def train_batch(self, batch: Batch, metrics: MetricsLog) -> None:
        """Go forward and backward over a micro-batch, and step when it is the last of its step."""
        accumulation = self.config.training.accumulation
        self.num_batches += 1
        is_last = self.num_batches % accumulation == 0
        batch = self.to_device(batch)
        with accumulating(self.replica, is_last=is_last):
            with metrics.stages.forward(), self.autocast():
                losses: Losses = self.replica(batch)
            with metrics.stages.backward():
                self.gradients.backward(losses.total / accumulation)
        metrics.batch_done(losses, num_samples=batch.input_tokens.shape[0])
        if not is_last:
            return
        with metrics.stages.optimizer():
            gradient = self.gradients.step()
            self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        metrics.step_done(self.step, gradient)

    def autocast(self) -> torch.autocast:
        """The precision that the forward pass runs in."""
        precision = self.config.runtime.precision
        return torch.autocast(
            self.device.type,
            dtype=torch.float16 if precision == "float16" else torch.bfloat16,
            enabled=precision != "float32",
        )

    def save(self) -> Path | None:
        """Write a checkpoint of the present step and return its folder; the first process does it for all.

        None where all steps since the newest checkpoint were skipped: it has these weights, and the state from before
        the trouble, and a copy of it would take the place of an older one. Where none was taken from the beginning on,
        these weights are those that a run anew begins with.
        """
        if not self.processes.is_first:
            return None
        num_taken = int(self.gradients.global_step)
        if self._saved_steps[0] < self.step and self._saved_steps[1] == num_taken:
            _logger.warning(
                "step %d: no checkpoint, for all steps after step %d were skipped", self.step, self._saved_steps[0]
            )
            return None
        folder = write_checkpoint(
            self.out,
            config=self.config,
            progress=Progress(step=self.step, num_batches=self.num_batches, num_processes=self.processes.world_size),
            model=self.model,
            optimizer=self.optimizer,
            extra={"gradients": self.gradients.state_dict(), "dataset": self.dataset},
        )
        self._saved_steps = self.step, num_taken
        return folder

    def resume(self) -> None:
        """Go on from the newest checkpoint in `out`; all processes must call this.

        Raises:
            EnergyFlowError: when there is none, or it is of another model, or processes find different ones.

        """
        progress, extra = load_latest(self.out, config=self.config, model=self.model, optimizer=self.optimizer)
        self.gradients.load_state_dict(extra["gradients"])
        self.dataset = extra.get("dataset", {})
        self.step = progress.step
        self._saved_steps = self.step, int(self.gradients.global_step)
        # Not those that were taken, which with another `accumulation` may end within a step.
        self.num_batches = progress.step * self.config.training.accumulation
        # Asking also keeps the first process from replacing the checkpoint while another one reads it.
        if not agree_on(self.step, self.device, self.processes):
            raise EnergyFlowError(
                f"processes find different checkpoints in {self.out}; put it on a disk that all share"
            )
        if progress.num_processes != self.processes.world_size and self.processes.is_first:
            _logger.warning(
                "the run in %s goes on with another number of processes (%d there, %d here): other pairs make up a "
                "step, and others are held out",
                *(self.out, progress.num_processes, self.processes.world_size),
            )

    def _note_dataset(self, dataset: PairDataset) -> None:
        """Keep what the dataset says of itself, and warn where a run goes on with another one."""
        now = dataclasses.asdict(dataset.files.manifest)
        if self.dataset not in ({}, now) and self.processes.is_first:
            _logger.warning(
                "the run in %s goes on with another dataset (%s pairs of %s there, %s of %s here); --data names it",
                *(self.out, self.dataset["num_pairs"], self.dataset["source"], now["num_pairs"], now["source"]),
            )
        self.dataset = now

    def _pause_when_due(self, metrics: MetricsLog, held_out: DataLoader[Batch] | None) -> None:
        """Do what interrupts training now and then; none of it when the run is over, for that does it too."""
        training = self.config.training
        if self.gradients.detail is not None:
            _tell_layers(self.gradients.detail.arrived())
        if self.step == training.steps:
            return
        if self._is_due(training.validation_interval):
            with metrics.between_steps():
                self._validate(held_out)
        if self._is_due(training.checkpoint_interval):
            with metrics.between_steps():
                self.save()
        if self._is_due(training.memory_cleanup_interval):
            return_unused_memory(self.device)

    def _is_due(self, interval: int) -> bool:
        return interval > 0 and self.step % interval == 0

    def _validate(self, held_out: DataLoader[Batch] | None) -> None:
        if held_out is not None:
            validation = validate(self.model, held_out, self.device, self.autocast(), self.processes)
            _logger.info("step %5d  %s", self.step, validation)


def build_optimizer(config: EnergyConfig, model: nn.Module) -> torch.optim.AdamW:
    """AdamW over all parameters; fused, so that it can skip a step on the device (see `gradient_control.py`)."""
    return torch.optim.AdamW(
        model.parameters(),
        lr=config.optimizer.learning_rate,
        weight_decay=config.optimizer.weight_decay,
        fused=True,
    )


def _tell_layers(measured: Iterable[LayerGradients]) -> None:
    for layers in measured:
        norms = "  ".join(f"{name} {norm:.3g}" for name, norm in layers.norms.items())
        _logger.info("step %5d  gradients  %s", layers.step, norms)
