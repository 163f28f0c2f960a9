import io
import math
from typing import Any

import pytest
import torch
from torch import nn

from energy_flow.config_parsing import load_config
from energy_flow.energy_config import EnergyConfig, OptimizerConfig
from energy_flow.training.energy_trainer import build_optimizer
from energy_flow.training.gradient_control import GradientControl, GradientReport, SkipReason, gradient_health
from tests.gpu.cuda_runs import synchronisation_is_an_error

CPU = torch.device("cpu")
GOOD = torch.ones(2, 3)
EVERYTHING_ON = [
    "training.steps=12",
    "training.gradient_detail_interval=2",
    "optimizer.warmup_steps=2",
    "optimizer.final_learning_rate_share=0.1",
    "backoff.window=2",
    "backoff.trigger=1.5",
]


def _config(*assignments: str) -> EnergyConfig:
    return load_config("debug", assignments=assignments)


def _build(config: EnergyConfig, device: torch.device = CPU) -> tuple[nn.Module, torch.optim.AdamW, GradientControl]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 2)).to(device)
    optimizer = build_optimizer(config, model)
    return model, optimizer, GradientControl(config, model, optimizer, device)


def _take(
    model: nn.Module, optimizer: torch.optim.Optimizer, control: GradientControl, *batches: torch.Tensor
) -> GradientReport:
    for batch in batches:
        control.backward(model(batch).square().sum())
    report = control.step()
    optimizer.zero_grad()
    return report


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return [tensor.detach().clone() for tensor in (*model.state_dict().values(), *moments)]


def _are_equal(states: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(states, others, strict=True))


def _batches(number: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 3, generator=generator) * (1 + 5 * (place % 4 == 3)) for place in range(number)]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("reason", [SkipReason.LOSS_NOT_FINITE, SkipReason.GRADIENT_NOT_FINITE])
def test_a_loss_or_a_gradient_that_is_not_finite_leaves_weights_moments_and_running_state_alone(
    bad: float, precision: str, reason: SkipReason
) -> None:
    parts = _build(_config(f"runtime.precision={precision}"))
    model, optimizer, control = parts
    _take(*parts, GOOD)
    before = _state(model, optimizer)
    control.backward(model(GOOD + 1).square().sum())
    if reason == SkipReason.GRADIENT_NOT_FINITE:
        model[0].weight.grad[0, 0] = bad
    else:
        control.backward(model(GOOD).square().sum() + bad)
    report = control.step()
    assert report.is_skipped
    assert report.reason == reason
    assert report.norm.isfinite() == (reason == SkipReason.LOSS_NOT_FINITE), "a bad loss leaves gradients finite"
    assert _are_equal(_state(model, optimizer), before)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_run_whose_first_loss_is_bad_runs_no_backward_for_it_on_the_cpu_and_then_trains(precision: str) -> None:
    parts = _build(_config(f"runtime.precision={precision}"))
    model, _, control = parts
    before = model[0].weight.detach().clone()
    control.backward(model(GOOD * math.nan).sum())
    assert model[0].weight.grad is None
    assert control.step().is_skipped
    assert torch.equal(model[0].weight, before)
    assert _take(*parts, _batches(1)[0]).reason == SkipReason.TAKEN
    assert not torch.equal(model[0].weight, before)
    assert not model[1].running_mean.isnan().any()


def test_gradients_are_scaled_to_one_norm_over_all_groups_and_reported_as_they_were() -> None:
    config = _config()
    model, _, control = _build(config)
    model[0].weight.grad = torch.full_like(model[0].weight, 100.0)
    report = control.step()
    assert float(report.norm) == pytest.approx(100 * 6**0.5, rel=1e-5)
    assert float(model[0].weight.grad.norm()) == pytest.approx(config.optimizer.gradient_clip_norm, rel=1e-4)
    config, model = _config(), nn.Linear(3, 2)
    optimizer = torch.optim.AdamW([{"params": [model.weight]}, {"params": [model.bias]}], fused=True)
    model.weight.grad, model.bias.grad = torch.full((2, 3), 2.0), torch.full((2,), 1.0)
    report = GradientControl(config, model, optimizer, CPU).step()
    assert float(report.norm) == pytest.approx(26**0.5)
    reports = [_take(*_build(_config(f"runtime.precision={name}")), GOOD) for name in ("float32", "float16")]
    assert float(reports[1].norm) == pytest.approx(float(reports[0].norm), rel=1e-5)
    assert [float(report.scale) for report in reports] == [1, 1024]


