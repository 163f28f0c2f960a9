"""What fills memory at the run's highest recorded instant, and what each way to lower it would leave."""

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, Self

from efprof.artifacts.steps import StepRecord, read_steps
from efprof.facts.backward_jump import BackwardJump
from efprof.facts.block_categories import CATEGORIES, Category, categories_of
from efprof.facts.live_memory import LiveMemory, LiveWindow
from efprof.facts.memory_failure import MemoryFailure
from efprof.facts.peak_regions import chains_of, peak_checkpointed, regions_of
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.facts.window_peaks import bytes_before
from efprof.model import NotRecorded, ThinEvidence
from efprof.units import format_bytes

Owner = tuple[str | None, Category]
"""The user's line, None where there is none, and what its memory is for."""

SCALING: Final[tuple[Category, ...]] = ("activations", "inputs", "work space")
"""What grows with the batch."""

MOST_PARTS: Final = 16
"""Micro-batches of a sixteenth leave most devices idle."""

LEAST_SAVED: Final = 0.02
"""Of the peak: a way that saves less is none."""

SPARE_SHARE: Final = 0.2
"""Of what a step needed for which memory ran out: with so much less it is to do. Where no recorded peak comes as near
to it, another kind of step failed, or memory had grown since; what a window shows was served, so that much would be."""

