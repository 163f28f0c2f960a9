"""In which stage, and at which line, a late rank spends more than the others; the evidence of it."""

from dataclasses import dataclass

from efprof.facts.source.sources import Sources, place_of
from efprof.facts.time.rank_arrivals import RankArrivals
from efprof.facts.time.rank_times import Where
from efprof.model import Narrative, SourceLine, Table

MAX_ROWS = 12
"""More than the few stages and the lines that matter nobody reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTime:
    """Milliseconds per step of the late rank and, on average, of the others; on a device without collectives.

    Of one line or function in the stage, or of the whole stage where `site` is empty. Waiting for the late rank makes
    the others' time longer, so that what is longer on the late rank is its own.
    """

    stage: str
    where: Where
    site: str
    late_ms: float
    others_ms: float

    @property
    def excess_ms(self) -> float:
        return self.late_ms - self.others_ms


def stage_times(arrivals: RankArrivals, late: int) -> list[StageTime]:
    """Every stage and line on the host and on the device, first that by which the late rank is furthest behind."""
    found = []
    for key in {key for one in arrivals.ranks.values() for key in one.spent_ms}:
        where, stage, site = key
        if where == "device" and not arrivals.is_on_device:
            continue  # the host's collectives do not wait for it
        others = [one.spent_ms.get(key, 0.0) for rank, one in arrivals.ranks.items() if rank != late]
        late_ms, others_ms = arrivals.ranks[late].spent_ms.get(key, 0.0), sum(others) / len(others)
        found.append(StageTime(stage=stage, where=where, site=site, late_ms=late_ms, others_ms=others_ms))
    return sorted(found, key=lambda one: (-one.excess_ms, one.site, one.stage, one.where))


def line_behind(worst: StageTime, times: list[StageTime], late: int, sources: Sources) -> SourceLine:
    """The line of it, or that by which its stage is furthest behind; a made name where no line is."""
    alike = (one for one in times if one.site and (one.stage, one.where) == (worst.stage, worst.where))
    line = worst if worst.site else next(alike, None)
    if line is None or line.excess_ms <= 0:
        name = f"{worst.stage} on rank {late} (line not recorded)"
        return SourceLine(file=name, line=0, function=worst.stage, text="")
    return sources.line(line.site)


def rank_evidence(arrivals: RankArrivals, late: int, times: list[StageTime]) -> tuple[Table | Narrative, ...]:
    """The ranks, the stages, and how they are known."""
    ranks = (
        (f"rank {rank}", arrivals.late_ms(rank), 100 * arrivals.share_of_steps(rank)) for rank in sorted(arrivals.ranks)
    )
    shown = sorted(times[:MAX_ROWS], key=lambda one: (one.where, one.stage, one.site))
    stages = (
        (one.stage, f"`{place_of(one.site)}`" if one.site else "all of it", one.where, one.late_ms, one.others_ms)
        for one in shown
    )
    return (
        Table.of(
            "Waited for, per step", {"Rank": "", "By all others": "ms", "Steps it holds up most": "percent"}, ranks
        ),
        Table.of(
            "Stages, per step", {"Stage": "", "Line": "", "On": "", f"Rank {late}": "ms", "The others": "ms"}, stages
        ),
        Narrative.of(
            "A collective ends when the last rank has come: all others stand still until then.",
            "The rank that stays in a collective for the shortest time came last. It is late by what the next but last "
            f"one stays longer. {arrivals.num_collectives} collectives of {len(arrivals.late_ns)} steps that all ranks "
            "recorded were compared, in the order of their launches; clocks were not.",
            "Ranks whose trace is missing may come later still. Profiling slows a rank with more calls more.",
        ),
    )
