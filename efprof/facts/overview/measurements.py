"""What is shown of every run, findings or none: metrics with raw samples, the timeline, memory by stage."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np

from efprof.artifacts.events import Event, RecordingCost, WindowClosed, read_events
from efprof.artifacts.readings import EvaluationMemory, EvaluationRecord, read_evaluations
from efprof.artifacts.steps import StepRecord
from efprof.facts.device.who_holds import who_holds
from efprof.facts.growth.memory_growth import MemoryGrowth
from efprof.facts.input.worker_memory import process_table
from efprof.facts.numbers.nonfinite import badness
from efprof.facts.peak.live_memory import window_peaks
from efprof.facts.peak.window_memory import WindowMemory
from efprof.facts.run.run import Run
from efprof.facts.source.loops import repeated_line
from efprof.facts.source.sources import Sources
from efprof.facts.steps.run_time import RunTime
from efprof.facts.steps.step_times import StepTime, StepTimes, num_warm_up_steps, stall_lines
from efprof.facts.time.step_pictures import memory_series
from efprof.facts.time.time_use import TimeUse, time_evidence
from efprof.facts.time.what_bounds import next_experiment, where_it_goes
from efprof.model import (
    BOUNDARIES,
    STAGES,
    Evaluation,
    LineTime,
    Measurements,
    MemorySample,
    Metric,
    NotRecorded,
    Overhead,
    StageDelta,
    StepSample,
    ThinEvidence,
    Timeline,
    UnreadableInput,
)
from efprof.units import MIB, format_bytes

PEAK_BUDGET = 0.005
"""Peaks repeat almost to the byte, so half a percent is a change."""
SLOW_FACTOR = 1.5
"""A step this many times the median is marked slow: quiet machines stay below 1.2, a stall is well above."""

MEANINGS = {
    "pre_forward": "before the forward pass: what is kept from step to step is the maximum, whatever the batch",
    "post_forward_pre_backward": "after the forward pass: activations are the maximum, which checkpointing lowers",
    "pre_backward": "when backward is called: activations and the loss are the maximum, which checkpointing lowers",
    "post_backward": "after the backward pass: gradients outweigh activations; clear them before the forward pass",
    "post_optimizer_step": "after the optimizer's step: weights, gradients and its state outweigh activations",
}
"""What it means that memory is highest there."""
MIN_RANGE = 0.1
"""Where the boundaries differ by less than this share of the highest, all that a step adds is not worth saving."""
MIN_READINGS = 6
"""After the first batch, which fills caches and loads kernels."""
MIN_RISING, MIN_RISE = 0.9, 0.1
"""Of the batches, by how much of the mean: what fills up in the first ones is no store of each batch."""
MIN_KEPT = 4 * MIB
"""In all, by its end: less than a model's own noise is not worth a sentence."""


def measurements_of(run: Run) -> Measurements:
    """The measurements of a run; empty where no step was finished, since such a run is shown too."""
    traced = _of_a_trace(run)
    try:
        times = run.get(StepTimes)
        events, _ = read_events(run.rank_folder)
    except NotRecorded:
        return traced
    run_time = run.find(RunTime)
    evaluations, window_memory = evaluations_of(run), run.find(WindowMemory, UnreadableInput)
    return replace(
        traced,
        metrics=_metrics(times, run),
        timeline=_timeline(times),
        stage_deltas=stage_deltas([record for record in run.steps if record.is_full]),
        overhead=_overhead(times, events),
        run_time=tuple(sorted(run_time.seconds.items(), key=lambda part: -part[1])) if run_time else (),
        num_skipped_steps=_num_skipped(times.every),
        recommendations=_about_memory(stage_deltas([time.record for time in times.steady])),
        stalls=stall_lines(run),
        window_memory=window_memory.series if window_memory else None,
        processes=process_table(run),
        evaluations=evaluations,
        evaluation_notes=notes_on(evaluations),
    )


def _of_a_trace(run: Run) -> Measurements:
    """What a trace tells, of a run or from elsewhere, where there is one."""
    use = run.find(TimeUse, UnreadableInput)
    source, held = run.run_file.memory_source, who_holds(run)
    if use is None:
        return Measurements(memory_source=source, memory_sentence=held)
    steps = [(end - start) / 1e6 for start, end in use.window.steps]
    return Measurements(
        memory_source=source,
        memory_sentence=held,
        metrics=(_metric("step_ms", "step time", "ms", steps),) if use.window.has_steps else (),
        traced_ms=use.window.step_ms if run.is_foreign or not use.window.has_steps else None,
        time=time_evidence(run),
        lines=tuple(
            LineTime(blame=one.blame, is_function=one.is_function, host_ms=one.host_ms, device_ms=one.device_ms)
            for one in use.told_lines
        ),
        time_sentence=where_it_goes(run),
        is_inference=run.is_foreign and use.window.is_inference,
        next_experiment=next_experiment(run),
        window_memory=memory_series(use.window),
    )


