import dataclasses

import pytest
import torch
from torch import nn

from energy_flow.energy_config import EnergyConfig
from energy_flow.training.energy_trainer import build_optimizer
from energy_flow.training.gradient_control import GradientControl

CPU = torch.device("cpu")


def _trained_once(config: EnergyConfig) -> tuple[nn.Linear, torch.optim.AdamW, GradientControl]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = build_optimizer(config, model)
    control = GradientControl(config, model, CPU)
    control.scaled(model(torch.ones(1, 3)).sum()).backward()
    control.step(optimizer)
    optimizer.zero_grad()
    return model, optimizer, control


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return [tensor.detach().clone() for tensor in (*model.parameters(), *moments)]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_gradient_that_is_not_finite_leaves_weights_and_moments_alone(
    config: EnergyConfig, bad: float, precision: str
) -> None:
    runtime = dataclasses.replace(config.runtime, precision=precision)
    model, optimizer, control = _trained_once(dataclasses.replace(config, runtime=runtime))
    before = _state(model, optimizer)
    control.scaled(model(torch.tensor([[1.0, bad, 1.0]])).sum()).backward()
    report = control.step(optimizer)
    assert report.is_skipped
    for now, then in zip(_state(model, optimizer), before, strict=True):
        assert torch.equal(now, then)


def test_the_step_after_a_skipped_one_is_taken(config: EnergyConfig) -> None:
    model, optimizer, control = _trained_once(config)
    model.weight.grad = torch.full_like(model.weight, float("nan"))
    control.step(optimizer)
    optimizer.zero_grad()
    before = model.weight.detach().clone()
    model(torch.ones(1, 3)).sum().backward()
    report = control.step(optimizer)
    assert not report.is_skipped
    assert not torch.equal(model.weight, before)


def test_gradients_are_scaled_down_to_the_norm_and_reported_as_they_were(config: EnergyConfig) -> None:
    model, optimizer, control = _trained_once(config)
    model.weight.grad = torch.full_like(model.weight, 100.0)
    report = control.step(optimizer)
    assert float(report.norm) == pytest.approx(100 * 6**0.5, rel=1e-5)
    assert float(model.weight.grad.norm()) == pytest.approx(config.optimizer.gradient_clip_norm, rel=1e-4)
