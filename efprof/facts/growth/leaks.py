"""What leaks, by both kinds of evidence: things that were counted to grow, and the trend of memory."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self

from efprof.artifacts.events import LoaderBuilt, events_of
from efprof.facts.growth.kept import MAX_SHOWN, Kind, RetainedTensors, rate_of
from efprof.facts.growth.kept_growth import KeptGrowth
from efprof.facts.growth.memory_growth import MemoryGrowth, growth_evidence, growth_gain, growth_words
from efprof.facts.growth.trend import Fit, Trend
from efprof.facts.run.run import Run
from efprof.facts.run.run_limits import RunLimits
from efprof.facts.source.bounds import ATTRIBUTE, is_bounded_by_code, is_kept_by_item
from efprof.facts.source.sources import MODULE, Sources, definition_of, line_at, split_site
from efprof.facts.steps.step_times import StepTimes
from efprof.model import Examination, Finding, Fix, Gain, NotRecorded, SourceLine, ThinEvidence, frozen_dataclass
from efprof.units import format_bytes, format_count, format_interval, in_brackets

MIN_SHARE = 0.2
"""Of the slope of memory: a holder that was counted to grow once, and explains less of it, is not what was measured."""
EXPLAINED = 0.4
"""Of the slope: what is counted to grow by so much is all of it. Graphs are counted by their nodes, half of what they
take (measured: 52 %)."""
SHORT_RUN = 200
"""Steps: a buffer that the program bounds may well be no longer than that when it is full."""


@frozen_dataclass
class Leak:
    """What one line feeds, most bytes first; `is_observed` where the line was seen to do it.

    `share` is its part of the slope of memory; None where memory shows no trend, and `rate` is counted.
    """

    kept: tuple[RetainedTensors, ...]
    blame: SourceLine
    is_observed: bool
    rate: Trend
    share: float | None
    may_be_filling: bool

    @property
    def kind(self) -> Kind:
        """Graphs where any of it keeps graphs."""
        return next((one.kind for one in self.kept if one.kind == "graphs"), self.kept[0].kind)


@frozen_dataclass
class Leaks:
    """All that is told of tensors, most bytes first; `unclear` is what may be none.

    `fit` is the trend of memory, `is_growing` whether that shows a leak, of which `explained` is the share that what
    leaks was counted to grow by. Either kind of evidence may be missing, and then `missing` says why: `fit` is None, or
    `grown` is of no count.
    """

    leaks: tuple[Leak, ...]
    unclear: tuple[RetainedTensors, ...]
    grown: KeptGrowth
    fit: Fit | None
    is_growing: bool
    explained: float
    missing: str

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises ThinEvidence where there is neither kind of evidence."""
        grown, memory, missing = KeptGrowth(), None, []
        try:
            grown = run.get(KeptGrowth)
        except NotRecorded as absent:
            missing.append(str(absent))
        try:
            memory = run.get(MemoryGrowth)
        except ThinEvidence as thin:
            missing.append(str(thin))
        if not grown.num_counts and memory is None:
            raise ThinEvidence(missing[-1])
        slope = memory.fit.trend.slope if memory and memory.is_growing else 0.0
        large = [one for one in grown.holders if one.is_large]
        least = MIN_SHARE * slope  # where memory grows without end, one that was counted to grow once is enough
        told = [
            one for one in large if one.verdict == "leak" or (one.verdict == "thin" and one.rate.slope >= least > 0)
        ]
        unclear = [one for one in large if one not in told and one.verdict in ("thin", "filling")]
        counted = sum(max(0.0, rate_of(one.sizes).slope) for one in told)
        is_least = any(size.is_least for one in told for size in one.sizes)  # it may well be all
        explained = max(float(is_least), counted / slope) if slope else 0.0
        whole = counted if explained >= EXPLAINED else slope
        return cls(
            leaks=tuple(_leaks(run, told, memory.fit if memory and slope else None, whole)),
            unclear=tuple(unclear),
            grown=grown,
            fit=memory.fit if memory else None,
            is_growing=slope > 0,
            explained=explained,
            missing=" ".join(missing),
        )

    def examine(self, kind: Kind, make: Callable[[Leak], Finding]) -> Examination:
        """What leaks of a kind; raises ThinEvidence where nothing does for sure, and something may."""
        found = tuple(make(leak) for leak in self.leaks if leak.kind == kind)
        if not found:
            self.abstain_if_unclear(kind)
        return Examination(looked_at=self.looked_at(), findings=found)

    @property
    def bounded(self) -> list[RetainedTensors]:
        """What grew, and is no leak."""
        return [one for one in self.grown.holders if one.is_large and one.verdict == "bounded"]

    @property
    def is_bounded(self) -> bool:
        """Whether what grew and is bounded explains the growth of memory."""
        counted = sum(max(0.0, one.rate.slope) for one in self.bounded)
        return self.fit is not None and counted >= EXPLAINED * self.fit.trend.slope

    def looked_at(self) -> str:
        """Which evidence there was, in words, and what grew and is bounded."""
        parts = []
        if self.fit is not None:
            parts.append(f"memory retained {self.fit.looked_at}")
        if self.grown.num_counts:
            times = format_count(self.grown.num_counts, "time")
            parts.append(f"what keeps tensors, counted {times} up to step {self.grown.last_step:,}")
        told = [f"; `{one.name}` is bounded: {one.against}" for one in self.bounded[:MAX_SHOWN]]
        small = [one for one in self.grown.holders if one.verdict == "leak" and not one.is_large]
        told += [
            f"; `{one.name}` grows by {format_bytes(one.rate.slope)} per step, too little to matter"
            for one in small[:MAX_SHOWN]
        ]
        return ", and ".join(parts) + "".join(told)

    def abstain_if_unclear(self, kind: Kind) -> None:
        """Raises ThinEvidence where something of that kind grew, and may be no leak, or nothing was counted."""
        if not self.grown.num_counts and self.is_growing:
            raise ThinEvidence(f"memory grows, but what keeps it was not counted: {self.missing}")
        for one in self.unclear:
            if one.kind == kind:
                rate = format_bytes(one.rate.slope)
                filling = ": it may still be filling" if one.verdict == "filling" else ""
                raise ThinEvidence(
                    f"`{one.path or one.name}` was counted to keep {rate} more per step up to step "
                    f"{one.sizes[-1].step:,}, but {one.against}{filling}; record a longer run to tell."
                )