WITH_BUDGET: Final = "'efprof report --budget 24GiB' tells how the recorded peak comes to stay below that"


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way to a lower peak; `extra_ms` is what it adds to a step, as far as is known."""

    kind: Literal["checkpoint", "accumulate", "bfloat16", "parts"]
    peak_bytes: int
    extra_ms: float
    site: str | None = None
    """Of checkpointing and of work in parts."""
    num_parts: int = 1
    """Micro-batches, or parts of the work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PeakComposition:
    """The window with the highest peak; `before_bytes` were there when it began, `held` tells what some of them are.

    `categories` has one entry for each event of the window, `at_peak` the bytes of each alive at the peak.
    """

    window: LiveWindow
    before_bytes: int
    categories: tuple[Category, ...]
    at_peak: dict[Category, int]
    held: dict[str, int]
    samples: int
    ways: tuple[Way, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded without an allocation window whose memory at its start is known."""
        records = read_steps(run.rank_folder)[0]
        known = [(window, bytes_before(window, records)) for window in run.get(LiveMemory).windows]
        placed = [(window, before) for window, before in known if before is not None]
        if not placed:
            raise NotRecorded("no allocation window lies in a step whose memory was read; record more steps.")
        window, before = max(placed, key=lambda one: one[0].peak_bytes + one[1])
        categories = categories_of(window)
        at_peak: Counter[Category] = Counter(dict.fromkeys(CATEGORIES, 0))
        for block in window.alive_after(window.peak_index):
            at_peak[categories[block]] += window.events[block].num_bytes
        samples = [record.samples for record in records if record.samples]
        return cls(
            window=window,
            before_bytes=before,
            categories=categories,
            at_peak=dict(at_peak),
            held=_held(records, before),
            samples=round(statistics.median(samples)) if samples else 0,
            ways=tuple(_ways(run, window, categories, before, samples)),
        )

    @property
    def peak_bytes(self) -> int:
        """The highest recorded instant, with what was there before the window."""
        return self.before_bytes + self.window.peak_bytes

    def within(self, budget_bytes: int) -> list[Way]:
        """Those that stay below a budget, the cheapest first."""
        return sorted((way for way in self.ways if way.peak_bytes <= budget_bytes), key=lambda way: way.extra_ms)


def budget_after_failure(run: Run, peak: PeakComposition) -> int:
    """What the recorded peak would have to stay below for the step that ran out of memory to be served.

    Raises ThinEvidence where the recorded peak is not that of such a step, NotRecorded where nothing tells of it.
    """
    failure = run.get(MemoryFailure)
    if failure.rank_folder != run.rank_folder:
        raise ThinEvidence(
            f"memory ran out on {failure.rank_folder.name}, and the windows looked at are those of "
            f"{run.rank_folder.name}; {WITH_BUDGET}."
        )
    if failure.in_use_bytes is None or failure.requested_bytes is None:
        raise ThinEvidence(f"how much memory the failed step needed is not known from its error; {WITH_BUDGET}.")
    needed = failure.in_use_bytes + failure.requested_bytes
    if peak.peak_bytes < (1 - SPARE_SHARE) * needed:
        raise ThinEvidence(
            f"step {failure.step:,}, in which memory ran out, needed {format_bytes(needed)} or more, and no window "
            f"shows more than {format_bytes(peak.peak_bytes)}: what filled memory then was not recorded; {WITH_BUDGET}."
        )
    return round(peak.peak_bytes - SPARE_SHARE * max(needed, peak.peak_bytes))


def _held(records: Iterable[StepRecord], before: int) -> dict[str, int]:
    """What is known of the older blocks: gradients are as large as their parameters, and the first step makes state."""
    found = {}
    gradients = max((record.gradient_bytes or 0 for record in records), default=0)
    if 0 < gradients <= before:
        found["parameters"] = gradients
    first = next((record for record in records if record.memory), None)
    sizes = {here.boundary: here.allocated_bytes for here in first.memory} if first else {}
    state = sizes.get("post_optimizer_step", 0) - sizes.get("post_backward", 0)
    if first is not None and first.step == 0 and 0 < state <= before - gradients:
        found["optimizer state"] = state
    return found


def _ways(
    run: Run, window: LiveWindow, categories: tuple[Category, ...], before: int, samples: list[int]
) -> Iterable[Way]:
    peak = window.peak_bytes
    least = LEAST_SAVED * (before + peak)
    yield from (
        way for way in _checkpointing(run, window, categories, before) if before + peak - way.peak_bytes > least
    )
    scaling = [
        block for block, category in enumerate(categories) if category in SCALING and window.events[block].num_bytes > 0
    ]
    parts = 2
    while parts <= min(MOST_PARTS, min(samples, default=1)):
        left = window.peak_without(scaling, 1 - 1 / parts)
        yield Way(kind="accumulate", peak_bytes=before + left, extra_ms=0.0, num_parts=parts)
        parts *= 2
    made = [block for block in scaling if categories[block] != "inputs"]
    yield Way(kind="bfloat16", peak_bytes=before + window.peak_without(made, 0.5), extra_ms=0.0)
    jump = run.get(BackwardJump)
    made_by = jump.guilty if jump.window is window else None
    if made_by is not None:
        num_parts = jump.num_chunks(made_by)
        saved = jump.saved_bytes(made_by.split_blocks, num_parts)
        if saved > least:
            yield Way(
                kind="parts", peak_bytes=before + peak - saved, extra_ms=0.0, site=made_by.site, num_parts=num_parts
            )


def _checkpointing(run: Run, window: LiveWindow, categories: tuple[Category, ...], before: int) -> Iterable[Way]:
    sources = run.get(Sources)
    records = read_steps(run.rank_folder)[0]
    loop_site = next((record.backward_site for record in reversed(records) if record.backward_site), None)
    chains, share = chains_of(window, sources), _share_outside(records, window)
    for region in regions_of(window, categories, chains, sources, loop_site):
        left = peak_checkpointed(window, region, chains)
        yield Way(
            kind="checkpoint",
            peak_bytes=before + left,
            extra_ms=region.ns_per_step / 1e6 * share,
            site=region.site,
            num_parts=round(region.calls_per_step),
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
    sizes: Counter[Owner] = Counter()
    for block in window.alive_after(window.peak_index):
        event = window.events[block]
        stack = event.forward_stack if event.is_backward else event.stack
        lines = [site for site in stack if sources.is_user_code(site)]
        site = preferred if preferred in lines else lines[-1] if lines else None
        sizes[site, peak.categories[block]] += event.num_bytes
    return sizes.most_common()
