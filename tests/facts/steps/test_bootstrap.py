import numpy as np

from efprof.facts.steps.step_times import NUM_RESAMPLES, median_interval, quantile_change_intervals, resample


def test_the_same_samples_give_the_same_interval_and_resamples_keep_neighbours_together():
    samples = list(np.random.default_rng(1).normal(10, 1, 50))
    assert median_interval(samples) == median_interval(samples)
    resampled = resample(range(64), np.random.default_rng(0))
    assert resampled.shape == (NUM_RESAMPLES, 64)
    followers = (resampled[:, 1:] - resampled[:, :-1]) % 64 == 1
    assert followers.mean() > 0.7  # blocks of four: three of four steps are followed by their neighbour


def test_the_interval_of_a_change_holds_the_true_change_nearly_always():
    generator = np.random.default_rng(2)
    num_held = 0
    for _ in range(60):
        early, late = generator.normal(10, 1, 40), generator.normal(15, 1, 40)
        _, (low, high) = quantile_change_intervals(list(early), list(late), 0.5)
        num_held += low <= 5.0 <= high
    assert num_held >= 52
