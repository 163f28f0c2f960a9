import json
import time
from pathlib import Path

import pytest
import torch

from energy_flow.training.device_monitor import DeviceReading
from energy_flow.training.epoch_summary import EpochSummary
from energy_flow.training.gradient_control import SkipReason
from energy_flow.training.metrics import Listeners, MetricsLog, Sources
from energy_flow.training.metrics_file import StepMetrics
from energy_flow.training.stage_times import HostClock, StageTimes
from tests.energy_flow.training.step_numbers import losses, report, take_steps, without_timings

NAMES = StepMetrics.__dataclass_fields__.keys()


def _lines(file: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def _epochs(file: Path, steps: range, *, first_step: int = 0, batches_per_epoch: int = 5) -> list[EpochSummary]:
    said: list[EpochSummary] = []
    log = MetricsLog(
        file,
        first_step=first_step,
        batches_per_epoch=batches_per_epoch,
        accumulation=2,
        listeners=Listeners(epoch=said.append),
    )
    with log:
        take_steps(log, steps, accumulation=2)
    return said


def test_every_step_is_a_line_with_every_field_and_what_was_not_measured_is_null(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "out" / "metrics.jsonl") as log:
        take_steps(log, range(1, 4))
    lines = _lines(tmp_path / "out" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(line.keys() == NAMES for line in lines)
    assert {name for name, value in lines[0].items() if value is None} == {
        *("epoch", "skip_reason"),
        *("forward_ms", "backward_ms", "optimizer_ms", "energy_ms", "text_bridge_ms"),
        *("allocated_bytes", "reserved_bytes", "gpu_used_bytes", "gpu_utilisation_percent", "host_rss_bytes"),
    }


def test_stage_times_and_the_device_s_memory_are_the_step_s_own(tmp_path: Path) -> None:
    readings = iter([DeviceReading(allocated_bytes=1), DeviceReading(allocated_bytes=2, gpu_utilisation_percent=40)])
    sources = Sources(stages=StageTimes(HostClock()), read_device=lambda: next(readings))
    with MetricsLog(tmp_path / "metrics.jsonl", sources=sources) as log:
        with log.stages.backward():
            time.sleep(0.002)
        take_steps(log, [1])
        with log.stages.optimizer():
            pass
        take_steps(log, [2])
    first, second = _lines(tmp_path / "metrics.jsonl")
    assert first["backward_ms"] >= 2
    assert (first["optimizer_ms"], second["backward_ms"]) == (None, None)
    assert second["optimizer_ms"] >= 0
    assert (first["allocated_bytes"], second["allocated_bytes"]) == (1, 2)
    assert (first["gpu_utilisation_percent"], second["gpu_utilisation_percent"]) == (None, 40)


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (SkipReason.TAKEN, None),
        (SkipReason.LOSS_NOT_FINITE, "loss not finite"),
        (SkipReason.GRADIENT_NOT_FINITE, "gradient not finite"),
    ],
)
def test_the_gradient_report_is_told_in_words(reason: SkipReason, text: str | None) -> None:
    said: list[StepMetrics] = []
    with MetricsLog(None, log_interval=1, say=said.append) as log:
        log.batch_done(losses(1.0), num_samples=8)
        log.step_done(7, report(7, norm=3.5, reason=reason, num_skipped=2))
    (metrics,) = said
    assert (metrics.skip_reason, metrics.is_skipped) == (text, text is not None)
    assert (metrics.global_step, metrics.num_skipped, metrics.gradient_norm) == (5, 2, 3.5)
    assert (metrics.learning_rate, metrics.loss_scale) == (0.25, 1024)
    assert (f"skipped: {text}" in str(metrics)) is (text is not None)


