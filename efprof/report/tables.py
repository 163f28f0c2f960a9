"""The tables that a page and Markdown show of every run; what stands between backticks in a cell is code."""

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from efprof.model import (
    BOUNDARIES,
    STAGES,
    Evaluation,
    Measurements,
    MemorySample,
    Metric,
    Number,
    Numbers,
    StageDelta,
    StallLine,
    StepSample,
    Table,
)
from efprof.report.wording import count_of, show

MAX_STALLS: Final = 20
"""The most expensive come first; what follows costs next to nothing."""
MAX_EVALUATIONS: Final = 50
MAX_STEPS: Final = 300
"""Rows that a browser lays out without a pause."""
NUM_FIRST: Final = 50
NUM_LAST: Final = 100
MAX_MEMORY_ROWS: Final = 500
"""A hundred steps of five boundaries; past that the steps are chosen."""

Cell = str | float


def stall_table(stalls: Sequence[StallLine]) -> Table:
    """Calls that made steps wait, averages over the steps."""
    return Table(
        title="Calls that make a step wait",
        columns=("Call", "Line", "Calls per step", "Time per step"),
        units=("", "", "count", "ms"),
        rows=tuple(
            (f"`{stall.call}`", f"`{stall.blame}`", stall.count_per_step, stall.step_ms)
            for stall in stalls[:MAX_STALLS]
        ),
    )


def device_table(metrics: Sequence[Metric]) -> Table:
    """Medians of a step's stages on the host, which queues work, and on the device, which does it; no rows without."""
    samples = {metric.name: metric.samples for metric in metrics if metric.samples}
    idle_ms = samples.get("device_idle_ms", ())
    rows = [
        (name, statistics.median(samples[f"{name}_ms"]), statistics.median(samples[f"{name}_device_ms"]))
        for name in STAGES * bool(idle_ms)
    ]
    return Table(
        title="Stages on the host and on the device",
        columns=("Stage", "On the host", "On the device"),
        units=("", "ms", "ms"),
        rows=(*rows, ("idle, mean, at most", "", statistics.fmean(idle_ms))) if rows else (),
    )


def device_phrase(metrics: Sequence[Metric]) -> str:
    """The same in a few words; empty without a device."""
    cells = [[one if isinstance(one, str) else show(one, "ms") for one in row] for row in device_table(metrics).rows]
    stages = [f"{name} {device}{f' ({host})' if host else ''}" for name, host, device in cells]
    return f"; on the device (on the host): {', '.join(stages)}" if stages else ""


def stage_table(deltas: Sequence[StageDelta]) -> Table:
    """Memory at each boundary over all steps; the first of a step has none before it to differ from."""
    return Table(
        title="Stage deltas",
        columns=("Boundary", "Count", "Average", "Maximum", "Average delta", "Largest jump", "At step"),
        units=("", "count", "bytes", "bytes", "bytes", "bytes", "count"),
        rows=tuple(map(_stage_row, deltas)),
    )


def largest_jump_sentence(deltas: Sequence[StageDelta]) -> str:
    """Where memory rose most from one boundary to the next; empty where it never rose."""
    largest = max(deltas, key=lambda delta: delta.largest_jump_bytes, default=None)
    if largest is None or largest.largest_jump_bytes <= 0:
        return ""
    jump = show(largest.largest_jump_bytes, "bytes")
    return (
        f"Largest jump: {jump} from the boundary before to `{largest.boundary}` in step {largest.largest_jump_step:,}."
    )


def evaluation_table(evaluations: Sequence[Evaluation]) -> Table:
    """The last evaluations."""
    return Table(
        title="Evaluations",
        columns=("After step", "Line", "Batches", "Time", "Waiting for batches", "Peak", "Kept per batch"),
        units=("count", "", "count", "ms", "ms", "bytes", "bytes"),
        rows=tuple(
            (
                "before all" if each.after_step < 0 else each.after_step,
                f"`{each.blame}`" if each.blame else "",
                each.num_batches,
                each.total_ms,
                each.fetch_ms,
                each.peak_bytes or "",
                _known(each.kept_bytes_per_batch),
            )
            for each in evaluations[-MAX_EVALUATIONS:]
        ),
    )


def memory_table(memory: Sequence[MemorySample]) -> Table:
    """All boundaries, or of the first steps, the last and the largest jumps; deltas are against the boundary before."""
    deltas = [None, *(after.allocated_bytes - before.allocated_bytes for before, after in pairwise(memory))]
    changes = list(zip(memory, deltas, strict=False))
    jumps: dict[int, float] = {}
    for sample, delta in changes:
        jumps[sample.step] = max(jumps.get(sample.step, 0), delta or 0)
    chosen = jumps.keys() if len(memory) <= MAX_MEMORY_ROWS else _chosen(jumps, 10, 30, 20)
    rows = tuple(
        (sample.step, sample.boundary, sample.allocated_bytes, _known(delta), sample.reserved_bytes)
        for sample, delta in changes
        if sample.step in chosen
    )
    title = f"Memory of every step: {count_of(len(rows), 'row')}"
    if len(rows) < len(memory):
        counts = f"{len(rows):,} of {len(memory):,} rows"
        title = f"Memory of single steps: {counts}, the largest jumps kept; all are in the JSON form"
    return Table(
        title=title,
        columns=("Step", "Boundary", "Allocated", "Delta", "Reserved"),
        units=("count", "", "bytes", "bytes", "bytes"),
        rows=rows,
    )


