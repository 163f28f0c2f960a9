"""Evaluations: how long they took, how much memory they needed beside training, and what their batches left behind."""

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from efprof.artifacts.readings import EvaluationMemory, read_evaluations
from efprof.facts.peak.live_memory import window_peaks
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.facts.steps.step_times import StepTimes
from efprof.model import Evaluation
from efprof.units import MIB, format_bytes, format_ms, format_share

MIN_READINGS: Final = 6
"""After the first batch, which fills caches and loads kernels."""
MIN_RISING: Final = 0.9
"""Of the stretches between readings: what is stored of each batch rises with each."""
MIN_KEPT: Final = 4 * MIB
"""In all, by its end: less than a model's own noise is not worth a sentence."""
MIN_ABOVE: Final = 0.01
"""Of training's peak."""


def evaluations_of(run: Run) -> tuple[Evaluation, ...]:
    """All passes without training, in order; empty where none was seen."""
    return tuple(
        Evaluation(
            after_step=record.after_step,
            total_ms=record.total_us / 1000,
            fetch_ms=record.fetch_us / 1000,
            num_batches=record.num_batches,
            blame=None if record.site is None else run.get(Sources).line(record.site),
            peak_bytes=record.peak_bytes,
            is_peak_exact=record.is_peak_exact,
            kept_bytes_per_batch=_kept_per_batch(record.memory),
        )
        for record in read_evaluations(run.rank_folder)
    )


def notes_on(every: Sequence[Evaluation], run: Run) -> tuple[str, ...]:
    """Sentences about them; raises NotRecorded where there are some and no step was finished."""
    if not every:
        return ()
    trained_ms = sum(time.total_ms for time in run.get(StepTimes).every)
    notes = _about_time(every, trained_ms), _about_peak(every, run), _about_kept(every)
    return tuple(note for note in notes if note)


def _kept_per_batch(memory: Sequence[EvaluationMemory]) -> float | None:
    """The rise from the first batch to the last over the batches between; None where it is small or not steady."""
    readings = [each for each in memory if each.num_batches >= 1]
    if len(readings) < MIN_READINGS:
        return None
    rises = [after.allocated_bytes - before.allocated_bytes for before, after in pairwise(readings)]
    is_steady = sum(each > 0 for each in rises) >= MIN_RISING * len(rises)
    kept = sum(rises)
    return kept / (readings[-1].num_batches - readings[0].num_batches) if is_steady and kept >= MIN_KEPT else None


def _about_time(every: Sequence[Evaluation], trained_ms: float) -> str:
    total_ms = sum(each.total_ms for each in every)
    waiting = format_share(sum(each.fetch_ms for each in every) / max(total_ms, 1e-9))
    took = format_ms(statistics.median(each.total_ms for each in every))
    who = f"One evaluation took {took}" if len(every) == 1 else f"{len(every):,} evaluations took {took} each (median)"
    return (
        f"{who}, {format_share(total_ms / (total_ms + trained_ms))} of the time of steps and evaluations together; "
        f"{waiting} of it was waiting for batches."
    )


def _about_peak(every: Sequence[Evaluation], run: Run) -> str:
    """Beside the highest that was read at a boundary of a step, or that a window shows within one."""
    read = [each.allocated_bytes for time in run.get(StepTimes).every for each in time.record.memory]
    trained, highest = max((*read, *window_peaks(run)), default=0), max(every, key=lambda each: each.peak_bytes)
    above = highest.peak_bytes - trained
    if not trained or above < MIN_ABOVE * trained:
        return ""
    when = "before all steps" if highest.after_step < 0 else f"after step {highest.after_step:,}"
    return (
        f"The run's highest memory is an evaluation's, not a step's: {format_bytes(highest.peak_bytes)} "
        f"{when}{'' if highest.is_peak_exact else ', read between batches'}, {format_bytes(above)} above "
        f"the highest that was read of a step ({format_bytes(trained)})."
    )


def _about_kept(every: Sequence[Evaluation]) -> str:
    most = max(every, key=lambda each: each.num_batches * (each.kept_bytes_per_batch or 0.0))
    if most.kept_bytes_per_batch is None:
        return ""
    return (
        f"What {f'the loop at {most.blame}' if most.blame else 'an evaluation'} stores adds "
        f"{format_bytes(most.kept_bytes_per_batch)} per batch, "
        f"{format_bytes(most.kept_bytes_per_batch * most.num_batches)} by the end of its {most.num_batches:,} batches: "
        "keep of each output what is needed of it (the `argmax`, a sum, a count)."
    )
