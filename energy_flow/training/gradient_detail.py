"""The gradient norm of every layer, now and then, read once it has reached the host by itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from energy_flow.late_read import LateRead, Values


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerGradients:
    """The gradient norms of one step, unscaled and before clipping."""

    step: int  # counted from 1, skipped ones included
    norms: dict[str, float]  # by the layer's name in the model; layers without a gradient are left out


class GradientDetail:
    """Measures each layer that holds parameters of its own, at every `interval`-th step."""

    def __init__(self, model: nn.Module, interval: int) -> None:
        """List the layers of `model`."""
        self._interval = interval
        own = {name: list(module.parameters(recurse=False)) for name, module in model.named_modules()}
        self._layers = {name: parameters for name, parameters in own.items() if parameters}
        self._under_way: LateRead[tuple[int, tuple[str, ...]]] = LateRead()

    @torch.no_grad()
    def measure(self, step: int, scale: Tensor) -> None:
        """Send the norms on their way if `step` is due; `scale` ([]) is what the loss was multiplied by."""
        if step % self._interval:
            return
        norms = {
            name: nn.utils.get_total_norm(gradients)
            for name, parameters in self._layers.items()
            if (gradients := [parameter.grad for parameter in parameters if parameter.grad is not None])
        }
        if norms:
            self._under_way.push((step, tuple(norms)), torch.stack(list(norms.values())) / scale)

    def arrived(self) -> list[LayerGradients]:
        """What has reached the host since the last call, oldest first."""
        return _named(self._under_way.arrived())

    def drain(self) -> list[LayerGradients]:
        """Everything still under way, oldest first; waits for the device, so only for outside the training step."""
        return _named(self._under_way.drain())


def _named(arrived: list[tuple[tuple[int, tuple[str, ...]], Values]]) -> list[LayerGradients]:
    return [
        LayerGradients(step=step, norms=dict(zip(names, map(float, values), strict=True)))
        for (step, names), values in arrived
    ]
