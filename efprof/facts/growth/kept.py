"""One thing that kept more at a later count than at an earlier one, what shows it, and what its sizes say."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from efprof.artifacts.holders import Change
from efprof.facts.growth.trend import Trend
from efprof.model import Series, SeriesLine, Table, frozen_dataclass
from efprof.model.severity import DAY_S
from efprof.units import format_bytes, format_count

Kind = Literal["graphs", "tensors", "objects"]
Verdict = Literal["leak", "filling", "thin", "bounded"]

MIN_RATE: dict[Kind, float] = {"graphs": 512.0, "tensors": 8192.0, "objects": 1024.0}
"""Bytes per step: less is no leak to speak of, unless steps are so short that it fills memory within a day. A loss with
its graph takes a kilobyte, and no sound program keeps one each step; of detached scalars 8 KiB are less than 1 GiB in
100,000 steps."""
LARGER_STORAGE = 0.5
"""Of the storages, by the tensors that keep them: less is worth a copy."""
MAX_NUMBER_BYTES = 16
MAX_SHOWN = 5
"""Rows, and lines of each."""
MIN_RISES = 2
"""From count to count: three counts, as one of two may have met what is let go again."""
MIN_EMPTIED = 0.5
"""Of what it held: so much is taken out where something is cleared or trimmed, not where batches differ in size."""
UNSTEADY = 0.1
"""Of the whole rise: falls that are no larger come of entries that differ in size."""
MIN_LAST_RATE = 0.6
"""Of the rate before: what fills up adds less and less. A cache of the samples drawn by chance comes to a half or less
where the steps between two counts double."""
CHANCE = 2.0
"""Standard deviations: entries that come now and then, as caught errors, are as many as their root says."""
MIN_IDLE = 0.5
"""Of the widest gap between two counts that it rose across: something fed that seldom may stand still for less."""


@frozen_dataclass
class Size:
    """What it held after a step: entries, and bytes; `is_least` where it may have been more."""

    step: int
    length: int
    num_bytes: int
    is_least: bool = False


@frozen_dataclass
class RetainedTensors:
    """A holder, or a container of what is no tensor, that held more at a later count than at an earlier one.

    `fed` and `emptied` are the lines that were seen to put in, the most first, and to take out; `unseen` says why none
    was. `against` says why it is no leak, or why nobody can tell. `aliases` are other paths to the same memory. `path`
    is None where nobody knows a name for it; `name` is as the program spells it; `scope` and `entry` are as counted. Of
    the `rate`, `tensor_rate` bytes per step are the tensors' storages and `value_rate` what the tensors take of them,
    which is what a copy of them without graphs keeps. At this rate memory is full in `seconds_left`, where a limit
    of its own does not end it at `most_bytes`.
    """

    path: str | None
    name: str
    scope: str | None
    owner: str | None
    file: str | None
    type: str
    kind: Kind
    sizes: tuple[Size, ...]
    rate: Trend
    verdict: Verdict
    against: str
    fed: tuple[Change, ...]
    emptied: tuple[Change, ...]
    unseen: str
    aliases: tuple[str, ...] = ()
    tensors_added: int = 0
    tensor_rate: float = 0.0
    value_rate: float = 0.0
    entry: tuple[str, ...] = ()
    seconds_left: float
    most_bytes: float

    @property
    def is_let_go(self) -> bool:
        """True if it leaks until an epoch ends: `against` says how it fell."""
        return self.verdict == "leak" and self.against != ""

    @property
    def site(self) -> str | None:
        """The line that feeds it, the one seen most often."""
        return self.fed[0].site if self.fed else None

    @property
    def is_fed_by_library(self) -> bool:
        """True if the program's line only calls what puts the entries in."""
        is_known = self.type == "cycle" or self.name.endswith("_hooks")
        return is_known or (bool(self.fed) and self.fed[0].is_within_call)

    @property
    def are_numbers(self) -> bool:
        """True if each of its tensors has the size of a number."""
        return self.value_rate * self.num_steps <= MAX_NUMBER_BYTES * max(1, self.tensors_added)

    @property
    def entries_added(self) -> int:
        """From the first count to the last."""
        return self.sizes[-1].length - self.sizes[0].length

    @property
    def num_steps(self) -> int:
        """Between the first count and the last."""
        return max(1, self.sizes[-1].step - self.sizes[0].step)

    @property
    def is_view(self) -> bool:
        """Whether its tensors are small parts of the storages that they keep."""
        return self.value_rate < LARGER_STORAGE * self.tensor_rate

    @property
    def is_large(self) -> bool:
        rate = self.rate.high if self.verdict == "bounded" else self.rate.slope
        return rate >= MIN_RATE[self.kind] or (self.verdict != "bounded" and self.seconds_left < DAY_S)