def test_losses_are_means_over_micro_batches_and_each_listener_is_told_of_each_step(tmp_path: Path) -> None:
    sources = Sources(mean_over_processes=lambda tensor: (tensor + 10) / 2, world_size=2)
    said: list[StepMetrics] = []
    with MetricsLog(None, log_interval=1, say=said.append, sources=sources) as log:
        for loss in (1.0, 3.0):
            log.batch_done(losses(loss), num_samples=8)
        log.step_done(1, report(1))
    assert said[0].loss == 6
    assert said[0].samples_per_second * said[0].step_ms / 1000 == pytest.approx(2 * 2 * 8)
    told: list[StepMetrics] = []
    said: list[StepMetrics] = []
    with MetricsLog(None, log_interval=3, say=said.append, listeners=Listeners(steps=[told.append])) as log:
        take_steps(log, range(1, 8))
    assert [metrics.step for metrics in told] == [1, 2, 3, 4, 5, 6, 7]
    assert [metrics.step for metrics in said] == [3, 6]


def test_a_step_is_written_when_the_next_is_done_or_before_what_lies_between(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "metrics.jsonl", log_interval=1) as log:
        take_steps(log, [1])
        assert _lines(tmp_path / "metrics.jsonl") == []
        take_steps(log, [2])
        assert [line["step"] for line in _lines(tmp_path / "metrics.jsonl")] == [1]
    with MetricsLog(tmp_path / "metrics.jsonl", log_interval=100) as log:
        take_steps(log, range(1, 4))
        with log.between_steps():
            assert [line["step"] for line in _lines(tmp_path / "metrics.jsonl")] == [1, 2, 3]


def test_what_lies_between_steps_is_no_step_s_time(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        take_steps(log, [1])
        with log.between_steps():
            time.sleep(0.02)
            ended = time.perf_counter()
        take_steps(log, [2])
        most_ms = (time.perf_counter() - ended) * 1000
    line = _lines(tmp_path / "metrics.jsonl")[1]
    assert line["wait_ms"] <= most_ms
    assert line["step_ms"] <= most_ms


def test_each_epoch_is_told_once_with_the_means_of_its_steps(tmp_path: Path) -> None:
    told = _epochs(tmp_path / "metrics.jsonl", range(1, 10))
    assert [(summary.epoch, summary.num_steps) for summary in told] == [(1, 3), (2, 2), (3, 3)]
    assert told[1].mean_loss == pytest.approx((1 / 4 + 1 / 5) / 2)
    assert told[1].mean_gradient_norm == pytest.approx(9.0)
    assert [line["epoch"] for line in _lines(tmp_path / "metrics.jsonl")] == [1, 1, 1, 2, 2, 3, 3, 3, 4]


@pytest.mark.parametrize("first_step", range(10))
def test_a_run_that_goes_on_has_the_lines_and_epochs_of_one_that_never_stopped(first_step: int, tmp_path: Path) -> None:
    def known(summary: EpochSummary) -> tuple[object, ...]:
        return summary.epoch, summary.num_steps, summary.num_skipped, summary.mean_loss, summary.mean_gradient_norm

    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    expected = [known(summary) for summary in _epochs(whole, range(1, 10))]
    told = [known(summary) for summary in _epochs(parts, range(1, first_step + 1))]
    with parts.open("a") as stream:
        stream.write('{"step": 3, "los')
    told += [known(summary) for summary in _epochs(parts, range(first_step + 1, 10), first_step=first_step)]
    assert told == expected
    assert without_timings(parts) == without_timings(whole)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_numbers_of_cuda_steps_arrive_whole(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        for step in range(1, 6):
            parts = losses(float(step))
            log.batch_done(type(parts)(*(part.cuda() for part in parts)), num_samples=8)
            numbers = report(step, norm=2.0 * step)
            log.step_done(step, type(numbers)(*(number.cuda() for number in numbers)))
    assert [(line["loss"], line["gradient_norm"]) for line in _lines(tmp_path / "metrics.jsonl")] == [
        (step, 2 * step) for step in range(1, 6)
    ]
