import logging

import pytest

from energy_flow.energy_config import OptimizerConfig
from energy_flow.logs import TRAINING
from energy_flow.training.metrics_file import StepMetrics
from energy_flow.training.step_messages import StepMessages
from tests.energy_flow.training.step_numbers import metrics


def _said(
    caplog: pytest.LogCaptureFixture,
    steps: list[StepMetrics],
    *,
    level: int,
    log_interval: int = 10,
    first_step: int = 0,
) -> list[tuple[int, str]]:
    messages = StepMessages(OptimizerConfig(), log_interval=log_interval, first_step=first_step)
    with caplog.at_level(level, logger="energy_flow"):
        for step in steps:
            messages.tell(step)
    return [(record.levelno, record.getMessage()) for record in caplog.records]


def _steps(numbers: range, **changes: object) -> list[StepMetrics]:
    return [metrics(number, **changes) for number in numbers]


def test_a_healthy_run_is_silent_in_production(caplog: pytest.LogCaptureFixture) -> None:
    assert _said(caplog, _steps(range(1, 31)), level=logging.INFO) == []


def test_at_level_training_the_losses_are_said_every_few_steps(caplog: pytest.LogCaptureFixture) -> None:
    steps = _steps(range(1, 31), loss=0.25)
    assert _said(caplog, steps, level=TRAINING) == [(TRAINING, str(steps[number - 1])) for number in (10, 20, 30)]


def _skipped(number: int) -> StepMetrics:
    reason = "loss not finite"
    return metrics(number, is_skipped=True, skip_reason=reason, num_skipped=number, gradient_norm=float("nan"))


def test_skipped_steps_are_warned_of_with_reason_and_count_but_not_each_time(caplog: pytest.LogCaptureFixture) -> None:
    steps = [metrics(number) if number % 20 == 0 else _skipped(number) for number in range(1, 151)]
    assert _said(caplog, steps, level=logging.INFO) == [
        (logging.WARNING, "step 1 was skipped: loss not finite; 1 skipped so far"),
        (logging.WARNING, "step 101 was skipped: loss not finite; 101 skipped so far"),
    ]


def test_a_run_that_only_skips_is_warned_of_as_one_but_not_each_time(caplog: pytest.LogCaptureFixture) -> None:
    said = _said(caplog, [_skipped(number) for number in range(1, 221)], level=logging.WARNING)
    assert [text.partition(":")[0] for _, text in said] == [
        "step 1 was skipped",
        "step 20 is the 20th in a row that was skipped",
        "step 120 is the 120th in a row that was skipped",
        "step 220 is the 220th in a row that was skipped",
    ]
    assert said[1][1].endswith(
        "loss not finite; the weights stay as they are, so look at the data, "
        "or lower optimizer.learning_rate and start anew"
    )


@pytest.mark.parametrize(
    ("norm", "level", "told"),
    [
        (12.5, logging.WARNING, "optimizer.critical_gradient_norm=10; lower optimizer.learning_rate if it stays there"),
        (7.0, TRAINING, "optimizer.high_gradient_norm=5"),
    ],
)
def test_a_high_or_critical_gradient_norm_is_told_but_not_each_time(
    caplog: pytest.LogCaptureFixture, norm: float, level: int, told: str
) -> None:
    said = _said(caplog, _steps(range(3, 100), gradient_norm=norm), level=TRAINING, log_interval=1000)
    assert said == [(level, f"the gradient norm of step 3 is {norm:g}, above {told}")]