def step_table(steps: Sequence[StepSample]) -> Table:
    """All steps, or where they are too many the first, the last, and the longest or broken ones between them."""
    chosen = {step.step for step in steps}
    if len(steps) > MAX_STEPS:
        badness = {step.step: math.inf if is_broken(step) else step.total_ms for step in steps}
        chosen = _chosen(badness, NUM_FIRST, NUM_LAST, MAX_STEPS - NUM_FIRST - NUM_LAST)
    rows = tuple(_step_row(step) for step in steps if step.step in chosen)
    is_whole = len(rows) == len(steps)
    stages = tuple(stage.capitalize() for stage in STAGES)
    numbers = ("Loss", "Gradient norm", "Scale", "Gradients", "Gradient bytes", "NaN", "Inf")
    return Table(
        title=f"Every step: {count_of(len(rows), 'row')}"
        if is_whole
        else f"Single steps: {len(rows):,} of {len(steps):,}",
        columns=("Step", "Total", *stages, "Recorder", *numbers, "Note"),
        units=("count", "ms", *("ms" for _ in stages), "ms", "", "", "", "count", "bytes", "count", "count", ""),
        rows=rows,
    )


def left_out_sentence(num_steps: int) -> str:
    """What the table of steps does not show and where it is; empty where it shows all."""
    left_out = num_steps - MAX_STEPS
    if left_out <= 0:
        return ""
    return (
        f"{count_of(left_out, 'step')} between the first {NUM_FIRST} and the last {NUM_LAST} left out; the longest and "
        "broken ones are kept, and all are in steps.jsonl in the run folder and in the JSON form."
    )


def is_broken(step: StepSample) -> bool:
    """Whether the loss or a gradient of the step was not finite."""
    values = (step.loss, step.gradient_norm)
    return bool(step.num_nan or step.num_inf) or any(v is not None and not math.isfinite(v) for v in values)


def recorder_ms(step: StepSample) -> float:
    """The recorder's own part of a step, in milliseconds: what no stage has; that of a light one is not told."""
    if not step.stage_ms:
        return 0.0
    return max(0.0, round(step.total_ms - sum(step.stage_ms), 6))


def totals(measurements: Measurements) -> tuple[Number, ...]:
    """Loss from first to last, gradient norm, scale, counts; only what was seen."""
    steps = measurements.timeline.steps
    columns = zip(*map(_numbers, steps), strict=True) if steps else ((),) * 7
    losses, norms, scales, counts, sizes, nan, inf = ([v for v in column if v is not None] for column in columns)
    finite = [loss for loss in losses if math.isfinite(loss)]
    norms = [norm for norm in norms if math.isfinite(norm)]
    numbers: tuple[tuple[str, float | None, str], ...] = (
        ("first loss", finite[0] if finite else None, ""),
        ("last finite loss", finite[-1] if finite else None, ""),
        ("losses that are not finite", len(losses) - len(finite) if losses else None, "count"),
        ("largest gradient norm", max(norms, default=None), ""),
        ("last gradient norm", norms[-1] if norms else None, ""),
        ("last scale", scales[-1] if scales else None, "count"),
        ("skipped steps", measurements.num_skipped_steps, "count"),
        ("gradients per step", counts[-1] if counts else None, "count"),
        ("gradient bytes per step, at most", max(sizes, default=None), "bytes"),
        ("NaN in gradients, all steps", sum(nan) if nan else None, "count"),
        ("Inf in gradients, all steps", sum(inf) if inf else None, "count"),
    )
    return Numbers.of("", *numbers).numbers


def _chosen(badness: Mapping[int, float], num_first: int, num_last: int, num_between: int) -> set[int]:
    """The first steps, the last, and the worst between them."""
    steps = list(badness)
    between = sorted(steps[num_first:-num_last], key=lambda step: -badness[step])
    return {*steps[:num_first], *between[:num_between], *steps[-num_last:]}


def _stage_row(delta: StageDelta) -> tuple[Cell, ...]:
    row = (f"`{delta.boundary}`", delta.count, delta.average_bytes, delta.maximum_bytes)
    if delta.boundary == BOUNDARIES[0] and not delta.average_delta_bytes and not delta.largest_jump_bytes:
        return (*row, "", "", "")
    return (*row, delta.average_delta_bytes, delta.largest_jump_bytes, delta.largest_jump_step)


def _step_row(step: StepSample) -> tuple[Cell, ...]:
    stages = (*step.stage_ms, recorder_ms(step)) if step.stage_ms else ("",) * (len(STAGES) + 1)
    return (step.step, step.total_ms, *stages, *map(_known, _numbers(step)), _note(step))


def _numbers(step: StepSample) -> tuple[float | None, ...]:
    counts = step.num_gradients, step.gradient_bytes, step.num_nan, step.num_inf
    return (step.loss, step.gradient_norm, step.scaler_scale, *counts)


def _note(step: StepSample) -> str:
    notes = (
        ("light", not step.stage_ms),
        ("slow", step.is_slow),
        ("window", step.is_in_window),
        ("not finite", is_broken(step)),
    )
    return ", ".join(word for word, holds in notes if holds)


def _known(value: float | None) -> Cell:
    return "" if value is None else value