@pytest.mark.parametrize("bad", [GOOD * math.nan, GOOD * 1e30], ids=["loss", "gradient"])
def test_the_scale_backs_off_after_a_skipped_step_and_grows_after_enough_taken_ones(bad: torch.Tensor) -> None:
    settings = (
        "scaler.init_scale=64",
        "scaler.growth_interval=2",
        "scaler.growth_factor=3",
        "scaler.backoff_factor=0.25",
    )
    parts = _build(_config("runtime.precision=float16", *settings))
    scales = [float(_take(*parts, batch).scale) for batch in (GOOD, bad, GOOD, GOOD, GOOD)]
    assert scales == [64, 64, 16, 16, 48]


def test_dozens_of_bad_steps_leave_a_scale_that_good_ones_can_be_taken_with() -> None:
    parts = _build(_config("runtime.precision=float16", "scaler.lowest_scale=0.5"))
    scales = [float(_take(*parts, GOOD * math.nan).scale) for _ in range(200)]
    assert scales[:12] == [1024 / 2**number for number in range(12)]
    assert set(scales[12:]) == {0.5}
    report = _take(*parts, GOOD)
    assert (report.reason, float(report.scale)) == (SkipReason.TAKEN, 0.5)


def test_a_skipped_step_counts_for_neither_the_step_number_nor_the_learning_rate() -> None:
    rising = ("optimizer.warmup_steps=4", "optimizer.learning_rate=1.0")
    parts = _build(_config(*rising))
    reports = [_take(*parts, batch) for batch in (GOOD, GOOD * math.nan, GOOD, GOOD)]
    assert [int(report.global_step) for report in reports] == [1, 1, 2, 3]
    assert [float(report.learning_rate) for report in reports] == [0.25, 0.5, 0.5, 0.75]


def test_the_optimizer_steps_by_the_rate_that_is_reported_and_a_constant_one_stays_configured() -> None:
    config = _config("optimizer.warmup_steps=4", "optimizer.learning_rate=1.0", "optimizer.weight_decay=0")
    model, _, control = _build(config)
    weight = model[0].weight
    before = weight.detach().clone()
    weight.grad = torch.ones_like(weight)
    report = control.step()
    moved = before - weight.detach()  # Adam's first step is as long as the learning rate
    torch.testing.assert_close(moved, torch.full_like(moved, float(report.learning_rate)), rtol=1e-4, atol=0)
    config = _config("optimizer.learning_rate=0.125")
    model, optimizer, control = _build(config)
    optimizer.param_groups[0]["lr"] = 7.0  # as after a checkpoint of a run with another one
    report = _take(model, optimizer, control, GOOD)
    assert optimizer.param_groups[0]["lr"] == config.optimizer.learning_rate
    assert float(report.learning_rate) == config.optimizer.learning_rate


