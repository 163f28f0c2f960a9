"""The checklist: what must hold of a phase of training, each point a function of what was seen."""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from efprof.facts.growth.trend import block_minima, theil_sen

FIRST_JUDGED_STEP = 3
"""From here on memory is held to what this step took: AdamW's state is made in the first step, caches in the second."""
MIN_STEPS = 20
"""What breaks off before tells nothing of thirds and slopes."""
MAX_PEAK_RATIO = 1.01
WARM_UP_SHARE = 0.1
MAX_TIME_RATIO = 1.1
MEMORY_WARM_UP_SHARE = 0.4
"""Python's and torch's own caches take another 8 KiB somewhere in the first 4,000 steps of a long phase (measured)."""
LONG_PHASE_STEPS = 5000
MAX_SHORT_SLOPE = 256.0
"""Bytes per step: less than the least tensor takes that is kept in each, 320 on a CPU (measured) and 512 on CUDA."""
CLIP_TOLERANCE = 1e-3
"""The clipped norm is computed from rounded numbers."""
MAX_GRU_INPUT = 30.0
"""A layer norm's output is at most the root of its size times its weight: 24 for the largest configuration's start."""


@dataclass(kw_only=True)
class Seen:
    """What one phase did, a value per optimizer step where it is a list."""

    batch_size: int
    clip_norm: float
    peak_bytes: list[float] = field(default_factory=list)  # highest of three instants, less what was there before
    retained_bytes: list[float] = field(default_factory=list)  # at the step's end
    step_ms: list[float] = field(default_factory=list)  # CPU time on a CPU, else wall time
    reference_ms: list[float] = field(default_factory=list)  # of the same work every few steps; 1 where it is not done
    clipped_norm: list[float] = field(default_factory=list)
    gru_input: list[float] = field(default_factory=list)  # largest absolute value that entered the GRU
    gru_hidden: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    gradient_norm: list[float] = field(default_factory=list)
    is_skipped: list[bool] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)  # operators that read a value on the host
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A point of the checklist: whether it holds, and the figure that says so."""

    point: str
    is_held: bool
    figure: str


def outcomes(seen: Seen, num_steps: int) -> list[Outcome]:
    """Every point of the checklist for a phase that was to take `num_steps` steps."""
    points: dict[str, Callable[[], tuple[bool, str]]] = {
        "all steps, at the batch size": lambda: _ran_through(seen, num_steps),
        "peak memory after step 3": lambda: _peak_stays(seen),
        "step time, last third to first": lambda: _time_stays(seen),
        "host reads in the last steps": lambda: (not seen.reads, ", ".join(seen.reads) or "none"),
        "non-finite losses, norms, skips": lambda: _is_finite(seen),
        "clipped gradient norm": lambda: _is_clipped(seen),
        "GRU input and state": lambda: _is_bounded(seen),
        "loss, first tenth to last": lambda: _loss_falls(seen),
        "memory's slope, bytes per step": lambda: _memory_is_level(seen),
    }
    if min(len(seen.loss), len(seen.peak_bytes)) < MIN_STEPS:
        return [Outcome(point=point, is_held=False, figure=seen.error or "too few steps") for point in points]
    return [Outcome(point=point, is_held=is_held, figure=text) for point, (is_held, text) in _called(points).items()]


def _called(points: dict[str, Callable[[], tuple[bool, str]]]) -> dict[str, tuple[bool, str]]:
    return {point: check() for point, check in points.items()}


def _ran_through(seen: Seen, num_steps: int) -> tuple[bool, str]:
    done = f"{len(seen.loss)} of {num_steps} x {seen.batch_size}"
    return not seen.error and len(seen.loss) == num_steps, f"{done}: {seen.error}" if seen.error else done


def _peak_stays(seen: Seen) -> tuple[bool, str]:
    first, *later = seen.peak_bytes[FIRST_JUDGED_STEP - 1 :]
    highest = max(later)
    is_level = highest <= MAX_PEAK_RATIO * first
    return is_level, f"{highest / first:.4f} of {first / 2**20:.1f} MiB"


def _time_stays(seen: Seen) -> tuple[bool, str]:
    """Steps are told in times of the reference work, so that a slower machine is not taken for a slower training."""
    paces = [step / reference for step, reference in zip(seen.step_ms, seen.reference_ms, strict=True)]
    steady = paces[int(WARM_UP_SHARE * len(paces)) :]
    third = len(steady) // 3
    ratio = statistics.median(steady[-third:]) / statistics.median(steady[:third])
    return ratio <= MAX_TIME_RATIO, f"{ratio:.3f}"


def _is_finite(seen: Seen) -> tuple[bool, str]:
    values = (*seen.loss, *seen.gradient_norm)
    num_bad = sum(not (value is not None and math.isfinite(value)) for value in values)
    num_skipped = sum(seen.is_skipped)
    return num_bad == num_skipped == 0, f"{num_bad}, {num_skipped} skipped"


def _is_clipped(seen: Seen) -> tuple[bool, str]:
    largest = _largest(seen.clipped_norm)
    return largest <= seen.clip_norm * (1 + CLIP_TOLERANCE), f"{largest:.3f} of {seen.clip_norm:g}"


def _is_bounded(seen: Seen) -> tuple[bool, str]:
    largest_input, largest_hidden = _largest(seen.gru_input), _largest(seen.gru_hidden)
    is_bounded = 0 < largest_input <= MAX_GRU_INPUT and 0 < largest_hidden <= 1
    return is_bounded, f"{largest_input:.2f}, {largest_hidden:.3f}"


def _largest(values: list[float]) -> float:
    """The largest value; NaN where any is NaN, which Python's own `max` passes over."""
    return math.nan if any(map(math.isnan, values)) else max(values)


def _loss_falls(seen: Seen) -> tuple[bool, str]:
    tenth = max(1, len(seen.loss) // 10)
    first, last = statistics.mean(seen.loss[:tenth]), statistics.mean(seen.loss[-tenth:])
    return last < first, f"{first:.3f} to {last:.3f}"


def _memory_is_level(seen: Seen) -> tuple[bool, str]:
    """Theil-Sen on block minima, as efprof's own audits judge growth.

    A long phase must show no rise at all, as far as its interval tells; over a few hundred steps the interpreter's own
    caches still fill, and only what a kept tensor would take in every step counts.
    """
    start = int(MEMORY_WARM_UP_SHARE * len(seen.retained_bytes))
    trend = theil_sen(block_minima([(step, round(size)) for step, size in enumerate(seen.retained_bytes)][start:]))
    most = 0 if len(seen.retained_bytes) >= LONG_PHASE_STEPS else MAX_SHORT_SLOPE
    return trend.low <= most, f"{trend.slope:.1f} ({trend.low:.1f} to {trend.high:.1f})"
