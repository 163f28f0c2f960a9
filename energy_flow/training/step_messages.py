"""What is logged of the steps: the numbers now and then, and at once, but not often, what is wrong with a step."""

from __future__ import annotations

import logging
from typing import Final

from energy_flow.energy_config import OptimizerConfig
from energy_flow.logs import PERFORMANCE, PROFILING, TRAINING, Every, FirstSteps, log_lazily
from energy_flow.training.device_monitor import format_bytes
from energy_flow.training.gradient_control import gradient_health
from energy_flow.training.metrics_file import StepMetrics

_STEPS_BETWEEN: Final = 100
"""Between two messages of one kind: a run that goes wrong says so again and again, and is still readable."""

_MAX_SKIPS_IN_A_ROW: Final = 20
"""With `scaler`'s defaults (1024, halved by each skip, 1 at the lowest) a loss scale that is too high is at its lowest
after ten; what is skipped then has another cause. A `backoff_factor` near one, or a far higher scale, takes longer."""

_FIRST_STEPS: Final = 5
"""Steps whose memory is logged one by one: in these it grows to what the run then needs."""

_logger = logging.getLogger(__name__)


class StepMessages:
    """Logs steps as they are written, a step late; each kind of trouble at most once in a hundred steps."""

    def __init__(
        self,
        optimizer: OptimizerConfig,
        *,
        log_interval: int,
        first_step: int = 0,
    ) -> None:
        """Judge gradient norms by `optimizer`; the run begins or goes on after step `first_step`."""
        self._optimizer, self._log_interval = optimizer, log_interval
        self._first = FirstSteps(_FIRST_STEPS, first_step=first_step)
        self._skips, self._high, self._critical = Every(_STEPS_BETWEEN), Every(_STEPS_BETWEEN), Every(_STEPS_BETWEEN)
        self._standstill, self._skips_in_a_row = Every(_STEPS_BETWEEN), 0

    def tell(self, metrics: StepMetrics) -> None:
        """Log what there is to say of a step."""
        is_logged = metrics.step % self._log_interval == 0
        if is_logged:
            log_lazily(_logger, TRAINING, "%s", lambda: (metrics,))
            log_lazily(_logger, PERFORMANCE, "step %5d  %s", lambda: (metrics.step, _times(metrics)))
        if is_logged or self._first.is_due(metrics.step):
            log_lazily(_logger, PROFILING, "step %5d  %s", lambda: (metrics.step, _device(metrics)))
        if metrics.is_skipped:
            self._skips_in_a_row += 1
            self._tell_skip(metrics)
        else:
            self._skips_in_a_row = 0
            self._tell_norm(metrics)

    def _tell_skip(self, metrics: StepMetrics) -> None:
        if self._skips_in_a_row >= _MAX_SKIPS_IN_A_ROW:
            if self._standstill.is_due(metrics.step):
                _logger.warning(
                    "step %d is the %dth in a row that was skipped: %s; the weights stay as they are, so look at the "
                    "data, or lower optimizer.learning_rate and start anew",
                    *(metrics.step, self._skips_in_a_row, metrics.skip_reason),
                )
        elif self._skips.is_due(metrics.step):
            _logger.warning(
                "step %d was skipped: %s; %d skipped so far", metrics.step, metrics.skip_reason, metrics.num_skipped
            )

    def _tell_norm(self, metrics: StepMetrics) -> None:
        health = gradient_health(metrics.gradient_norm, self._optimizer)
        if health == "critical" and self._critical.is_due(metrics.step):
            _logger.warning(
                "the gradient norm of step %d is %.3g, above optimizer.critical_gradient_norm=%g; "
                "lower optimizer.learning_rate if it stays there",
                *(metrics.step, metrics.gradient_norm, self._optimizer.critical_gradient_norm),
            )
        if health == "high" and self._high.is_due(metrics.step):
            _logger.log(
                TRAINING,
                "the gradient norm of step %d is %.3g, above optimizer.high_gradient_norm=%g",
                *(metrics.step, metrics.gradient_norm, self._optimizer.high_gradient_norm),
            )


def _times(metrics: StepMetrics) -> str:
    stages = {
        "wait": metrics.wait_ms,
        "forward": metrics.forward_ms,
        "energy": metrics.energy_ms,
        "text bridge": metrics.text_bridge_ms,
        "backward": metrics.backward_ms,
        "optimizer": metrics.optimizer_ms,
    }
    times = "  ".join(f"{name} {elapsed:.1f} ms" for name, elapsed in stages.items() if elapsed is not None)
    return f"{times}  {metrics.samples_per_second:.0f} samples/s"


def _device(metrics: StepMetrics) -> str:
    sizes = {
        "allocated": metrics.allocated_bytes,
        "reserved": metrics.reserved_bytes,
        "used on the GPU": metrics.gpu_used_bytes,
        "host": metrics.host_rss_bytes,
    }
    parts = [f"{name} {format_bytes(size)}" for name, size in sizes.items() if size is not None]
    if metrics.gpu_utilisation_percent is not None:
        parts.append(f"GPU busy {metrics.gpu_utilisation_percent:.0f} %")
    return "  ".join(parts)
