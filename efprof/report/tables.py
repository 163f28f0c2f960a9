"""The tables that a page shows of every run; what stands between backticks in a cell is code."""

import math
import statistics
from collections.abc import Sequence

from efprof.model import (
    BOUNDARIES,
    BOUNDARY_PHRASES,
    STAGES,
    Measurements,
    Metric,
    Number,
    Numbers,
    Row,
    StageDelta,
    StallLine,
    Table,
)
from efprof.report.wording import show


def stall_table(stalls: Sequence[StallLine]) -> Table:
    """Calls that made steps wait, averages over the steps."""
    columns = {"Call": "", "Line": "", "Calls per step": "count", "Time per step": "ms"}
    timed = [one for one in stalls if one.step_ms]
    rows = (
        (f"`{' in '.join([one.call, *one.library[:1]])}`", f"`{one.blame}`", one.count_per_step, one.step_ms)
        for one in timed
    )
    return Table.of("Calls that make a step wait", columns, rows)


def device_table(metrics: Sequence[Metric]) -> Table:
    """Medians of a step's stages on the host, which queues work, and on the device, which does it; no rows without."""
    samples = {metric.name: metric.samples for metric in metrics if metric.samples}
    idle_ms = samples.get("device_idle_ms", ())
    rows: list[Row] = [
        (name, statistics.median(samples[f"{name}_ms"]), statistics.median(samples[f"{name}_device_ms"]))
        for name in STAGES * bool(idle_ms)
    ]
    rows += [("idle, mean, at most", "", statistics.fmean(idle_ms))] if idle_ms else []
    columns = {"Stage": "", "On the host": "ms", "On the device": "ms"}
    return Table.of("Stages on the host and on the device", columns, rows)


def stage_table(deltas: Sequence[StageDelta]) -> Table:
    """Memory at each boundary over all steps; the first of a step has none before it to differ from."""
    sizes = dict.fromkeys(("Average", "Maximum", "Average delta", "Largest jump"), "bytes")
    columns = {"When": "", "Count": "count", **sizes, "At step": "count"}
    return Table.of("Memory at each stage", columns, map(_stage_row, deltas))


def largest_jump_sentence(deltas: Sequence[StageDelta]) -> str:
    """Where memory rose most from one boundary to the next; empty where it never rose."""
    largest = max(deltas, key=lambda delta: delta.largest_jump_bytes, default=None)
    if largest is None or largest.largest_jump_bytes <= 0:
        return ""
    jump = show(largest.largest_jump_bytes, "bytes")
    return (
        f"Largest jump: {jump} up to the instant {BOUNDARY_PHRASES.get(largest.boundary, largest.boundary)} in step "
        f"{largest.largest_jump_step:,}."
    )


def totals(measurements: Measurements) -> tuple[Number, ...]:
    """Loss from first to last, gradient norm, scale, counts; only what was seen."""
    steps = measurements.timeline.steps
    losses = [step.loss for step in steps if step.loss is not None]
    finite = [loss for loss in losses if math.isfinite(loss)]
    norms = [one.gradient_norm for one in steps if one.gradient_norm is not None and math.isfinite(one.gradient_norm)]
    scales = [step.scaler_scale for step in steps if step.scaler_scale is not None]
    counts = [step.num_gradients for step in steps if step.num_gradients is not None]
    nan = [step.num_nan for step in steps if step.num_nan is not None]
    inf = [step.num_inf for step in steps if step.num_inf is not None]
    return Numbers.of(
        "",
        ("first loss", finite[0] if finite else None, ""),
        ("last finite loss", finite[-1] if finite else None, ""),
        ("losses that are not finite", len(losses) - len(finite) if losses else None, "count"),
        ("largest gradient norm", max(norms, default=None), ""),
        ("last scale", scales[-1] if scales else None, "count"),
        ("skipped steps", measurements.num_skipped_steps, "count"),
        ("gradients per step", counts[-1] if counts else None, "count"),
        ("NaN in gradients, steps recorded in full", sum(nan) if nan else None, "count"),
        ("Inf in gradients, steps recorded in full", sum(inf) if inf else None, "count"),
    ).numbers


def _stage_row(delta: StageDelta) -> Row:
    row = (BOUNDARY_PHRASES.get(delta.boundary, delta.boundary), delta.count, delta.average_bytes, delta.maximum_bytes)
    if delta.boundary == BOUNDARIES[0] and not delta.average_delta_bytes and not delta.largest_jump_bytes:
        return (*row, "", "", "")
    return (*row, delta.average_delta_bytes, delta.largest_jump_bytes, delta.largest_jump_step)
