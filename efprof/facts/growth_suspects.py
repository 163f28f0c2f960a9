"""The line to blame for memory that grows, by the best evidence.

That is what a holder is fed by, a library's too; a gradient's cycle; survivors; a container of what is no tensor; only
the loop.
"""

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from efprof.artifacts.holders import read_censuses
from efprof.artifacts.steps import read_steps
from efprof.facts.gradient_cycles import GradientCycle, GradientCycles
from efprof.facts.holder_lines import HolderGrowth, HolderLines
from efprof.facts.host_growth_lines import HostGrowthLines
from efprof.facts.library_feeders import feeding_site
from efprof.facts.memory_growth import MemoryGrowth
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.facts.step_code import StepCode
from efprof.facts.survivors import Survivors
from efprof.model import NotRecorded, SourceLine, ThinEvidence

LEAST_SHARE = 0.2
"""Of the slope: what explains less of it is not the leak that was measured. Graphs are counted by their nodes, half of
what they take (measured: 52 %)."""
LEAST_ONLY_SHARE = 0.05
"""The same for the only variable that grew, of which nothing else is known."""
MOST_COUNTED_NODES = 20_000
"""Where the recorder stops counting a graph (recorder/held.py): how much more there is, is not known."""
MOST_SHARES = 1.1
"""Holders that together explain more than the slope, give or take a tenth, hold the same memory twice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GrowthSuspect:
    """A line, how it is known, and the share of the measured slope that it stands for.

    `beside` are further holders that the same line feeds, `fed` is an object of a library that it feeds. `container` is
    what the line fills where no variable was counted to keep more tensors.
    """

    blame: SourceLine
    known_by: Literal["holder", "feeder", "cycle", "survivors", "container", "loop"]
    share: float
    holder: HolderGrowth | None = None
    beside: tuple[HolderGrowth, ...] = ()
    fed: HolderGrowth | None = None
    cycle: GradientCycle | None = None
    container: str | None = None

    @property
    def holders(self) -> tuple[HolderGrowth, ...]:
        """All that the line feeds, most bytes first; none where it is known by something else."""
        return (self.holder, *self.beside) if self.holder else ()

    @property
    def keeps_graphs(self) -> bool:
        """Whether a variable is seen to keep more autograd graphs."""
        return self.holder is not None and self.holder.keeps_graphs


def only_of(suspect: GrowthSuspect, holders: Sequence[HolderGrowth]) -> GrowthSuspect:
    """The same line with some of the holders that it feeds, and their part of the slope."""
    counted = sum(one.bytes_per_step for one in suspect.holders)
    share = suspect.share * sum(one.bytes_per_step for one in holders) / counted
    return replace(suspect, share=share, holder=holders[0], beside=tuple(holders[1:]))


@dataclass(frozen=True, kw_only=True, slots=True)
class GrowthSuspects:
    """One per separate leak, largest first."""

    suspects: tuple[GrowthSuspect, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises ThinEvidence where not even the line that calls backward is known."""
        slope = run.get(MemoryGrowth).fit.trend.slope
        suspects = (
            _by_holder(run, slope)
            or _by_feeder(run, slope)
            or _by_cycle(run, slope)
            or _by_survivors(run, slope)
            or _by_only_holder(run, slope)
            or _by_container(run)
            or _by_loop(run)
        )
        if not suspects:
            raise ThinEvidence("memory grows, and no line of the training loop was recorded to point at.")
        return cls(suspects=tuple(suspects))


def _by_holder(run: Run, slope: float) -> list[GrowthSuspect]:
    """The largest holder with a line, and others that hold memory of their own."""
    try:
        holders = run.get(HolderLines).holders
    except NotRecorded:
        return []
    found: dict[str, float] = {}
    for site, fed in (by_site := _fed_by_site(holders, slope)).items():
        share = sum(one.bytes_per_step for one in fed) / slope
        is_uncounted = fed[0].holder.graph_nodes_after >= MOST_COUNTED_NODES and not found
        is_own = share >= LEAST_SHARE and (not found or sum(found.values()) + share <= MOST_SHARES)
        if is_uncounted or is_own:
            found[site] = share
    return [
        GrowthSuspect(
            blame=run.get(Sources).line(site),
            known_by="holder",
            share=1.0 if len(found) == 1 else share / sum(found.values()),
            holder=by_site[site][0],
            beside=tuple(by_site[site][1:]),
        )
        for site, share in found.items()
    ]