def evaluations_of(run: Run) -> tuple[Evaluation, ...]:
    """All that were seen, rollouts as well, in order."""
    return tuple(_evaluation(record, run.get(Sources)) for record in read_evaluations(run.rank_folder))


def _evaluation(record: EvaluationRecord, sources: Sources) -> Evaluation:
    repeated = repeated_line(record.callers, sources)
    line = None if record.site is None else sources.line(record.site)
    return Evaluation(
        after_step=record.after_step,
        total_ms=record.total_us / 1000,
        num_batches=record.num_batches,
        blame=repeated.line if repeated else line,
        loop=repeated.loop if repeated else line,
        peak_bytes=record.peak_bytes,
        is_peak_exact=record.is_peak_exact,
        kept_bytes_per_batch=_kept_per_batch(record.memory),
        graph_bytes=record.graph_bytes,
        num_graphs=record.num_alive,
        is_rollout=record.is_rollout,
    )


def notes_on(every: Sequence[Evaluation]) -> tuple[str, ...]:
    """A sentence about what one stores of its batches; none where that is little."""
    most = max(every, key=lambda each: each.num_batches * (each.kept_bytes_per_batch or 0.0), default=None)
    if most is None or most.kept_bytes_per_batch is None:
        return ()
    return (
        f"What {f'the loop at {most.loop}' if most.loop else 'an evaluation'} stores adds "
        f"{format_bytes(most.kept_bytes_per_batch)} per batch, "
        f"{format_bytes(most.kept_bytes_per_batch * most.num_batches)} by the end of its {most.num_batches:,} batches: "
        "keep of each output what is needed of it (the `argmax`, a sum, a count).",
    )


def _kept_per_batch(memory: Sequence[EvaluationMemory]) -> float | None:
    """The rise from the first batch to the last over the batches between; None where it is small or not steady."""
    readings = [each for each in memory if each.num_batches >= 1]
    if len(readings) < MIN_READINGS:
        return None
    num = np.diff([each.num_batches for each in readings])
    rise = np.diff([each.allocated_bytes for each in readings])
    num_batches, kept = int(num.sum()), int(rise.sum())
    num_rising = int(num[rise * num_batches > MIN_RISE * kept * num].sum())
    return kept / num_batches if 0 < MIN_RISING * num_batches <= num_rising and kept >= MIN_KEPT else None


def stage_deltas(records: Sequence[StepRecord]) -> tuple[StageDelta, ...]:
    """One row per boundary that was recorded, in the step's order; a step may pass a boundary several times."""
    allocated = defaultdict[str, list[int]](list)
    deltas = defaultdict[str, list[tuple[int, int]]](list)
    for record in records:
        for before, here in zip([None, *record.memory], record.memory, strict=False):
            allocated[here.boundary].append(here.allocated_bytes)
            if before is not None:
                deltas[here.boundary].append((here.allocated_bytes - before.allocated_bytes, record.step))
    return tuple(_row(name, allocated[name], deltas[name]) for name in BOUNDARIES if name in allocated)


def _metrics(times: StepTimes, run: Run) -> tuple[Metric, ...]:
    steady = times.steady
    records = [time.record for time in steady if time.record.memory]
    peaks = [max(record.allocated()) for record in records]
    reserved = [max(each.reserved_bytes for each in record.memory) for record in records]
    reads = [sum(read.count for read in time.record.reads) for time in steady]
    nonfinite = sum(bool(badness(record) or record.num_nan or record.num_inf) for record in run.steps)
    growth = run.find(MemoryGrowth, ThinEvidence)  # 0 where it does not grow for sure, none of a run too short to tell
    growth_bytes = () if growth is None else (growth.fit.trend.slope if growth.is_growing else 0.0,)
    return (
        _metric("step_ms", "step time", "ms", times.steady_ms),
        *(_metric(f"{stage}_ms", f"{stage} time", "ms", [time.of(stage) for time in steady]) for stage in STAGES),
        *_device_metrics([time for time in steady if time.device_ms]),
        _metric("cpu_ms", "CPU time of the process", "ms", [time.cpu_ms for time in steady]),
        _metric("peak_allocated_bytes", "peak allocated memory", "bytes", peaks, PEAK_BUDGET),
        _metric("window_peak_bytes", "peak within a step", "bytes", window_peaks(run)),
        _metric("reserved_bytes", "reserved memory", "bytes", reserved),
        _metric("memory_growth_bytes_per_step", "memory growth", "bytes_per_step", growth_bytes),
        _metric("scalar_reads_per_step", "scalar reads", "count", reads),
        _metric("nonfinite_steps", "steps with NaN or Inf", "count", [nonfinite], 0.0),
    )


def _device_metrics(steady: Sequence[StepTime]) -> tuple[Metric, ...]:
    """None where no device told its times."""
    if not steady:
        return ()
    stages = (
        _metric(f"{stage}_device_ms", f"{stage} time on the device", "ms", [time.device_ms[place] for time in steady])
        for place, stage in enumerate(STAGES)
    )
    return (*stages, _metric("device_idle_ms", "device idle, at most", "ms", [sum(time.idle_ms) for time in steady]))


