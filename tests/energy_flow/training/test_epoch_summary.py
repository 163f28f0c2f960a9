import math

from energy_flow.training.epoch_summary import Epochs, EpochSummary, StepOutcome


def _outcome(step: int, *, loss: float = 1.0, norm: float = 2.0, is_skipped: bool = False) -> StepOutcome:
    return StepOutcome(step=step, loss=loss, gradient_norm=norm, is_skipped=is_skipped, step_ms=500.0)


def _finished(epochs: Epochs, steps: range) -> dict[int, tuple[int, int]]:
    """By the step that finished it, each epoch's number and how many steps it had."""
    summaries = {step: epochs.add(_outcome(step)) for step in steps}
    return {step: (summary.epoch, summary.num_steps) for step, summary in summaries.items() if summary}


def test_an_epoch_is_summed_up_with_the_last_step_that_began_in_it() -> None:
    assert _finished(Epochs(batches_per_epoch=3, accumulation=1), range(1, 9)) == {3: (1, 3), 6: (2, 3)}
    assert _finished(Epochs(batches_per_epoch=3, accumulation=2), range(1, 7)) == {
        2: (1, 2),
        3: (2, 1),
        5: (3, 2),
        6: (4, 1),
    }
    assert _finished(Epochs(batches_per_epoch=2, accumulation=4), range(1, 4)) == {1: (1, 1), 2: (3, 1), 3: (5, 1)}


def test_the_means_are_over_finite_losses_and_taken_steps_and_a_batch_s_time_is_a_part() -> None:
    epochs = Epochs(batches_per_epoch=4, accumulation=1)
    epochs.add(_outcome(1, loss=1.0, norm=4.0))
    epochs.add(_outcome(2, loss=math.nan, norm=0.0, is_skipped=True))
    epochs.add(_outcome(3, loss=2.0, norm=math.inf, is_skipped=True))
    assert epochs.add(_outcome(4, loss=6.0, norm=2.0)) == EpochSummary(
        epoch=1, num_steps=4, num_skipped=2, mean_loss=3.0, mean_gradient_norm=3.0, seconds=2.0, seconds_per_batch=0.5
    )
    epochs = Epochs(batches_per_epoch=4, accumulation=4)
    summary = epochs.add(_outcome(1))
    assert (summary.seconds, summary.seconds_per_batch) == (0.5, 0.125)
    summary = Epochs(batches_per_epoch=1, accumulation=1).add(_outcome(1, loss=math.nan, norm=0.0, is_skipped=True))
    assert str(summary) == "epoch 1  loss not finite  gradient not finite  1 steps  1 skipped  0.5 s  0.5 s/batch"