def _fed_by_site(holders: Sequence[HolderGrowth], slope: float) -> dict[str, list[HolderGrowth]]:
    """By their likeliest statement; of those that it feeds, as many as can be memory of their own."""
    found: dict[str, list[HolderGrowth]] = {}
    for growth in holders:
        if growth.statements:
            fed = found.setdefault(growth.statements[0].site, [])
            known = sum(one.bytes_per_step for one in fed)
            if not fed or known + growth.bytes_per_step <= MOST_SHARES * slope:
                fed.append(growth)
    return dict(sorted(found.items(), key=lambda item: -sum(one.bytes_per_step for one in item[1])))


def _by_feeder(run: Run, slope: float) -> list[GrowthSuspect]:
    """The line that gives an object of a library more in every step."""
    with contextlib.suppress(NotRecorded):
        for growth in run.get(HolderLines).holders:
            is_large = growth.bytes_per_step >= LEAST_SHARE * slope
            site = feeding_site(growth.holder, run.get(StepCode)) if is_large else None
            if site is not None:
                return [GrowthSuspect(blame=run.get(Sources).line(site), known_by="feeder", share=1.0, fed=growth)]
    return []


def _by_cycle(run: Run, slope: float) -> list[GrowthSuspect]:
    """The only call that can be it, unless what was seen to survive says otherwise."""
    found = run.get(GradientCycles).found
    if len(found) != 1 or _is_left_outside_of_passes(run, slope):
        return []
    return [GrowthSuspect(blame=run.get(Sources).line(found[0].site), known_by="cycle", share=1.0, cycle=found[0])]


def _is_left_outside_of_passes(run: Run, slope: float) -> bool:
    """Whether a line is seen whose memory survives, but of the passes, which such a gradient keeps alive, nothing."""
    with contextlib.suppress(NotRecorded):
        survivors = run.get(Survivors)
        is_seen = bool(survivors.lines) and survivors.lines[0].bytes_per_step >= LEAST_SHARE * slope
        return is_seen and survivors.pass_bytes_per_step < LEAST_SHARE * slope
    return False


def _by_survivors(run: Run, slope: float) -> list[GrowthSuspect]:
    with contextlib.suppress(NotRecorded):
        lines = run.get(Survivors).lines
        if lines and lines[0].bytes_per_step >= LEAST_SHARE * slope:
            return [GrowthSuspect(blame=run.get(Sources).line(lines[0].site), known_by="survivors", share=1.0)]
    return []


def _by_only_holder(run: Run, slope: float) -> list[GrowthSuspect]:
    """The one variable that grew, though memory grew more: libraries' work spaces grow with what they work on."""
    with contextlib.suppress(NotRecorded):
        growing = [growth for growth in run.get(HolderLines).holders if growth.statements]
        share = growing[0].bytes_per_step / slope if len(growing) == 1 else 0.0
        if share >= LEAST_ONLY_SHARE:
            blame = run.get(Sources).line(growing[0].statements[0].site)
            return [GrowthSuspect(blame=blame, known_by="holder", share=share, holder=growing[0])]
    return []


def _by_container(run: Run) -> list[GrowthSuspect]:
    """The one container that every step fills and nothing empties, where the C heap grows and no tensors are kept.

    Arrays and texts of more than half a kilobyte lie in that heap too, and nobody counts them.
    """
    with contextlib.suppress(NotRecorded, ThinEvidence):
        is_counted = any(not census.is_partial for census in read_censuses(run.rank_folder))
        is_heap_read = "CUDA" not in run.run_file.memory_source
        if is_heap_read and is_counted and not run.get(HolderLines).holders:
            lines = run.get(HostGrowthLines)
            if lines.name is not None:
                return [GrowthSuspect(blame=lines.blame, known_by="container", share=1.0, container=lines.name)]
    return []


def _by_loop(run: Run) -> list[GrowthSuspect]:
    sites = Counter(record.backward_site for record in read_steps(run.rank_folder)[0] if record.backward_site)
    if not sites:
        return []
    site = sites.most_common(1)[0][0]
    return [GrowthSuspect(blame=run.get(Sources).line(site), known_by="loop", share=1.0)]