def test_a_jump_of_the_gradient_norm_lowers_the_rate_unless_its_step_is_skipped() -> None:
    model, optimizer, control = _build(_config("backoff.window=2", "optimizer.learning_rate=0.5"))
    rates = []
    for size in (1.0, 1.0, 50.0):
        model[0].weight.grad = torch.full_like(model[0].weight, size)
        rates.append(float(control.step().learning_rate))
    assert rates == [0.5, 0.5, 0.25]
    assert float(optimizer.param_groups[0]["lr"]) == 0.25
    parts = _build(_config("backoff.window=2", "optimizer.learning_rate=0.5"))
    bad = GOOD * math.nan
    rates = [float(_take(*parts, batch).learning_rate) for batch in (bad, bad, GOOD)]
    assert rates == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizer_that_cannot_skip_on_the_device_skips_by_the_host(
    kind: type[torch.optim.Optimizer], precision: str
) -> None:
    config = _config(f"runtime.precision={precision}", "optimizer.warmup_steps=2")
    model, *_ = _build(config)
    optimizer = kind(model.parameters(), lr=0.1, foreach=True)  # as on CUDA, where Adam then takes no tensor for lr
    parts = model, optimizer, GradientControl(config, model, optimizer, CPU)
    _take(*parts, GOOD)
    before = _state(model, optimizer)
    parts[2].backward(model(GOOD).square().sum())
    model[0].weight.grad[0, 0] = math.nan
    assert _take(*parts).is_skipped
    assert _are_equal(_state(model, optimizer), before)
    assert not _take(*parts, _batches(1)[0]).is_skipped
    assert not _are_equal(_state(model, optimizer), before)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_run_resumed_from_a_file_goes_on_with_the_same_bits(precision: str) -> None:
    config = _config(f"runtime.precision={precision}", "scaler.growth_interval=2", *EVERYTHING_ON)
    batches = _batches(10)
    batches[4] = batches[4] * math.nan
    whole = _build(config)
    for batch in batches[:6]:
        _take(*whole, batch)
    resumed = _build(config)
    for part, state in zip(resumed, _through_a_file([part.state_dict() for part in whole]), strict=True):
        part.load_state_dict(state)
    for batch in (GOOD * math.nan, *batches[6:]):
        for expected, report in zip(_take(*whole, batch), _take(*resumed, batch), strict=True):
            torch.testing.assert_close(report, expected, rtol=0, atol=0, equal_nan=True)
    assert _are_equal(_state(*resumed[:2]), _state(*whole[:2]))
    assert int(resumed[2].global_step) == 9
    assert [measured.step for measured in resumed[2].detail.drain()] == [8, 10]


def test_a_resumed_run_goes_on_from_the_scale_with_the_settings_of_now() -> None:
    whole = _build(_config("runtime.precision=float16", "scaler.init_scale=64"))
    _take(*whole, GOOD * math.nan)
    resumed = _build(_config("runtime.precision=float16", "scaler.growth_interval=7", "scaler.growth_factor=2"))
    resumed[2].load_state_dict(_through_a_file(whole[2].state_dict()))
    assert resumed[2].scaler.get_scale() == 32
    assert resumed[2].scaler.get_growth_interval() == 7
    assert resumed[2].scaler.get_growth_factor() == 2


def _through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_a_state_of_another_precision_or_without_a_backoff_can_be_gone_on_from() -> None:
    plain = _build(_config())
    _take(*plain, GOOD)
    other = _build(_config("runtime.precision=float16", "backoff.window=2"))
    other[2].load_state_dict(plain[2].state_dict())
    report = _take(*other, GOOD)
    assert int(report.global_step) == 2
    assert float(report.scale) == 1024


def test_layers_are_measured_before_clipping_when_asked_for() -> None:
    parts = _build(_config("training.gradient_detail_interval=2", "runtime.precision=float16"))
    assert parts[2].detail is not None
    reports = [_take(*parts, batch) for batch in _batches(3)]
    (measured,) = parts[2].detail.arrived()
    assert measured.step == 2
    assert set(measured.norms) == {"0", "1", "2"}
    assert math.hypot(*measured.norms.values()) == pytest.approx(float(reports[1].norm), rel=1e-4)
    assert _build(_config())[2].detail is None


def test_a_norm_is_judged_by_the_two_limits_of_the_configuration() -> None:
    limits = OptimizerConfig(high_gradient_norm=1.0, critical_gradient_norm=2.0)
    judged = [gradient_health(norm, limits) for norm in (0.0, 0.99, 1.0, 1.99, 2.0, math.inf, math.nan)]
    assert judged == ["healthy", "healthy", "high", "high", "critical", "critical", "critical"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_on_cuda_steps_are_taken_and_skipped_without_waiting_for_the_device(precision: str) -> None:
    cuda = torch.device("cuda")
    parts = _build(_config(f"runtime.precision={precision}", "runtime.device=cuda", *EVERYTHING_ON), cuda)
    good, bad = GOOD.cuda(), (GOOD * math.nan).cuda()
    _take(*parts, good)
    with synchronisation_is_an_error():
        reports = [_take(*parts, batch) for batch in (good, bad, good)]
    assert [int(report.reason) for report in reports] == [0, SkipReason.LOSS_NOT_FINITE, 0]
    assert [int(report.global_step) for report in reports] == [2, 2, 3]
    assert all(tensor.isfinite().all() for tensor in _state(*parts[:2]))
