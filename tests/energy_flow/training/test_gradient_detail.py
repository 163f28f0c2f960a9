import pytest
import torch
from torch import nn

from energy_flow.training.gradient_detail import GradientDetail

ONE = torch.ones(())


def _model() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 1, bias=False))
    model[0].weight.grad = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    model[0].bias.grad = torch.tensor([0.0, 12.0])
    model[2].weight.grad = torch.tensor([[3.0, 4.0]])
    return model


def test_each_layer_has_one_norm_over_its_own_parameters_without_the_loss_scale() -> None:
    detail = GradientDetail(_model(), interval=1)
    for step, scale in ((7, 1.0), (8, 1024.0)):
        detail.measure(step, torch.tensor(scale))
        (measured,) = detail.arrived()
        assert measured.step == step
        assert measured.norms == pytest.approx({"0": 13 / scale, "2": 5 / scale})


def test_a_layer_without_a_gradient_is_left_out_and_one_not_finite_told_from_the_others() -> None:
    model = _model()
    model[0].zero_grad()
    detail = GradientDetail(model, interval=1)
    detail.measure(1, ONE)
    model.zero_grad()
    detail.measure(2, ONE)
    assert [sorted(measured.norms) for measured in detail.arrived()] == [["2"]]
    model = _model()
    model[2].weight.grad = torch.tensor([[torch.nan, 1.0]])
    detail = GradientDetail(model, interval=1)
    detail.measure(1, ONE)
    norms = detail.arrived()[0].norms
    assert norms["0"] == pytest.approx(13.0)
    assert norms["2"] != norms["2"]
