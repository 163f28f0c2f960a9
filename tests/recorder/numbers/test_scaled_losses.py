"""The loss of a step is the program's own, whatever a gradient scaler was given and however backward is called."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import CollectorStopped
from tests.recorder.numbers.test_loss_scaling import make_scaled
from tests.recorder.recording import record_here

Scaler = torch.amp.GradScaler
Losses = list[torch.Tensor]


def scale_each(scaler: Scaler, losses: Losses) -> Losses:
    return [scaler.scale(loss) for loss in losses]


BACKWARD: dict[str, Callable[[Scaler, Losses], object]] = {
    "each scaled": lambda scaler, losses: torch.autograd.backward(scale_each(scaler, losses)),
    "a list scaled": lambda scaler, losses: torch.autograd.backward(scaler.scale(losses)),
    "one after another": lambda scaler, losses: [scaled.backward() for scaled in scale_each(scaler, losses)],
    "one of them scaled": lambda scaler, losses: torch.autograd.backward([scaler.scale(losses[0]), *losses[1:]]),
    "divided before": lambda scaler, losses: torch.autograd.backward([scaler.scale(loss / 0.5) for loss in losses]),
    "divided since": lambda scaler, losses: torch.autograd.backward(
        [each / 0.5 for each in scale_each(scaler, losses)]
    ),
    "summed since": lambda scaler, losses: torch.stack(scale_each(scaler, losses)).sum().backward(),
    "a mean since": lambda scaler, losses: scaler.scale(torch.stack(losses)).mean().backward(),
    "another beside it": lambda scaler, losses: (scaler.scale(losses[0]), sum(losses[1:], losses[0]).backward()),
}


@pytest.mark.parametrize("way", BACKWARD)
def test_however_losses_are_scaled_their_own_values_are_added(way: str, tmp_path: Path) -> None:
    def train() -> None:
        weight, optimizer, scaler = make_scaled()
        for _ in range(4):
            optimizer.zero_grad()
            BACKWARD[way](scaler, [(weight * factor).sum() for factor in (2.0, 3.0, 7.0)])
            scaler.step(optimizer)
            scaler.update()

    total = {"divided before": 24.0, "divided since": 24.0, "a mean since": 4.0}.get(way, 12.0)
    recorded = record_here(tmp_path, train)
    assert [step.loss for step in recorded.steps] == [total] * 4
    assert recorded.events(CollectorStopped) == []
