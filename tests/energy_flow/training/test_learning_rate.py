import math

import pytest
import torch

from energy_flow.energy_config import BackoffConfig, OptimizerConfig
from energy_flow.training.learning_rate import LearningRateBackoff, LearningRateSchedule, learning_rates

CPU = torch.device("cpu")
RISING_AND_FALLING = OptimizerConfig(learning_rate=1.0, warmup_steps=4, final_learning_rate_share=0.2)
BACKOFF = BackoffConfig(window=3, trigger=4.0, factor=0.5, lowest=0.2, recovery_steps=3)


def _shares(backoff: LearningRateBackoff, norms: list[float]) -> list[float]:
    return [float(backoff.observe(torch.tensor(norm))) for norm in norms]


def test_the_rate_rises_in_equal_parts_and_falls_along_a_cosine() -> None:
    assert learning_rates(RISING_AND_FALLING, 12)[:4].tolist() == [0.25, 0.5, 0.75, 1.0]
    falling = learning_rates(RISING_AND_FALLING, 12)[4:].tolist()
    expected = [0.2 + 0.4 * (1 + math.cos(math.pi * part / 8)) for part in range(1, 9)]
    assert falling == pytest.approx(expected)
    assert learning_rates(RISING_AND_FALLING, 2).tolist() == [0.25, 0.5]


@pytest.mark.parametrize(
    "settings", [RISING_AND_FALLING, OptimizerConfig(learning_rate=0.5)], ids=["changing", "constant"]
)
def test_each_step_is_given_its_own_rate_and_those_after_the_end_the_last_one(settings: OptimizerConfig) -> None:
    schedule = LearningRateSchedule(settings, 8, CPU)
    given = [float(schedule.at(torch.tensor(step))) for step in range(10)]
    expected = learning_rates(settings, 8).tolist()
    assert given == [*expected, expected[-1], expected[-1]]


def test_a_high_norm_lowers_the_rate_of_its_own_step_to_its_lowest_share_until_it_is_back() -> None:
    assert _shares(LearningRateBackoff(BACKOFF, CPU), [1.0, 1.0, 1.0, 3.9, 4.0]) == [1.0, 1.0, 1.0, 1.0, 0.5]
    shares = _shares(LearningRateBackoff(BACKOFF, CPU), [1.0, 1.0, 1.0, 4.0, 40.0, 400.0, 4000.0])
    assert shares[3:] == pytest.approx([0.5, 0.25, 0.2, 0.2])
    assert _shares(LearningRateBackoff(BACKOFF, CPU), [1.0, 1.0, 1.0, 9.0, 1.0, 1.0, 1.0])[3:] == [0.5, 0.5, 0.5, 1.0]
    assert _shares(LearningRateBackoff(BACKOFF, CPU), [1.0, 1.0, 100.0]) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_changes_nothing(bad: float) -> None:
    seen, spared = LearningRateBackoff(BACKOFF, CPU), LearningRateBackoff(BACKOFF, CPU)
    _shares(spared, [1.0, 2.0, 3.0, 50.0, 1.0])
    _shares(seen, [1.0, bad, 2.0, 3.0, bad, 50.0, bad, 1.0, bad])
    for name, value in spared.state_dict().items():
        assert torch.equal(seen.state_dict()[name], value), name


def test_the_history_of_another_window_is_dropped_and_the_lowered_rate_kept() -> None:
    first = LearningRateBackoff(BACKOFF, CPU)
    _shares(first, [1.0, 1.0, 1.0, 9.0])
    resumed = LearningRateBackoff(BackoffConfig(window=2, recovery_steps=100), CPU)
    resumed.load_state_dict(first.state_dict())
    assert _shares(resumed, [100.0, 100.0]) == [0.5, 0.5]
