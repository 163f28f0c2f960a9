"""Turns gradients into an optimizer step that is safe to take: scaled, clipped, and skipped when not finite."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from energy_flow.energy_config import EnergyConfig


class GradientReport(NamedTuple):
    """What a step's gradients were like; both of shape [], on the device."""

    norm: Tensor  # global norm before clipping
    is_skipped: Tensor  # bool


class GradientControl:
    """Clips by the global norm and skips a step whose gradients are not finite, without asking the device.

    The optimizer is a fused one: it reads the flag `found_inf` on the device and then leaves weights and
    moments alone, as it does for `torch.amp.GradScaler`.
    """

    def __init__(self, config: EnergyConfig, model: nn.Module, device: torch.device) -> None:
        """Control the gradients of all parameters of `model`."""
        self.parameters = list(model.parameters())
        self.clip_norm = config.optimizer.gradient_clip_norm
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.runtime.precision == "float16")

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss to run backward from: scaled in float16, where small gradients would vanish; else as it is."""
        scaled: Tensor = self.scaler.scale(loss)
        return scaled

    def step(self, optimizer: Optimizer) -> GradientReport:
        """Unscale, clip, and let the optimizer step, or skip, by what the gradients are."""
        self.scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        is_skipped = ~torch.isfinite(norm)
        if not self.scaler.is_enabled():  # the scaler sets the flag itself
            optimizer.found_inf = is_skipped.float()  # type: ignore[attr-defined]
        self.scaler.step(optimizer)
        self.scaler.update()
        return GradientReport(norm=norm, is_skipped=is_skipped)