def _metric(name: str, label: str, unit: str, samples: Sequence[float], budget: float | None = None) -> Metric:
    return Metric(name=name, label=label, unit=unit, samples=tuple(map(float, samples)), budget=budget)


def _timeline(times: StepTimes) -> Timeline:
    start_ns = times.every[0].record.started_ns
    slow_ms = SLOW_FACTOR * times.median_ms() if times.steady else math.inf
    windows = groupby(times.every, key=lambda time: time.record.window)
    stretches = [(name, [time.step for time in steps]) for name, steps in windows if name is not None]
    recorded = {"memory": "memory history", "watch": "watched lines", "calls": "counted calls"}
    return Timeline(
        steps=tuple(_sample(time, start_ns, slow_ms) for time in times.every),
        memory=tuple(
            MemorySample(
                step=time.step,
                boundary=each.boundary,
                at_s=(time.record.started_ns - start_ns) / 1e9 + each.at_us / 1e6,
                allocated_bytes=each.allocated_bytes,
                reserved_bytes=each.reserved_bytes,
            )
            for time in times.every
            for each in time.record.memory
        ),
        windows=tuple(
            (steps[0], steps[-1], recorded.get(name.partition("-")[0], "profiler")) for name, steps in stretches
        ),
    )


def _sample(time: StepTime, start_ns: int, slow_ms: float) -> StepSample:
    record = time.record
    return StepSample(
        step=record.step,
        started_s=(record.started_ns - start_ns) / 1e9,
        total_ms=time.total_ms,
        stage_ms=time.stage_ms,
        is_in_window=record.window is not None,
        is_slow=record.window is None and time.total_ms > slow_ms,
        num_micro_batches=record.micro_batches,
        samples=record.samples,
        loss=None if record.loss is None else float(record.loss),  # NaN and Inf are spelled as texts in JSON
        gradient_norm=None if record.gradient_norm is None else float(record.gradient_norm),
        num_gradients=record.num_gradients,
        gradient_bytes=record.gradient_bytes,
        num_nan=record.num_nan,
        num_inf=record.num_inf,
        scaler_scale=record.scaler_scale,
    )


def _overhead(times: StepTimes, events: Sequence[Event]) -> Overhead | None:
    if not times.steady:
        return None
    steady = [time for time in times.every[num_warm_up_steps(len(times.every)) :] if time.record.window is None]
    step_ms = statistics.fmean(time.recorder_ms for time in steady)  # full ones pay for light ones
    closed = [event for event in events if isinstance(event, WindowClosed)]
    cost = next((event for event in reversed(events) if isinstance(event, RecordingCost)), None)
    return Overhead(
        step_ms=step_ms,
        share=step_ms / times.median_ms(),
        window_s=sum(event.seconds for event in closed),
        num_windows=sum(bool(event.files) for event in closed),
        num_full_steps=sum(time.record.is_full for time in times.every),
        num_steps=len(times.every),
        allowance_s=cost.allowance_s if cost else None,
        allowed_share=cost.share if cost else None,
        beside_steps_s=cost.beside_steps_s if cost else None,
    )


def _num_skipped(every: Sequence[StepTime]) -> int:
    """Steps whose optimizer was skipped; a scaler that skips on the device shows it by lowering its scale."""
    scales = [time.record.scaler_scale for time in every if time.record.scaler_scale is not None]
    return max(
        sum(time.record.is_skipped for time in every), sum(later < earlier for earlier, later in pairwise(scales))
    )


def _row(boundary: str, allocated: list[int], deltas: list[tuple[int, int]]) -> StageDelta:
    jump, step = max(deltas, key=lambda delta: delta[0], default=(0, 0))
    return StageDelta(
        boundary=boundary,
        count=len(allocated),
        average_bytes=sum(allocated) / len(allocated),
        maximum_bytes=max(allocated),
        average_delta_bytes=sum(delta for delta, _ in deltas) / len(deltas) if deltas else 0.0,
        largest_jump_bytes=jump,
        largest_jump_step=step,
    )


def _about_memory(rows: Sequence[StageDelta]) -> tuple[str, ...]:
    """A sentence computed from the table of stages; none where it is empty."""
    if not rows:
        return ()
    highest, lowest = (choose(rows, key=lambda row: row.average_bytes) for choose in (max, min))
    range_bytes = highest.average_bytes - lowest.average_bytes
    meaning = f"it is highest {MEANINGS[highest.boundary]}"
    if range_bytes < MIN_RANGE * highest.average_bytes:
        meaning = "what is kept from step to step outweighs that"
    adds = f"A step adds {format_bytes(range_bytes)} of the {format_bytes(highest.average_bytes)} allocated"
    return (f"{adds}, on average; {meaning}.",)