def _leaks(run: Run, told: Sequence[RetainedTensors], fit: Fit | None, whole: float) -> list[Leak]:
    """By their shares of the `whole` slope; what is let go again has none."""
    by_place: dict[tuple[SourceLine, bool], list[RetainedTensors]] = {}
    for one in told:
        by_place.setdefault((place_to_blame(run, one), one.site is not None), []).append(one)
    found = []
    for (blame, is_observed), kept in by_place.items():
        rate = Trend(**{end: sum(getattr(one.rate, end) for one in kept) for end in ("slope", "low", "high")})
        share = None
        if fit is not None and not kept[0].is_let_go:
            share = rate.slope / whole
            rate = Trend(slope=share * fit.trend.slope, low=share * fit.trend.low, high=share * fit.trend.high)
        filling = all(may_be_filling(run, one) for one in kept)
        found.append(
            Leak(kept=tuple(kept), blame=blame, is_observed=is_observed, rate=rate, share=share, may_be_filling=filling)
        )
    return found


def may_be_filling(run: Run, kept: RetainedTensors) -> bool:
    """True if the program's code bounds it, and the run is too short to tell; no graph is kept so.

    That takes out of it or tests its length; or keeps by its index what a data set loads, and memory can hold them all.
    """
    if kept.kind == "graphs":
        return False
    sources, limits = run.get(Sources), run.get(RunLimits)
    files = {file for file in (kept.file, kept.site and split_site(kept.site)[0]) if file}
    is_short = limits.num_steps < SHORT_RUN
    if kept.entries_added > 0 and is_kept_by_item(sources, kept.name, files):
        loaders = events_of(run.rank_folder, LoaderBuilt)
        num_items = max(((one.num_batches or 0) * (one.batch_size or 0) for one in loaders), default=0)
        most = num_items * kept.rate.slope * kept.num_steps / kept.entries_added
        return limits.can_hold(most) if kept.sizes[-1].length <= num_items else is_short
    within = {"local": kept.owner or MODULE, "global": MODULE}.get(kept.scope or "", ATTRIBUTE)
    return is_short and is_bounded_by_code(sources, kept.name, within, kept.type, files, kept.site)


def place_to_blame(run: Run, kept: RetainedTensors) -> SourceLine:
    """The line that was seen to feed it; else where its class or function is defined; else the call of backward.

    A cached function is to blame itself: its caller knows nothing of the cache.
    """
    sources = run.get(Sources)
    if kept.type == "lru_cache" and (definition := definition_of(sources, kept.file, kept.owner)) is not None:
        return definition
    if kept.site is not None:
        return sources.line(kept.site)
    return definition_of(sources, kept.file, kept.owner) or backward_line(run)


def backward_line(run: Run) -> SourceLine:
    """The line of the loop that calls backward; raises ThinEvidence where none was recorded."""
    site = run.get(StepTimes).backward_site
    if site is None:
        raise ThinEvidence("no line of the training loop was recorded to point at.")
    return line_at(run, site)


