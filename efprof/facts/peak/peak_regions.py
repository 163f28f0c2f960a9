"""Lines of the forward pass by the activations made beneath them, call by call, and what checkpointing one would save.

Under activation checkpointing a call keeps what it returns; the rest of it is made anew where its backward begins.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from efprof.facts.peak.live_memory import Category, Chain, LiveWindow
from efprof.facts.source.loops import loop_around
from efprof.facts.source.sources import Sources, split_site
from efprof.model import frozen_dataclass


@frozen_dataclass
class Region:
    """What runs beneath one line of the user's, in all steps of a window, for `duration_ns` in all.

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
