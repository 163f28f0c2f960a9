"""What one thing held at every count, and what these numbers say: it leaks, is bounded, may still be filling, or no one
can tell.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from efprof.units import format_bytes

Verdict = Literal["leak", "filling", "thin", "bounded"]

LEAST_RISES: Final = 2
"""From count to count: three counts, as one of two may have met what is let go again."""
LEAST_EMPTIED: Final = 0.5
"""Of what it held: so much is taken out where something is cleared or trimmed, not where batches differ in size."""
UNSTEADY: Final = 0.1
"""Of the whole rise: falls that are no larger come of entries that differ in size."""
LEAST_LAST_RATE: Final = 0.6
"""Of the rate before: what fills up adds less and less. A cache of the samples drawn by chance comes to a half or less
where the steps between two counts double."""
CHANCE: Final = 2.0
"""Standard deviations: entries that come now and then, as caught errors, are as many as their root says."""
LEAST_IDLE: Final = 0.5
"""Of the widest gap between two counts that it rose across: something fed that seldom may stand still for less."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """What it held after a step: entries, and bytes; `is_least` where it may have been more."""

    step: int
    length: int
    num_bytes: int
    is_least: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """Bytes per step from the first count to the last, between the slowest and the fastest pair of neighbours."""

    slope: float
    low: float
    high: float


def rate_of(sizes: Sequence[Size]) -> Rate:
    """Of at least two counts after different steps."""
    first, last = sizes[0], sizes[-1]
    slope = (last.num_bytes - first.num_bytes) / max(1, last.step - first.step)
    rates = [slope, *_rates(sizes)]
    return Rate(slope=slope, low=min(rates), high=max(rates))


def judged(sizes: Sequence[Size], *, least_rises: int = LEAST_RISES) -> tuple[Verdict, str]:
    """The verdict, and why it is no leak, as a clause: `it fell from 80 MiB to 1 MiB after step 120`."""
    rise = sizes[-1].num_bytes - sizes[0].num_bytes
    falls = [(one, later) for one, later in pairwise(sizes) if later.num_bytes < one.num_bytes]
    for before, after in falls:
        if before.num_bytes - after.num_bytes >= LEAST_EMPTIED * before.num_bytes:
            fell = f"it fell from {format_bytes(before.num_bytes)} to {format_bytes(after.num_bytes)}"
            return "bounded", f"{fell} between the counts after steps {before.step:,} and {after.step:,}"
    if rise <= 0:
        return "bounded", "it holds no more at the last count than at the first"
    idle_since = _idle_since(sizes)
    if idle_since is not None:
        return "bounded", f"it has not grown since step {idle_since:,}"
    if any(before.num_bytes - after.num_bytes > UNSTEADY * rise for before, after in falls):
        return "thin", "it grew and shrank from count to count"
    if sum(later.num_bytes > one.num_bytes for one, later in pairwise(sizes)) < least_rises:
        return "thin", "it was counted to grow only once"
    if _is_slower(sizes):
        return "filling", "it grew ever slower from count to count, as what fills up does"
    return "leak", ""


def _idle_since(sizes: Sequence[Size]) -> int | None:
    """The first step after which it was as large as at the end, where it then stood still for long enough to tell."""
    rises = [(one, later) for one, later in pairwise(sizes) if later.num_bytes > one.num_bytes]
    if not rises:
        return None
    reached = rises[-1][1].step
    widest = max(later.step - one.step for one, later in rises)
    idle = sizes[-1].step - reached
    return reached if idle > 0 and idle >= LEAST_IDLE * widest else None


def _is_slower(sizes: Sequence[Size]) -> bool:
    """Whether less was added in the end than the rate before says, by more than chance where entries come at random."""
    spaced = _spaced(sizes)
    if len(spaced) < 3 or spaced[-1].is_least:
        return False
    before, middle, last = spaced[-3:]
    longer = (last.step - middle.step) / (middle.step - before.step)
    expected, added = longer * (middle.num_bytes - before.num_bytes), last.num_bytes - middle.num_bytes
    entries, more = longer * (middle.length - before.length), last.length - middle.length
    is_chance = entries > 0 and entries - more <= CHANCE * math.sqrt(entries)
    return added < LEAST_LAST_RATE * expected and not is_chance


def _rates(sizes: Sequence[Size]) -> list[float]:
    """Bytes per step between neighbours."""
    return [(later.num_bytes - one.num_bytes) / (later.step - one.step) for one, later in pairwise(_spaced(sizes))]


def _spaced(sizes: Sequence[Size]) -> list[Size]:
    """Without a count soon after another, by the distance before: what an entry more or less does to it is too much."""
    kept = [sizes[0]]
    for size in sizes[1:]:
        is_near = len(kept) > 1 and size.step - kept[-1].step < LEAST_IDLE * (kept[-1].step - kept[-2].step)
        if size.step > kept[-1].step and not is_near:
            kept.append(size)
    return kept