def leak_finding(run: Run, leak: Leak, fix: Fix, *, left_per_step: float = 0.0) -> Finding:
    """Of what its line keeps; the fix leaves so many bytes per step of it."""
    leaks = run.get(Leaks)
    if leak.may_be_filling:
        fix = replace(fix, summary=f"Record {SHORT_RUN} steps or more first: it may end by itself. {fix.summary}")
    return Finding(
        blame=leak.blame,
        category="memory",
        headline=_who_keeps(leak.kept) + ", and may still be filling" * leak.may_be_filling,
        message=_message(run, leak),
        why=_why(leaks, leak),
        fix=fix,
        gain=_gain(run, leak, left_per_step=left_per_step),
        evidence=growth_evidence(
            fit=leaks.fit,
            kept=(*leak.kept, *(one for one in leaks.grown.holders if one not in leak.kept)),
            how=_how_it_is_known(leaks, leak),
        ),
        severity=run.get(RunLimits).severity(leak.rate.slope, leak.kept[0].most_bytes),
        may_be_filling=leak.may_be_filling,
    )


def most_to_keep(run: Run, leak: Leak) -> tuple[int, str]:
    """How many fit into 1 % of memory: entries, tensors where the length says nothing, steps of one that grows."""
    one = leak.kept[0]
    counts = ((one.entries_added, "entries"), (one.tensors_added, "tensors"), (one.num_steps, "steps"))
    number, unit = next(pair for pair in counts if pair[0] > 0)
    return run.get(RunLimits).most_kept(one.rate.slope * one.num_steps / number), unit


def _who_keeps(kept: Sequence[RetainedTensors]) -> str:
    """`a` keeps tensors; `a` and `b` keep tensors with their graphs."""
    names = " and ".join([f"`{one.name}`" for one in kept[:2]] + [f"{len(kept) - 2} more"] * (len(kept) > 2))
    what = "tensors with their graphs" if any(one.kind == "graphs" for one in kept) else "tensors"
    return f"{names} {'keeps' if len(kept) == 1 else 'keep'} {what}"


def _message(run: Run, leak: Leak) -> str:
    """How fast, and how long memory lasts."""
    fit, main = run.get(Leaks).fit, leak.kept[0]
    if leak.share is not None and fit is not None and not leak.may_be_filling:
        return growth_words(run, fit, leak.rate, main.most_bytes)
    told = f"`{main.name}` keeps {format_bytes(leak.rate.slope)} more per step"
    if leak.may_be_filling:
        return f"{told}, {main.sizes[-1].length:,} entries so far."
    ends = in_brackets(format_interval(leak.rate.low, leak.rate.high, "bytes"))
    return f"{told}{ends}{run.get(RunLimits).outlook(leak.rate.slope, most_bytes=main.most_bytes)}."


def _why(leaks: Leaks, leak: Leak) -> str:
    """What keeps it, how that is known, and whether the line was seen."""
    told = f"{_who_keeps(leak.kept)}, by {_counts_in_words(leak)}."
    if leak.share is None and leaks.fit is not None:
        told += " Retained memory alone does not show it."
    if not leak.is_observed:
        told += f" The line that feeds it is not known ({leak.kept[0].unseen}); this one defines its owner or runs "
        told += "backward."
    return told


def _gain(run: Run, leak: Leak, *, left_per_step: float) -> Gain:
    """By the slope of memory where that shows a trend, else by what was counted."""
    fit, num_steps, most = run.get(Leaks).fit, run.get(RunLimits).num_steps, leak.kept[0].most_bytes
    if fit is not None and leak.share is not None:
        return growth_gain(fit, leak.share, left_per_step=left_per_step)
    rates, ended = (leak.rate.low, leak.rate.slope, leak.rate.high), 1 - left_per_step / leak.rate.slope
    low, value, high = (max(0, round(min(rate * num_steps, most) * ended)) for rate in rates)
    return Gain(
        explanation=f"the bytes counted per step ({_counts_in_words(leak)}) times the {num_steps:,} steps "
        "recorded, or all that it held where it is let go; the interval: the slowest and the fastest stretch",
        peak_bytes=value,
        peak_bytes_interval=(low, high),
    )


def _counts_in_words(leak: Leak) -> str:
    sizes = leak.kept[0].sizes
    return f"{len(sizes)} counts from step {sizes[0].step:,} to step {sizes[-1].step:,}"


def _how_it_is_known(leaks: Leaks, leak: Leak) -> tuple[str, ...]:
    one = leak.kept[0]
    line = f"Its line is not known: {one.unseen}."
    if one.fed:
        line = f"The line was seen to do it {format_count(one.fed[0].times, 'time')} in the steps that were watched."
        others = [*one.fed[0].candidates, *(change.site for change in one.fed[1:])]
        places = ", ".join(place.rpartition(":")[0] for place in others[:3])
        line += f" So did, or may have done: {places}." if others else ""
    return (
        f"It holds more from count to count{f', though {one.against}' if one.against else ''}. A tensor with its "
        "autograd graph also keeps every tensor that the graph saved for backward.",
        f"What shows it: {_counts_in_words(leak)} of what keeps tensors. {line}",
        *([] if leaks.fit else [f"Of memory no trend is known: {leaks.missing}"]),
    )
