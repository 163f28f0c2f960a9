"""Memory through the steps of the fullest allocation window: by what it is for, and whose line made most of that."""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from efprof.artifacts.steps import StepRecord
from efprof.facts.peak.live_memory import CATEGORIES, Category, LiveWindow, categories_of, sites_of, windows_placed
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources, place_of
from efprof.model import Series, SeriesLine, StageBand, frozen_dataclass
from efprof.units import format_bytes

STAGE_OF: dict[Category, str] = {
    "activations": "forward",
    "gradients": "backward",
    "optimizer state": "optimizer",
    "inputs": "data",
}
"""The stage that makes it; work space is made in all of them."""

Owner = tuple[Category, str | None]
"""What memory is for, and the user's line (`file:line`) that made it; None where there is none."""


@frozen_dataclass
class WindowMemory:
    """The picture of the window with the highest peak, one whose memory at its start is known before all others."""

    series: Series

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded where no allocations were recorded, UnreadableInput where a window is broken."""
        window, before = max(
            windows_placed(run), key=lambda one: (one[1] is not None, one[0].peak_bytes + (one[1] or 0))
        )
        steps = sorted({stretch.step for stretch in window.stretches})
        inside = [record for record in run.steps if record.step in steps]
        start_ns = inside[0].started_ns if inside else window.events[0].time_ns
        bands = tuple(_bands(inside, start_ns))
        # Drawn from the begin of the first stage to the end of the last.
        first = min((stretch.first for stretch in window.stretches), default=0)
        end = max((stretch.end for stretch in window.stretches), default=len(window.events))
        drawn = drawn_instants(window.live_bytes, first, end)
        times = [(window.events[place].time_ns - start_ns) / 1e6 for place in drawn]
        begin_ms = min([times[0], *(band.start for band in bands)])
        times_ms = (begin_ms, *times, max([times[-1], *(band.end for band in bands)]))
        places = np.array([first - 1, *drawn, end - 1])
        owners, alive = _alive_by_owner(window, places, run.get(Sources))
        which = f"step {steps[0]:,}" if steps else window.name
        if len(steps) > 1:
            which = f"steps {steps[0]:,} to {steps[-1]:,}"
        held = []
        if before is not None:
            y = (float(before),) * len(times_ms)
            held.append(SeriesLine(label="held before", x=times_ms, y=y, stage="other"))
        series = Series(
            title=f"Memory by what it is for, in {which}",
            x_label="time in the window",
            x_unit="ms",
            y_label="alive",
            y_unit="bytes",
            lines=(*held, *_category_lines(owners, alive, times_ms)),
            is_stacked=True,
            is_stepped=True,
            bands=bands,
        )
        return cls(series=series)


def _bands(records: Sequence[StepRecord], start_ns: int) -> Iterator[StageBand]:
    for record in records:
        offset_ms = (record.started_ns - start_ns) / 1e6
        in_order = sorted(record.spans, key=lambda span: span.start_us)
        for stage, spans in groupby(in_order, key=lambda span: span.stage):
            joined = list(spans)
            yield StageBand(
                start=offset_ms + joined[0].start_us / 1e3,
                end=offset_ms + joined[-1].end_us / 1e3,
                stage=stage,
            )


def _category_lines(
    owners: Sequence[Owner], alive: NDArray[np.float64], times_ms: tuple[float, ...]
) -> Iterator[SeriesLine]:
    """Bytes alive of each category, as far as there are any."""
    for category in CATEGORIES:
        rows = [row for row, owner in enumerate(owners) if owner[0] == category]
        sizes = alive[rows].sum(axis=0)
        if not sizes.any():
            continue
        named = [row for row in rows if owners[row][1] is not None]
        tops = _tops([str(owners[row][1]) for row in named], alive[named])
        yield SeriesLine(
            label=category,
            x=times_ms,
            y=tuple(map(float, sizes)),
            notes=tuple(top if size else "" for size, top in zip(sizes, tops, strict=True)),
            stage=STAGE_OF.get(category),
        )


def _alive_by_owner(
    window: LiveWindow, places: NDArray[np.int64], sources: Sources
) -> tuple[list[Owner], NDArray[np.float64]]:
    """Who made anything in the window, and what each has after each of these events, shape [owners, places]."""
    categories, sites = categories_of(window), sites_of(window, sources)
    lines = [None if site is None else place_of(site) for site in sites]
    blocks = np.flatnonzero(window.released_at >= 0).tolist()
    numbers: dict[Owner, int] = {}
    made_by = [numbers.setdefault((categories[block], lines[block]), len(numbers)) for block in blocks]
    made = np.array([made_by, blocks, [window.events[block].num_bytes for block in blocks]], dtype=np.int64)
    gone = np.array([made_by, window.released_at[blocks], -made[2]], dtype=np.int64)
    return list(numbers), sums_at(places, np.hstack([made, gone]), len(numbers))


def _tops(lines: Sequence[str], alive: NDArray[np.float64]) -> Iterator[str]:
    """At each instant the line that has most, and how many bytes."""
    for place in range(alive.shape[1]):
        row = int(alive[:, place].argmax()) if lines else 0
        num_bytes = int(alive[row, place]) if lines else 0
        yield f"{lines[row]} has {format_bytes(num_bytes)} of it" if num_bytes else "none of your lines made it"


MAX_INSTANTS = 300
"""Each may have a note for every curve, and a picture so wide still loses little."""


def drawn_instants(values: NDArray[np.int64], first: int, end: int) -> NDArray[np.int64]:
    """Places of `values[first:end]` to draw: all, or each stretch's extremes and the ends; two are left to add."""
    if end - first <= MAX_INSTANTS - 2:
        return np.arange(first, end)
    edges = np.linspace(first, end, (MAX_INSTANTS - 4) // 2 + 1).astype(np.int64)
    found = {first, end - 1}
    for start, stop in pairwise(edges):
        stretch = values[start:stop]
        found |= {int(start + np.argmin(stretch)), int(start + np.argmax(stretch))}
    return np.array(sorted(found))


def sums_at(places: NDArray[np.int64], changes: NDArray[np.int64], num_owners: int) -> NDArray[np.float64]:
    """What each owner has after each of these places, which are in order, shape [owners, places].

    `changes`, shape [3, changes], say whose bytes change, at which place of the history, and by how much.
    """
    owners, at, amounts = changes
    width = len(places) + 1  # a change behind the last place is seen at none
    seen_at = owners * width + np.searchsorted(places, at)
    total = np.bincount(seen_at, weights=amounts, minlength=num_owners * width)
    sums: NDArray[np.float64] = np.cumsum(total.reshape(num_owners, width), axis=1, dtype=np.float64)[:, :-1]
    return sums
