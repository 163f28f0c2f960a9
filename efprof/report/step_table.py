"""The table of single steps and the totals of the numbers section."""

import math
from collections.abc import Sequence
from typing import Final

from efprof.model import STAGES, Measurements, Number, StepSample
from efprof.report.wording import count_of, show

MAX_STEPS: Final = 300
"""Rows that a browser lays out without a pause."""
NUM_FIRST: Final = 50
NUM_LAST: Final = 100
COLUMNS: Final = (
    "Step",
    "Total",
    *(stage.capitalize() for stage in STAGES),
    "Recorder",
    "Loss",
    "Gradient norm",
    "Scale",
    "Gradients",
    "Gradient bytes",
    "NaN",
    "Inf",
    "Note",
)


def step_rows(steps: Sequence[StepSample]) -> tuple[tuple[str, ...], ...]:
    """The rows under `COLUMNS` of the steps that are shown."""
    return tuple(_row(step) for step in shown_steps(steps))


def shown_steps(steps: Sequence[StepSample]) -> list[StepSample]:
    """All steps, or where they are too many the first, the last, and the slow or broken ones between them."""
    if len(steps) <= MAX_STEPS:
        return list(steps)
    between = [step for step in steps[NUM_FIRST:-NUM_LAST] if step.is_slow or is_broken(step)]
    between = sorted(between, key=lambda step: (not is_broken(step), -step.total_ms))
    kept = sorted(between[: MAX_STEPS - NUM_FIRST - NUM_LAST], key=lambda step: step.step)
    return [*steps[:NUM_FIRST], *kept, *steps[-NUM_LAST:]]


def step_title(steps: Sequence[StepSample]) -> str:
    """How many rows there are, and of how many steps where they are too many."""
    num_shown = len(shown_steps(steps))
    if num_shown == len(steps):
        return f"Every step: {count_of(num_shown, 'row')}"
    return f"Single steps: {num_shown:,} of {len(steps):,}"


def left_out_sentence(steps: Sequence[StepSample]) -> str:
    """What the table does not show and where it is; empty where it shows all."""
    left_out = len(steps) - len(shown_steps(steps))
    if not left_out:
        return ""
    return (
        f"{count_of(left_out, 'step')} between the first {NUM_FIRST} and the last {NUM_LAST} left out; slow and "
        "broken ones are kept first, and all are in steps.jsonl in the run folder and in the JSON form."
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
    losses = [s.loss for s in steps if s.loss is not None]
    finite = [loss for loss in losses if math.isfinite(loss)]
    norms = [s.gradient_norm for s in steps if s.gradient_norm is not None and math.isfinite(s.gradient_norm)]
    scales = [s.scaler_scale for s in steps if s.scaler_scale is not None]
    numbers = []
    if finite:
        numbers += [_number("first loss", finite[0]), _number("last finite loss", finite[-1])]
    if losses:
        numbers.append(_number("losses that are not finite", len(losses) - len(finite), "count"))
    if norms:
        numbers += [_number("largest gradient norm", max(norms)), _number("last gradient norm", norms[-1])]
    if scales:
        numbers.append(_number("last scale", scales[-1], "count"))
    numbers.append(_number("skipped steps", measurements.num_skipped_steps, "count"))
    return (*numbers, *_gradient_totals(steps))


def _gradient_totals(steps: Sequence[StepSample]) -> list[Number]:
    counts = [s.num_gradients for s in steps if s.num_gradients is not None]
    sizes = [s.gradient_bytes for s in steps if s.gradient_bytes is not None]
    nan = [s.num_nan for s in steps if s.num_nan is not None]
    inf = [s.num_inf for s in steps if s.num_inf is not None]
    numbers = []
    if counts:
        numbers.append(_number("gradients per step", counts[-1], "count"))
    if sizes:
        numbers.append(_number("gradient bytes per step, at most", max(sizes), "bytes"))
    if nan:
        numbers.append(_number("NaN in gradients, all steps", sum(nan), "count"))
    if inf:
        numbers.append(_number("Inf in gradients, all steps", sum(inf), "count"))
    return numbers


def _number(label: str, value: float, unit: str = "") -> Number:
    return Number(label=label, value=value, unit=unit)


def _row(step: StepSample) -> tuple[str, ...]:
    parts = (*step.stage_ms, recorder_ms(step)) if step.stage_ms else (None,) * (len(STAGES) + 1)
    stages = ["" if value is None else show(value, "ms") for value in parts]
    values: tuple[tuple[float | None, str], ...] = (
        (step.loss, ""),
        (step.gradient_norm, ""),
        (step.scaler_scale, ""),
        (step.num_gradients, "count"),
        (step.gradient_bytes, "bytes"),
        (step.num_nan, "count"),
        (step.num_inf, "count"),
    )
    shown = ["" if value is None else show(value, unit) for value, unit in values]
    return f"{step.step:,}", show(step.total_ms, "ms"), *stages, *shown, _note(step)


def _note(step: StepSample) -> str:
    notes = (
        ("light", not step.stage_ms),
        ("slow", step.is_slow),
        ("window", step.is_in_window),
        ("not finite", is_broken(step)),
    )
    return ", ".join(word for word, holds in notes if holds)
