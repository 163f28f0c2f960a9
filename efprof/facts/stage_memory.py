"""Memory at each boundary of the step over all steps, and what its shape means."""

from collections.abc import Sequence
from typing import Final

from efprof.artifacts.steps import StepRecord
from efprof.facts.step_times import StepTimes
from efprof.model import BOUNDARIES, STAGES, StageDelta
from efprof.units import format_bytes, format_ms, format_share

MEANINGS: Final = {
    "pre_forward": "before the forward pass begins: what is kept from step to step (weights, optimizer state, whatever "
    "the program holds) is the maximum, and a smaller batch would not lower it",
    "post_forward_pre_backward": "after the forward pass: the activations kept for backward are the maximum, which "
    "activation checkpointing or a smaller micro-batch lowers",
    "pre_backward": "when backward is called: the activations and the loss are the maximum, which activation "
    "checkpointing or a smaller micro-batch lowers",
    "post_backward": "after the backward pass: gradients outweigh the activations, and "
    "`optimizer.zero_grad(set_to_none=True)` before the forward pass keeps the two from adding up",
    "post_optimizer_step": "after the optimizer's step: weights, gradients and what the optimizer keeps outweigh the "
    "activations",
}
"""What it means that memory is highest there."""
LEAST_RANGE = 0.1
"""Where the boundaries differ by less than this share of the highest, all that a step adds is not worth saving."""
LEAST_STAGE = 0.5
"""A stage is named where it takes at least half of the step."""


def stage_deltas(records: Sequence[StepRecord]) -> tuple[StageDelta, ...]:
    """One row per boundary that was recorded, in the step's order; a step may pass a boundary several times."""
    allocated: dict[str, list[int]] = {}
    deltas: dict[str, list[tuple[int, int]]] = {}
    for record in records:
        if not record.memory:
            continue  # a short step of schema version 1
        for before, here in zip([None, *record.memory[:-1]], record.memory, strict=True):
            allocated.setdefault(here.boundary, []).append(here.allocated_bytes)
            if before is not None:
                change = here.allocated_bytes - before.allocated_bytes
                deltas.setdefault(here.boundary, []).append((change, record.step))
    return tuple(_row(name, allocated[name], deltas.get(name, [])) for name in BOUNDARIES if name in allocated)


def read_throughout(records: Sequence[StepRecord]) -> list[StepRecord]:
    """The steps whose memory was read at every boundary that any step's was.

    Of light steps nothing is read. In recordings of schema version 1 short ones may have been read at their end alone,
    where memory is lowest: no peak among peaks.
    """
    fullest = max((_boundaries(record) for record in records), key=len, default=frozenset())
    return [record for record in records if record.memory and _boundaries(record) == fullest]


def recommendations(times: StepTimes) -> tuple[str, ...]:
    """Sentences computed from the tables of this run; none where a table says nothing."""
    return (*_about_memory(times), *_about_time(times))


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


def _boundaries(record: StepRecord) -> frozenset[str]:
    return frozenset(here.boundary for here in record.memory)


def _about_memory(times: StepTimes) -> list[str]:
    rows = stage_deltas(read_throughout([time.record for time in times.steady]))
    if not rows:
        return []
    highest = max(rows, key=lambda row: row.average_bytes)
    lowest = min(rows, key=lambda row: row.average_bytes)
    range_bytes = highest.average_bytes - lowest.average_bytes
    if range_bytes < LEAST_RANGE * highest.average_bytes:
        return [
            f"Allocated memory stays near {format_bytes(highest.average_bytes)} through the step, of which the step "
            f"itself adds {format_bytes(range_bytes)}: what is kept from step to step outweighs that."
        ]
    return [
        f"Allocated memory is highest ({format_bytes(highest.average_bytes)} on average, {format_bytes(range_bytes)} "
        f"above {lowest.boundary}) at {highest.boundary}, {MEANINGS[highest.boundary]}."
    ]


def _about_time(times: StepTimes) -> list[str]:
    if not times.steady:
        return []
    by_stage = {stage: times.median_of(stage) for stage in STAGES}
    stage = max(STAGES, key=lambda name: by_stage[name])
    share = by_stage[stage] / times.median_ms()
    if share < LEAST_STAGE:
        return []
    return [f"The {stage} stage takes {format_share(share)} of the median step ({format_ms(by_stage[stage])})."]
