"""What fills memory at the run's highest recorded instant, what each way to lower it would leave, and the evidence."""

import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Self

from efprof.artifacts.steps import StepRecord
from efprof.facts.peak.backward_rise import BackwardJump
from efprof.facts.peak.live_memory import (
    CATEGORIES,
    Category,
    Chain,
    LiveWindow,
    categories_of,
    chains_of,
    windows_placed,
)
from efprof.facts.run.run import Run
from efprof.facts.run.run_limits import MemoryFailure
from efprof.facts.source.loops import loop_around
from efprof.facts.source.sources import Sources, place_of, split_site
from efprof.facts.steps.step_times import StepTimes
from efprof.model import Bar, CodeEdit, Fix, MemoryMap, Narrative, NotRecorded, Table, ThinEvidence, frozen_dataclass
from efprof.units import format_bytes, format_ms, with_capital

Owner = tuple[str | None, Category]
"""The user's line, None where there is none, and what its memory is for."""

SCALING: tuple[Category, ...] = ("activations", "inputs", "work space")
"""What grows with the batch."""

MAX_PARTS = 16
"""Micro-batches of a sixteenth leave most devices idle."""

MIN_SAVED = 0.02
"""Of the peak: a way that saves less is none."""

SPARE_SHARE = 0.2
"""Of what a step needed for which memory ran out: with so much less it is to do. Where no recorded peak comes as near
to it, another kind of step failed, or memory had grown since."""

WITH_BUDGET = "'efprof report --budget 24GiB' tells how the recorded peak comes to stay below that"

MAX_BARS, MIN_BAR = 8, 0.005
"""The second as a share of the peak: less is not seen."""


@frozen_dataclass
class PeakReduction:
    """One way to a lower peak; `extra_ms` is what it adds to a step, as far as is known.

    `site` is that of the call to checkpoint; `is_offered` where it leaves the numbers as they are.
    """

    name: str
    peak_bytes: int
    extra_ms: float = 0.0
    site: str | None = None
    is_offered: bool = True


