"""The tables of memory by stage: over all steps, and of every step that is shown."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from efprof.model import BOUNDARIES, MemorySample, StageDelta
from efprof.report.wording import count_of, show

STAGE_COLUMNS: Final = ("Boundary", "Count", "Average", "Maximum", "Average delta", "Largest jump", "At step")
MAX_ROWS: Final = 500
"""A hundred steps of five boundaries; past that the steps are chosen."""
NUM_FIRST: Final = 10
NUM_LAST: Final = 30
NUM_JUMPS: Final = 20
STEP_COLUMNS: Final = ("Step", "Boundary", "Allocated", "Delta", "Reserved")


def stage_rows(deltas: Sequence[StageDelta]) -> tuple[tuple[str, ...], ...]:
    """The rows under `STAGE_COLUMNS`; the first boundary of a step has none before it to differ from."""
    return tuple(_stage_row(delta) for delta in deltas)


def largest_jump_sentence(deltas: Sequence[StageDelta]) -> str:
    """Where memory rose most from one boundary to the next; empty where it never rose."""
    if not deltas:
        return ""
    largest = max(deltas, key=lambda delta: delta.largest_jump_bytes)
    if largest.largest_jump_bytes <= 0:
        return ""
    jump = show(largest.largest_jump_bytes, "bytes")
    return (
        f"Largest jump: {jump} from the boundary before to `{largest.boundary}` in step {largest.largest_jump_step:,}."
    )


def step_memory_rows(memory: Sequence[MemorySample]) -> tuple[tuple[str, ...], ...]:
    """The rows under `STEP_COLUMNS` of the steps that are shown; deltas are against the boundary before."""
    deltas = [None, *(after.allocated_bytes - before.allocated_bytes for before, after in pairwise(memory))]
    changes = list(zip(memory, deltas, strict=False))
    shown = _shown_steps(changes)
    return tuple(_step_row(sample, delta) for sample, delta in changes if sample.step in shown)


def step_memory_title(num_shown: int, num_all: int) -> str:
    """How many rows there are, and which of them where they are too many."""
    if num_shown == num_all:
        return f"Memory of every step: {count_of(num_shown, 'row')}"
    return (
        f"Memory of single steps: {num_shown:,} of {num_all:,} rows, the largest jumps kept; all are in the JSON form"
    )


def _shown_steps(changes: Sequence[tuple[MemorySample, int | None]]) -> set[int]:
    """All of them, or where they are too many the first, the last, and between them those with the largest jumps."""
    steps = list(dict.fromkeys(sample.step for sample, _ in changes))
    if len(changes) <= MAX_ROWS:
        return set(steps)
    jumps: dict[int, int] = {}
    for sample, delta in changes:
        jumps[sample.step] = max(jumps.get(sample.step, 0), delta or 0)
    between = sorted(steps[NUM_FIRST:-NUM_LAST], key=lambda step: -jumps[step])
    return {*steps[:NUM_FIRST], *between[:NUM_JUMPS], *steps[-NUM_LAST:]}


def _stage_row(delta: StageDelta) -> tuple[str, ...]:
    is_first = delta.boundary == BOUNDARIES[0] and not delta.average_delta_bytes and not delta.largest_jump_bytes
    changes = (
        show(delta.average_delta_bytes, "bytes"),
        show(delta.largest_jump_bytes, "bytes"),
        show(delta.largest_jump_step, "count"),
    )
    return (
        delta.boundary,
        show(delta.count, "count"),
        show(delta.average_bytes, "bytes"),
        show(delta.maximum_bytes, "bytes"),
        *(("", "", "") if is_first else changes),
    )


def _step_row(sample: MemorySample, delta: int | None) -> tuple[str, ...]:
    allocated, reserved = show(sample.allocated_bytes, "bytes"), show(sample.reserved_bytes, "bytes")
    return f"{sample.step:,}", sample.boundary, allocated, "" if delta is None else show(delta, "bytes"), reserved
