import math
from pathlib import Path

import msgspec
import pytest

from efprof.artifacts.events import WindowClosed, WindowOpened
from efprof.artifacts.steps import BoundaryMemory, SiteCalls
from efprof.facts.overview.measurements import measurements_of
from efprof.facts.run.run import open_run
from efprof.units import MIB
from tests.support.builders import make_busy_step, make_step, make_steps, write_run

RUNS = Path(__file__).parents[2] / "runs"


def measure(folder, **run):
    return measurements_of(write_run(folder, **run))


def metric(measurements, name):
    return next(metric for metric in measurements.metrics if metric.name == name)


def test_every_metric_is_there_with_its_unit_and_budget(tmp_path):
    metrics = measure(tmp_path / "run", steps=make_steps(40)).metrics
    assert [(each.name, each.unit, each.budget) for each in metrics] == [
        ("step_ms", "ms", None),
        ("data_ms", "ms", None),
        ("forward_ms", "ms", None),
        ("backward_ms", "ms", None),
        ("optimizer_ms", "ms", None),
        ("other_ms", "ms", None),
        ("cpu_ms", "ms", None),
        ("peak_allocated_bytes", "bytes", 0.005),
        ("window_peak_bytes", "bytes", None),
        ("reserved_bytes", "bytes", None),
        ("memory_growth_bytes_per_step", "bytes_per_step", None),
        ("scalar_reads_per_step", "count", None),
        ("nonfinite_steps", "count", 0.0),
    ]


def test_samples_are_of_steady_steps_and_peaks_of_steps_read_at_each_boundary(tmp_path):
    steps = make_steps(
        20, forward_ms=lambda step: 100.0 if step in (0, 7) else 4.0, window=lambda s: "w" if s == 7 else None
    )
    measurements = measure(tmp_path / "run", steps=steps)
    assert metric(measurements, "forward_ms").samples == pytest.approx([4.0] * 16)
    assert metric(measurements, "peak_allocated_bytes").samples == (400_000.0,) * 16
    steps = make_steps(20)
    light = [msgspec.structs.replace(step, memory=[] if step.step % 3 else step.memory) for step in steps[8:]]
    measurements = measure(tmp_path / "second", steps=[*steps[:8], *light])
    assert set(metric(measurements, "peak_allocated_bytes").samples) == {400_000.0}
    assert set(metric(measurements, "reserved_bytes").samples) == {800_000.0}


def test_scalar_reads_are_counted_per_step_and_nan_and_inf_over_all_steps(tmp_path):
    reads = [
        SiteCalls(site="train.py:1:f", call="item", count=3, us=9),
        SiteCalls(site="a:1:f", call="cpu", count=1, us=1),
    ]
    measurements = measure(tmp_path / "run", steps=make_steps(10, reads=reads))
    assert set(metric(measurements, "scalar_reads_per_step").samples) == {4.0}
    losses = {0: "nan", 5: "inf", 6: "-inf"}
    measurements = measure(tmp_path / "second", steps=make_steps(10, loss=lambda step: losses.get(step, 1.0)))
    assert metric(measurements, "nonfinite_steps").samples == (3.0,)
    timeline = [step.loss for step in measurements.timeline.steps]
    assert math.isnan(timeline[0])
    assert timeline[5:7] == [math.inf, -math.inf]


def test_memory_that_grows_has_its_slope_and_a_lowered_scale_is_a_skipped_step(tmp_path):
    steps = make_steps(60, allocated_bytes=lambda step: [10_000_000 + step * 1_000_000] * 5)
    growth = metric(measure(tmp_path / "run", steps=steps), "memory_growth_bytes_per_step")
    assert growth.samples == pytest.approx((1_000_000.0,))
    steps = make_steps(10, scaler_scale=lambda step: 65536.0 if step < 4 else 32768.0)
    assert measure(tmp_path / "second", steps=steps).num_skipped_steps == 1