@frozen_dataclass
class PeakComposition:
    """The window with the highest peak; `before_bytes` were there when it began.

    `categories` has one entry for each event of the window, `at_peak` the bytes of each alive at the peak.
    """

    window: LiveWindow
    before_bytes: int
    categories: tuple[Category, ...]
    at_peak: dict[Category, int]
    ways: tuple[PeakReduction, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded without an allocation window whose memory at its start is known."""
        placed = [(window, before) for window, before in windows_placed(run) if before is not None]
        if not placed:
            raise NotRecorded("no allocation window lies in a step whose memory was read; record more steps.")
        window, before = max(placed, key=lambda one: one[0].peak_bytes + one[1])
        categories = categories_of(window)
        at_peak: Counter[Category] = Counter(dict.fromkeys(CATEGORIES, 0))
        for block in window.alive_after(window.peak_index):
            at_peak[categories[block]] += window.events[block].num_bytes
        samples = [record.samples for record in run.steps if record.samples]
        return cls(
            window=window,
            before_bytes=before,
            categories=categories,
            at_peak=dict(at_peak),
            ways=tuple(_ways(run, window, categories, before, samples)),
        )

    @property
    def largest(self) -> tuple[Category, int]:
        """The category with most bytes at the peak, and these."""
        return max(self.at_peak.items(), key=lambda item: item[1])

    @property
    def peak_bytes(self) -> int:
        """The highest recorded instant, with what was there before the window."""
        return self.before_bytes + self.window.peak_bytes


def budget_after_failure(run: Run, peak: PeakComposition) -> int:
    """What the recorded peak would have to stay below for the step that ran out of memory to be served.

    Raises ThinEvidence where the recorded peak is not that of such a step, NotRecorded where nothing tells of it.
    """
    failure = run.get(MemoryFailure)
    if failure.in_use_bytes is None or failure.requested_bytes is None or failure.rank_folder != run.rank_folder:
        raise ThinEvidence(f"how much memory the failed step of this rank needed is not known; {WITH_BUDGET}.")
    needed = failure.in_use_bytes + failure.requested_bytes
    if peak.peak_bytes < (1 - SPARE_SHARE) * needed:
        raise ThinEvidence(
            f"step {failure.step:,}, in which memory ran out, needed {format_bytes(needed)}, and no window shows more "
            f"than {format_bytes(peak.peak_bytes)}: it was no step like the recorded ones; {WITH_BUDGET}."
        )
    return round(peak.peak_bytes - SPARE_SHARE * max(needed, peak.peak_bytes))


def peak_bars(run: Run, peak: PeakComposition, blamed: str | None) -> MemoryMap:
    bars = [
        Bar(
            label=f"{'no line of yours' if site is None else place_of(site)} ({category})",
            num_bytes=size,
            is_highlighted=site is not None and site == blamed,
        )
        for (site, category), size in most_by_line(run, peak, blamed)[:MAX_BARS]
    ]
    bars.append(Bar(label="there before: parameters, optimizer state and all else", num_bytes=peak.before_bytes))
    seen = [bar for bar in bars if bar.num_bytes >= MIN_BAR * peak.peak_bytes]
    return MemoryMap(title="What is alive at the peak", bars=tuple(sorted(seen, key=lambda bar: -bar.num_bytes)))


def table_of_ways(peak: PeakComposition, budget_bytes: int) -> Table:
    return Table.of(
        f"Ways to a lower peak than {format_bytes(peak.peak_bytes)}; {format_bytes(budget_bytes)} is wished for",
        {"what": "", "predicted peak": "bytes", "added to a step, about": "ms", "stays below": ""},
        (
            (way.name, way.peak_bytes, way.extra_ms, "yes" if way.peak_bytes <= budget_bytes else "no")
            for way in sorted(peak.ways, key=lambda way: way.peak_bytes)
        ),
    )


def lower_peak(peak: PeakComposition, budget: int, way: PeakReduction | None, edit: CodeEdit | None) -> Fix:
    """The chosen way in words, what it leaves and costs, and the edit where it is known to the letter."""
    if peak.before_bytes > budget:
        return Fix.by_hand(
            f"No batch comes below the budget: {format_bytes(peak.before_bytes)} were there before the step. These are "
            "parameters and optimizer state, and on a CPU Python and torch (about 120 MiB)."
        )
    if way is None:
        return Fix.by_hand("Make the batch smaller: nothing else was found that lowers the peak.")
    after = f": {format_bytes(way.peak_bytes)} at the peak"
    cost = f", {format_ms(way.extra_ms)} more per step" if way.extra_ms else ""
    missing = "" if way.peak_bytes <= budget else ". That alone is not enough: make the batch smaller as well"
    summary = f"{with_capital(way.name)}{after}{cost}{missing}."
    return Fix.by(edit, "review", summary, "sums are taken in another order")


def how_peak_is_known(peak: PeakComposition) -> Narrative:
    return Narrative.of(
        "Memory must hold the highest instant of a step; this is what it is made of. Activations are what the "
        "forward pass keeps for backward, work space what ends within its own stage.",
        f"Every allocation and release of {peak.window.name} was replayed in order. For checkpointing, what is "
        "made beneath a line was taken away from where forward makes it up to where its backward begins, but for "
        "what the call returns; for micro-batches, all that grows with the batch was divided.",
        "The last tensor a call makes is taken for what it returns, and memory is taken to grow with the batch in "
        "proportion. Micro-batches change what batch normalisation sees; bfloat16 changes the numbers themselves. "
        "What was there before the window is counted but not known by line.",
    )


def _ways(
    run: Run, window: LiveWindow, categories: tuple[Category, ...], before: int, samples: list[int]
) -> Iterable[PeakReduction]:
    peak = window.peak_bytes
    least = MIN_SAVED * (before + peak)
    yield from (
        way for way in _checkpointing(run, window, categories, before) if before + peak - way.peak_bytes > least
    )
    scaling = [
        block for block, category in enumerate(categories) if category in SCALING and window.events[block].num_bytes > 0
    ]
    parts = 2
    while parts <= min(MAX_PARTS, min(samples, default=1)):
        left = window.peak_without(scaling, 1 - 1 / parts)
        yield PeakReduction(name=f"accumulate gradients over {parts} micro-batches", peak_bytes=before + left)
        parts *= 2
    halved = before + window.peak_without((block for block in scaling if categories[block] != "inputs"), 0.5)
    yield PeakReduction(name="autocast to bfloat16, at best", peak_bytes=halved, is_offered=False)
    jump = run.get(BackwardJump)
    if jump.window is window and (work := jump.guilty) is not None:
        num_parts = jump.num_chunks(work)
        saved = jump.saved_bytes(work.split_blocks, num_parts)
        if saved > least:
            name = f"do the work at {place_of(work.site)} in {num_parts} parts"
            yield PeakReduction(name=name, peak_bytes=before + peak - saved)


def _checkpointing(
    run: Run, window: LiveWindow, categories: tuple[Category, ...], before: int
) -> Iterable[PeakReduction]:
    sources = run.get(Sources)
    full = [record for record in run.steps if record.is_full]
    chains, share = chains_of(window, sources), _share_outside(full, window)
    for region in regions_of(window, categories, chains, sources, run.get(StepTimes).backward_site):
        times = round(len(region.calls) / region.num_steps)
        often = f", run {times} times a step" if times > 1 else ""
        yield PeakReduction(
            name=f"checkpoint the call at {place_of(region.site)}{often}",
            peak_bytes=before + peak_checkpointed(window, region, chains),
            extra_ms=region.duration_ns / region.num_steps / 1e6 * share,
            site=region.site,
        )


def _share_outside(records: Iterable[StepRecord], window: LiveWindow) -> float:
    """What a forward pass takes outside the window, on a device too, over the host's time for one in it."""
    inside: list[float] = []
    outside: list[float] = []
    steps = {stretch.step for stretch in window.stretches}
    for record in records:
        spans = [span for span in record.spans if span.stage == "forward"]
        host_us = sum(span.end_us - span.start_us for span in spans)
        if record.step in steps:
            inside.append(host_us)
        else:
            outside.append(max(host_us, sum(span.device_us or 0.0 for span in spans)))
    seen = statistics.median(inside) if inside else 0.0
    return statistics.median(outside) / seen if outside and seen else 1.0


def most_by_line(run: Run, peak: PeakComposition, preferred: str | None = None) -> list[tuple[Owner, int]]:
    """Bytes by owner, most first; `preferred` is a line that owns all that is made beneath it."""
    sources, window = run.get(Sources), peak.window
    sizes = Counter[Owner]()
    chains = chains_of(window, sources)
    for block in window.alive_after(window.peak_index):
        lines = chains[block]
        site = preferred if preferred in lines else lines[-1] if lines else None
        sizes[site, peak.categories[block]] += window.events[block].num_bytes
    return sizes.most_common()


@frozen_dataclass
class Region:
    """What runs beneath one line of the user's, in all steps of a window, for `duration_ns` in all.

    Under activation checkpointing a call keeps what it returns; the rest of it is made anew where its backward begins.
    `calls` are its executions, each by the blocks that outlive the forward pass; the last of them is taken for what the
    call returns, and the others are what checkpointing would not keep.
    """

    site: str
    calls: tuple[tuple[int, ...], ...]
    duration_ns: int
    num_steps: int


def regions_of(
    window: LiveWindow,
    categories: Sequence[Category],
    chains: Sequence[Chain],
    sources: Sources,
    loop_site: str | None,
) -> list[Region]:
    """Lines with activations beneath them whose calls can be told apart; `loop_site` is where the training loops."""
    found: dict[str, list[tuple[int, ...]]] = {}
    durations = Counter[str]()
    unclear = set[str]()
    steps = sorted({stretch.step for stretch in window.stretches if stretch.stage == "forward"})
    for step in steps:
        for site, chain, events in _lines_of(window, step, chains):
            executions = _executions(window, _within(chain, loop_site), events, sources)
            if executions is None:
                unclear.add(site)
            for execution in executions or ():
                made = (index for index in execution if window.events[index].num_bytes > 0)
                blocks = tuple(index for index in made if categories[index] == "activations")
                if len(blocks) > 1:
                    durations[site] += window.events[execution[-1]].time_ns - window.events[execution[0]].time_ns
                    found.setdefault(site, []).append(blocks)
    return [
        Region(site=site, calls=tuple(calls), duration_ns=durations[site], num_steps=len(steps))
        for site, calls in found.items()
        if site not in unclear
    ]


def peak_checkpointed(window: LiveWindow, region: Region, chains: Sequence[Chain]) -> int:
    """The window's peak, were each call of the region checkpointed."""
    again = [index for index, event in enumerate(window.events) if event.is_backward and region.site in chains[index]]
    parts: list[tuple[int, int, float]] = []
    before = -1
    for call in reversed(region.calls):
        released = min(int(window.released_at[block]) for block in call[:-1])
        if released < before or before < call[0]:
            before = max(call)
        place = bisect_right(again, before)
        begins = min(released, again[place]) if place < len(again) else released
        before = released
        parts += [(block, begins, 1.0) for block in call[:-1]]
    return window.peak_less(parts)


def _lines_of(window: LiveWindow, step: int, chains: Sequence[Chain]) -> Iterator[tuple[str, Chain, list[int]]]:
    """Each line of a step's forward passes, the lines that lead to it, and the events beneath it in order."""
    beneath: dict[Chain, list[int]] = {}
    for stretch in window.stretches:
        if stretch.stage == "forward" and stretch.step == step:
            for index in range(stretch.first, stretch.end):
                if not window.events[index].is_backward:
                    for depth in range(1, len(chains[index]) + 1):
                        beneath.setdefault(chains[index][:depth], []).append(index)
    by_site: dict[str, list[Chain]] = {}
    for chain in beneath:
        by_site.setdefault(chain[-1], []).append(chain)
    for site, alike in by_site.items():
        yield site, min(alike, key=len), sorted({event for chain in alike for event in beneath[chain]})


def _within(chain: Chain, loop_site: str | None) -> Chain:
    """The lines below the function that trains: its loop runs once per step."""
    function = loop_site and split_site(loop_site)[::2]  # its file and its name
    places = [at for at, site in enumerate(chain) if split_site(site)[::2] == function]
    return chain[places[-1] + 1 :] if places else chain[1:]


def _executions(window: LiveWindow, chain: Chain, events: list[int], sources: Sources) -> list[list[int]] | None:
    """The events of each time that the line was run; None where that cannot be told.

    `chain` leads to it from the function that trains. A line outside loops, in functions called outside loops, is run
    once; of a loop over like parts, the events repeat.
    """
    places = [split_site(site) for site in chain]
    if not any(loop_around(sources.tree(file), line) for file, line, _ in places):
        return [events]
    allocations = [index for index in events if window.events[index].num_bytes > 0]
    marks = [(window.events[index].operation, window.events[index].stack) for index in allocations]
    if not marks:
        return None
    period = _period(marks)
    starts = range(0, len(marks), period) if period else [at for at, mark in enumerate(marks) if mark == marks[0]]
    edges = [*(allocations[start] for start in starts), events[-1] + 1]
    return [[index for index in events if first <= index < end] for first, end in pairwise(edges)]


def _period(marks: Sequence[object]) -> int | None:
    """The shortest stretch that the whole is a repetition of; None where it repeats nothing."""
    count = len(marks)
    for period in range(1, count // 2 + 1):
        if count % period == 0 and all(marks[at] == marks[at - period] for at in range(period, count)):
            return period
    return None
