"""Evaluations: how long they took, how much memory they needed beside training, and what their batches left behind."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from efprof.artifacts.readings import EvaluationMemory, read_evaluations
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.model import Evaluation
from efprof.units import MIB, format_bytes

MIN_READINGS: Final = 6
"""After the first batch, which fills caches and loads kernels."""
MIN_RISING: Final = 0.9
"""Of the stretches between readings: what is stored of each batch rises with each."""
MIN_KEPT: Final = 4 * MIB
"""In all, by its end: less than a model's own noise is not worth a sentence."""


def evaluations_of(run: Run) -> tuple[Evaluation, ...]:
    """All passes without training, in order; empty where none was seen."""
    return tuple(
        Evaluation(
            after_step=record.after_step,
            total_ms=record.total_us / 1000,
            fetch_ms=record.fetch_us / 1000,
            num_batches=record.num_batches,
            blame=None if record.site is None else run.get(Sources).line(record.site),
            memory=tuple((each.num_batches, each.allocated_bytes) for each in record.memory),
            peak_bytes=record.peak_bytes,
            is_peak_exact=record.is_peak_exact,
            kept_bytes_per_batch=_kept_per_batch(record.memory),
        )
        for record in read_evaluations(run.rank_folder)
    )


def notes_on(every: Sequence[Evaluation]) -> tuple[str, ...]:
    """A sentence about what one stores of its batches; none where that is little."""
    most = max(every, key=lambda each: each.num_batches * (each.kept_bytes_per_batch or 0.0), default=None)
    if most is None or most.kept_bytes_per_batch is None:
        return ()
    return (
        f"What {f'the loop at {most.blame}' if most.blame else 'an evaluation'} stores adds "
        f"{format_bytes(most.kept_bytes_per_batch)} per batch, "
        f"{format_bytes(most.kept_bytes_per_batch * most.num_batches)} by the end of its {most.num_batches:,} batches: "
        "keep of each output what is needed of it (the `argmax`, a sum, a count).",
    )


def _kept_per_batch(memory: Sequence[EvaluationMemory]) -> float | None:
    """The rise from the first batch to the last over the batches between; None where it is small or not steady."""
    readings = [each for each in memory if each.num_batches >= 1]
    if len(readings) < MIN_READINGS:
        return None
    rises = [after.allocated_bytes - before.allocated_bytes for before, after in pairwise(readings)]
    is_steady = sum(each > 0 for each in rises) >= MIN_RISING * len(rises)
    kept = sum(rises)
    return kept / (readings[-1].num_batches - readings[0].num_batches) if is_steady and kept >= MIN_KEPT else None