def test_stage_deltas_are_against_the_boundary_before_as_often_as_it_was_passed(tmp_path):
    steps = [make_step(0), make_step(1, allocated_bytes=(100_000, 900_000, 900_000, 300_000, 100_000))]
    deltas = {row.boundary: row for row in measure(tmp_path / "run", steps=steps).stage_deltas}
    forward = deltas["post_forward_pre_backward"]
    assert (forward.count, forward.maximum_bytes, forward.average_delta_bytes) == (2, 900_000, 550_000)
    assert (forward.largest_jump_bytes, forward.largest_jump_step) == (800_000, 1)
    assert deltas["pre_forward"].average_delta_bytes == 0
    memory = [BoundaryMemory("pre_forward", 0, 10, 20), BoundaryMemory("post_backward", 1, 30, 40)] * 2
    deltas = measure(tmp_path / "second", steps=[make_step(0, memory=memory)]).stage_deltas
    assert [(row.boundary, row.count) for row in deltas] == [("pre_forward", 2), ("post_backward", 2)]
    assert deltas[0].average_delta_bytes == -20


def test_the_timeline_marks_slow_steps_and_windows_whose_recording_costs_on_average(tmp_path):
    steps = make_steps(
        20, forward_ms=lambda step: 90.0 if step == 9 else 4.0, window=lambda s: "trace-1" if s in (5, 6) else None
    )
    events = [
        WindowOpened(at_ns=0, step=5, window="trace-1", why="early"),
        WindowClosed(at_ns=0, step=6, window="trace-1", seconds=0.5, files=["trace-1.json.gz"]),
    ]
    measurements = measure(tmp_path / "run", steps=steps, events=events)
    timeline = measurements.timeline
    assert [step.step for step in timeline.steps if step.is_slow] == [9]
    assert [step.step for step in timeline.steps if step.is_in_window] == [5, 6]
    assert timeline.windows == ((5, 6, "profiler"),)
    assert (measurements.overhead.window_s, measurements.overhead.num_windows) == (0.5, 1)
    assert measurements.overhead.step_ms == pytest.approx(0.02)
    steps = make_steps(19, other_ms=2.0, recorder_us=lambda step: 1000.0 if step % 4 == 3 else 0.0)
    overhead = measure(tmp_path / "second", steps=steps).overhead
    assert overhead.step_ms == pytest.approx(0.25)
    assert overhead.share == pytest.approx(0.25 / 17.0)


def memory_advice(folder, *sizes_mib):
    """What is said of steps with these sizes at the boundaries."""
    return measure(folder, steps=make_steps(20, allocated_bytes=[size * MIB for size in sizes_mib])).recommendations[0]


def test_activations_are_advised_to_be_saved_where_they_add_a_quarter_and_not_a_sixtieth(tmp_path):
    told = memory_advice(tmp_path / "run", 118, 160, 160, 119, 119)
    assert told.startswith("A step adds 42.0 MiB of the 160 MiB allocated, on average; it is highest after the forward")
    assert "checkpointing" in told
    told = memory_advice(tmp_path / "second", 116, 118, 118, 116, 116)
    assert "checkpointing" not in told
    assert told.startswith("A step adds 2.00 MiB of the 118 MiB allocated, on average; what is kept from step to step")
    told = memory_advice(tmp_path / "third", 20, 22, 22, 23, 24)
    assert "it is highest after the optimizer's step: weights, gradients and its state" in told


def test_memory_in_a_window_is_measured_where_one_was_recorded(tmp_path):
    assert measure(tmp_path / "without", steps=make_steps(10)).window_memory is None
    recorded = measurements_of(open_run(RUNS / "retained_graph-sick")).window_memory
    assert recorded.title == "Memory by what it is for, in step 40"


def test_on_a_device_its_own_time_of_each_stage_is_a_metric_too(tmp_path):
    measured = measure(tmp_path / "run", steps=[make_busy_step(number) for number in range(20)])
    told = {each.name: each.samples[0] for each in measured.metrics if "device" in each.name}
    assert told == pytest.approx(
        {
            "data_device_ms": 0.0,
            "forward_device_ms": 11.7,
            "backward_device_ms": 0.0,
            "optimizer_device_ms": 0.0,
            "other_device_ms": 0.0,
            "device_idle_ms": 0.2,
        }
    )