def counted_series(kept: Sequence[RetainedTensors]) -> Series:
    return Series(
        title="What each holder has",
        y_label="held",
        y_unit="bytes",
        lines=tuple(
            SeriesLine(
                label=one.path or one.name,
                x=tuple(float(size.step) for size in one.sizes),
                y=tuple(float(size.num_bytes) for size in one.sizes),
                is_highlighted=place == 0,
            )
            for place, one in enumerate(kept[:MAX_SHOWN])
        ),
    )


def kept_table(kept: Sequence[RetainedTensors]) -> Table:
    rows = (
        (
            ", ".join((one.path or one.name, *one.aliases)),
            one.type,
            " -> ".join(f"{size.length:,}" for size in one.sizes),
            one.rate.slope,
            _seen_at(one.fed) or one.unseen,
            _seen_at(one.emptied) or "no line seen",
            one.against or "nothing that was seen",
        )
        for one in kept[:MAX_SHOWN]
    )
    columns = {"held by": "", "type": "", "entries": "", "growth per step": "bytes_per_step", "fed by": ""}
    columns |= {"emptied by": "", "what speaks against a leak": ""}
    return Table.of("What grew, and the lines that were seen to change it", columns, rows)


def _seen_at(changes: Sequence[Change]) -> str:
    """`train.py:8 (6 times, within a call of a library)`."""
    within = ", within a call of a library"
    return "; ".join(
        f"{one.site.rpartition(':')[0]} ({format_count(one.times, 'time')}{within * one.is_within_call})"
        for one in changes[:MAX_SHOWN]
    )


def rate_of(sizes: Sequence[Size]) -> Trend:
    """Bytes per step from the first count to the last, between the slowest and the fastest pair of neighbours."""
    first, last = sizes[0], sizes[-1]
    slope = (last.num_bytes - first.num_bytes) / max(1, last.step - first.step)
    spaced = pairwise(_spaced(sizes))
    rates = [slope, *((later.num_bytes - one.num_bytes) / (later.step - one.step) for one, later in spaced)]
    return Trend(slope=slope, low=min(rates), high=max(rates))


def judged(sizes: Sequence[Size], changes: Sequence[Change]) -> tuple[Verdict, str]:
    """The verdict, and why it is no leak, as a clause: `it fell from 80 MiB to 1 MiB after step 120`.

    By what was seen to be taken out, and by the counts.
    """
    grew = sum(change.entries for change in changes if change.how == "grew")
    shrank = sum(change.entries for change in changes if change.how == "shrank")
    if shrank and shrank >= grew:
        return "bounded", "as many entries were seen to be taken out as were put in"
    rise = sizes[-1].num_bytes - sizes[0].num_bytes
    falls = [(one, later) for one, later in pairwise(sizes) if later.num_bytes < one.num_bytes]
    for before, after in falls:
        if before.num_bytes - after.num_bytes >= MIN_EMPTIED * before.num_bytes:
            fell = f"it fell from {format_bytes(before.num_bytes)} to {format_bytes(after.num_bytes)}"
            return "bounded", f"{fell} between the counts after steps {before.step:,} and {after.step:,}"
    if rise <= 0:
        return "bounded", "it holds no more at the last count than at the first"
    rises = [(one, later) for one, later in pairwise(sizes) if later.num_bytes > one.num_bytes]
    reached, widest = rises[-1][1].step, max(later.step - one.step for one, later in rises)
    if 0 < sizes[-1].step - reached >= MIN_IDLE * widest:  # so long tells that it stands still
        return "bounded", f"it has not grown since step {reached:,}"
    if any(before.num_bytes - after.num_bytes > UNSTEADY * rise for before, after in falls):
        return "thin", "it grew and shrank from count to count"
    if len(rises) < MIN_RISES:
        return "thin", "it was counted to grow only once"
    if _is_slower(sizes):
        return "filling", "it grew ever slower from count to count, as what fills up does"
    return "leak", ""


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
    return added < MIN_LAST_RATE * expected and not is_chance


def _spaced(sizes: Sequence[Size]) -> list[Size]:
    """Without a count soon after another, by the distance before: what an entry more or less does to it is too much.

    Of two after the same step, around the restart of a loader, the later one.
    """
    kept = [sizes[0]]
    for size in sizes[1:]:
        if size.step == kept[-1].step:
            kept[-1] = size
        is_near = len(kept) > 1 and size.step - kept[-1].step < MIN_IDLE * (kept[-1].step - kept[-2].step)
        if size.step > kept[-1].step and not is_near:
            kept.append(size)
    return kept
