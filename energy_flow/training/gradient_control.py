"""Turns losses into optimizer steps that are safe to take: scaled, clipped, and skipped when not finite."""

from __future__ import annotations

import enum
import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from energy_flow.energy_config import EnergyConfig, OptimizerConfig
from energy_flow.training.gradient_detail import GradientDetail
from energy_flow.training.learning_rate import LearningRateBackoff, LearningRateSchedule

Health = Literal["healthy", "high", "critical"]


class SkipReason(enum.IntEnum):
    """Why a step was not taken, if it was not."""

    TAKEN = 0
    LOSS_NOT_FINITE = 1
    GRADIENT_NOT_FINITE = 2


class GradientReport(NamedTuple):
    """What became of a step; all of shape [], on the device, and never changed afterwards."""

    norm: Tensor  # float32, global norm before clipping, without the loss scale
    is_skipped: Tensor  # bool
    reason: Tensor  # int64, a SkipReason
    learning_rate: Tensor  # float32, that the step had, or would have had
    scale: Tensor  # float32, that the losses of this step were multiplied by; 1 but in float16
    global_step: Tensor  # int64, steps taken so far; skipped ones do not count


class GradientControl:
    """Runs backward, clips by the global norm, and skips the step where a loss or gradient is not finite.

    The host does not ask the device. The optimizer is a fused one: it reads the flag `found_inf` on the device and
    then leaves weights and moments alone, as it does for `torch.amp.GradScaler`. An optimizer that cannot do so is
    told by the host, which then waits for the device once a step. All parameter groups have the same learning rate.
    """

    def __init__(
        self,
        config: EnergyConfig,
        model: nn.Module,
        optimizer: Optimizer,
        device: torch.device,
        is_distributed: bool = False,
    ) -> None:
        """Control the gradients of all parameter groups of `optimizer`, and the running state of `model`."""
        self.optimizer = optimizer
        self.parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.scaler = torch.amp.GradScaler(
            device.type,
            init_scale=config.scaler.init_scale,
            growth_factor=config.scaler.growth_factor,
            backoff_factor=config.scaler.backoff_factor,
            growth_interval=config.scaler.growth_interval,
            enabled=config.runtime.precision == "float16",
        )
        interval = config.training.gradient_detail_interval
        self.detail = GradientDetail(model, interval) if interval else None
        self.global_step = torch.zeros((), dtype=torch.int64, device=device)
        self._settings, self._lowest_scale = config.optimizer, config.scaler.lowest_scale
        self._schedule = LearningRateSchedule(config.optimizer, config.training.steps, device)
        self._backoff = LearningRateBackoff(config.backoff, device) if config.backoff.window else None
        self._running_state = _RunningState(model)
        self._is_distributed = is_distributed
        # A rank that left out its backward alone would keep the others waiting for its gradients.
        self._may_look = device.type == "cpu" and not is_distributed
        # How torch's optimizers say that they heed `found_inf`; the scaler asks the same.
        self._skips_on_device = getattr(optimizer, "_step_supports_amp_scaling", False)
        self._one, self._loss_sum = torch.ones((), device=device), torch.zeros((), device=device)
        self._num_steps = 0  # skipped ones included

    def backward(self, loss: Tensor) -> None:
        """Run backward from a micro-batch's loss ([]), scaled in float16, where small gradients would vanish.

        A loss that is not finite skips the step; on the CPU, where looking is free, its backward is left out too.
        """
        self._loss_sum = self._loss_sum + loss.detach()  # not finite as soon as one of them is not
        if self._may_look and not math.isfinite(loss.detach().float().numpy()):
            return
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch has no types there

    def step(self) -> GradientReport:
        """Unscale, clip, and let the optimizer step or skip. Clearing the gradients is left to the caller."""
        self._num_steps += 1
        scale = self.scaler.scale(self._one)
        if self.detail is not None:
            self.detail.measure(self._num_steps, scale)
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.parameters, self._settings.gradient_clip_norm)
        reason = self._reason(norm)
        is_skipped = reason != SkipReason.TAKEN
        # A skipped step has what norm its backward got to, 0 without one: no history for the back-off.
        learning_rate = self._set_learning_rate(torch.where(is_skipped, math.nan, norm))
        self._step_unless(is_skipped)
        self._running_state.settle(is_skipped)
        self.global_step = self.global_step + ~is_skipped
        return GradientReport(norm, is_skipped, reason, learning_rate, scale, self.global_step)

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on; reads the scale, so it is for outside the training step."""
        return {
            "global_step": self.global_step,
            "num_steps": self._num_steps,
            "scaler": self.scaler.state_dict(),
            "backoff": {} if self._backoff is None else self._backoff.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state, once model and optimizer have theirs; settings of another run are not taken over."""
        self.global_step = state["global_step"].to(self.global_step)
        self._num_steps = state["num_steps"]
        if self.scaler.is_enabled() and state["scaler"]:
            present = self.scaler.state_dict()
            kept = {name: state["scaler"][name] for name in ("scale", "_growth_tracker")}
            self.scaler.load_state_dict({**present, **kept})
        if self._backoff is not None and state["backoff"]:
            self._backoff.load_state_dict(state["backoff"])
        self._running_state.remember()

    def _reason(self, norm: Tensor) -> Tensor:
        """Judge the losses since the last step, of all ranks, and the gradients, which all ranks share."""
        loss_sum, self._loss_sum = self._loss_sum, torch.zeros_like(self._loss_sum)
        if self._is_distributed:
            distributed.all_reduce(loss_sum)
        by_gradient = torch.where(torch.isfinite(norm), SkipReason.TAKEN, SkipReason.GRADIENT_NOT_FINITE)
        return torch.where(torch.isfinite(loss_sum), by_gradient, SkipReason.LOSS_NOT_FINITE)

    def _set_learning_rate(self, norm: Tensor) -> Tensor:
        """Give the optimizer this step's learning rate: a tensor, or where it never changes a number."""
        rate = self._schedule.at(self.global_step)
        if self._backoff is not None:
            rate = rate * self._backoff.observe(norm)
        for group in self.optimizer.param_groups:
            if self._schedule.is_constant and self._backoff is None:
                group["lr"] = self._settings.learning_rate
            else:
                group["lr"] = rate if self._skips_on_device else float(rate)
        return rate

    def _step_unless(self, is_skipped: Tensor) -> None:
        if self.scaler.is_enabled():
            # The scaler looks at gradients alone. It has no public way to be told of a loss as well.
            self.scaler._found_inf_per_device(self.optimizer)[is_skipped.device] = is_skipped.float()  # type: ignore[index]
            self.scaler.step(self.optimizer)
            self.scaler.update()
            # Halved by a hundred bad steps and more it would become zero, by which no gradient can be divided.
            self.scaler.update(self.scaler.scale(self._one).clamp(min=self._lowest_scale))
        elif self._skips_on_device:
            self.optimizer.found_inf = is_skipped.float()  # type: ignore[attr-defined]
            self.optimizer.step()
            del self.optimizer.found_inf  # type: ignore[attr-defined]
        elif not is_skipped:
            self.optimizer.step()


def gradient_health(norm: float, optimizer: OptimizerConfig) -> Health:
    """Judge a gradient norm from before clipping; one that is not finite is critical."""
    if norm < optimizer.high_gradient_norm:
        return "healthy"
    return "high" if norm < optimizer.critical_gradient_norm else "critical"


class _RunningState:
    """Keeps persistent buffers, such as BatchNorm's, as they were before a step, to put them back where it is skipped.

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
