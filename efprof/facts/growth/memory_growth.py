"""Whether memory that is retained after each step grows without end, and what that shows for itself."""

import contextlib
import math
from collections.abc import Container, Sequence
from typing import Self

from efprof.artifacts.events import Compilation, events_of
from efprof.artifacts.holders import read_counts
from efprof.artifacts.steps import StepRecord
from efprof.facts.growth.kept import RetainedTensors, counted_series, kept_table
from efprof.facts.growth.trend import (
    IN_WINDOW,
    MIN_SLOPE,
    WARM_UP_SHARE,
    Fit,
    Point,
    Trend,
    block_minima,
    first_after_warm_up,
    fit,
    is_in_window,
    is_leak,
    theil_sen,
)
from efprof.facts.run.run import Run
from efprof.facts.run.run_limits import RunLimits
from efprof.model import (
    Evidence,
    Gain,
    Narrative,
    NotRecorded,
    Series,
    SeriesLine,
    ThinEvidence,
    UnreadableInput,
    frozen_dataclass,
)
from efprof.units import format_bytes, format_interval, in_brackets

MIN_STEPS = 20
"""Fewer give blocks of less than three steps, whose minimum still carries the noise of single steps."""


@frozen_dataclass
class MemoryGrowth:
    """Retained bytes and their trend; `is_rising` where it is no leak and yet rises: unevenly, or ever slower."""

    fit: Fit
    is_growing: bool
    is_rising: bool

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Fit the trend; raises ThinEvidence under `MIN_STEPS` steps."""
        records = run.steps
        counted_after = set[int]()
        with contextlib.suppress(NotRecorded, UnreadableInput):
            counted_after = {count.step for count in read_counts(run.rank_folder)}
        compiled = {event.step for event in events_of(run.rank_folder, Compilation)}
        samples, within = _read(records, counted_after, compiled)
        steps = [sample[0] for sample in samples if sample is not IN_WINDOW]
        if len(steps) < MIN_STEPS:
            raise ThinEvidence(
                f"memory was read after {len(steps)} of {len(records)} steps outside windows, a trend needs "
                f"{MIN_STEPS}; record a longer run, or with 'efprof record --windows none', so that all steps count."
            )
        least_left = MIN_STEPS - math.ceil(WARM_UP_SHARE * MIN_STEPS)  # enough for a trend
        first_steady = min(first_after_warm_up(steps), len(steps) - least_left)
        found = fit(samples, records, first_steady=first_steady, within=within)
        late = theil_sen(found.blocks[len(found.blocks) // 2 :]).slope
        is_rising = min(found.trend.low, found.trend.slope - MIN_SLOPE, late - MIN_SLOPE) > 0
        steady = list(zip(found.steps, found.sizes, strict=True))[first_steady:]
        is_growing = is_leak(steady, found.blocks, found.trend)
        return cls(fit=found, is_growing=is_growing, is_rising=is_rising and not is_growing)


def _read(
    records: Sequence[StepRecord], counted_after: Container[int], compiled: Container[int]
) -> tuple[list[Point | None], list[int]]:
    """What each step whose memory was read leaves allocated after the optimizer, and what it needed.

    That is, at its highest boundary above what it found and left. A count of holders is as a window: on a CPU up to
    200 KiB of it stay with the process. So is a step that compiles: torch keeps what it made, by design.
    """
    samples: list[Point | None] = []
    within: list[int] = []
    for record in records:
        sizes = record.allocated() if record.memory else []
        left = sizes and record.allocated("post_optimizer_step")[-1:]
        is_apart = is_in_window(record) or record.step in compiled
        if left and not is_apart:
            samples.append((record.step, left[0]))
            within.append(max(sizes) - max(left[0], sizes[0]))
        if is_apart or record.step in counted_after:
            samples.append(IN_WINDOW)
    return samples, within


def are_batches_growing(run: Run) -> bool:
    """True if batches have ever more elements, and steps need more for themselves by at least what they leave behind.

    What a step leaves is then a part of that, such as its loss with its graph, and gone with the next one.
    """
    found = run.get(MemoryGrowth).fit
    elements = [(record.step, record.num_elements) for record in run.steps if record.num_elements]
    if len(elements) < MIN_STEPS or not found.within:
        return False
    return theil_sen(block_minima(elements)).low > 0 and _needed(found).low >= found.trend.slope


def growth_gain(fit: Fit, share: float, *, left_per_step: float = 0.0) -> Gain:
    """What the peak loses with what the recorded steps kept, as far as read, but for what a fix leaves of it per step.

    The interval is that of the slope, give or take what one step keeps, with what steps need ever more of at its high
    end. What is left is counted and the slope measured: their difference is known as well as the least slope of growth.
    """
    num_steps, one_step = fit.steps[-1] - fit.steps[0], max(0.0, share * fit.trend.slope - left_per_step)
    slopes = (fit.trend.low, fit.trend.slope, fit.trend.high)
    low, value, high = (_off_the_peak(fit, slope, share, left_per_step) for slope in slopes)
    unsure = one_step + min(left_per_step, MIN_SLOPE) * num_steps
    used = max(0.0, _needed(fit).low) * num_steps
    return Gain(
        explanation="the measured slope over the recorded steps, at most the measured rise, and less where an earlier "
        "step needs more than the last ones. The interval is that of the slope, one step more or less, and what steps "
        "need ever more of for themselves",
        peak_bytes=round(max(0.0, value)),
        peak_bytes_interval=(max(0.0, low - unsure), max(0.0, high) + one_step + used),
        until_step=fit.read_until,
    )


def growth_words(run: Run, fit: Fit, rate: Trend, most_bytes: float = math.inf) -> str:
    """How fast memory grows, and how long it lasts, or up to what it grows."""
    ends = in_brackets(format_interval(rate.low, rate.high, "bytes"))
    end = run.get(RunLimits).outlook(rate.slope, fit.read_until, most_bytes)
    return f"Memory grows {format_bytes(rate.slope)} per step{ends}{end}."


def growth_evidence(
    *,
    fit: Fit | None,
    kept: Sequence[RetainedTensors],
    how: Sequence[str],
    title: str = "Memory retained after each step",
) -> tuple[Evidence, ...]:
    fitted = []
    if fit is not None:
        fitted = [
            f"Of the memory after steps, the lowest points of {len(fit.blocks)} equal stretches after warm-up were "
            "compared: the median of the slopes between them, the longer counting more, is "
            f"{format_bytes(fit.trend.slope)} per step."
        ]
    alike = (
        "A buffer or cache that is still filling at the end of the recording, batches that get longer from step to "
        "step, and garbage that Python's collector has not reached yet, look the same: record more steps to tell."
    )
    return (
        *([_series(fit, title)] if fit is not None else []),
        *((counted_series(kept), kept_table(kept)) if kept else ()),
        Narrative.of(*how, *fitted, alike),
    )


def _series(fit: Fit, title: str) -> Series:
    ends = (float(fit.steps[fit.first_steady]), float(fit.steps[-1]))
    steps, sizes = tuple(map(float, fit.steps)), tuple(map(float, fit.sizes))
    line = tuple(fit.trend.level + fit.trend.slope * step for step in ends)
    return Series(
        title=title,
        y_label="memory",
        y_unit="bytes",
        lines=(
            SeriesLine(label="after the step", x=steps, y=sizes, is_highlighted=True),
            SeriesLine(label="trend", x=ends, y=line),
        ),
        marks=((ends[0], "fit begins"),),
    )


def _needed(fit: Fit) -> Trend:
    """Of what steps need for themselves."""
    return theil_sen(block_minima(list(zip(fit.steps, fit.within, strict=True))[fit.first_steady :]))


def _off_the_peak(fit: Fit, slope: float, share: float, left_per_step: float) -> float:
    """How much lower the highest instant is without its share of growth at that slope.

    Less than what was kept by then where early steps need more than late ones, by longer batches or by what training
    changes: the peak that a fix leaves lies there.
    """
    highest, mended = 0.0, 0.0
    for step, needed in zip(fit.steps, fit.within, strict=True):
        rise = fit.rise_until(step, slope)
        saved = share * rise - left_per_step * (step - fit.steps[0])
        highest, mended = max(highest, rise + needed), max(mended, rise + needed - saved)
    return highest - mended
