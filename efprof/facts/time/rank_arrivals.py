"""Which rank of a training comes last to the collectives, by how long each stays in them; and what makes it late.

A collective is over for all ranks at about the same time, and each of them stays in it from its own arrival on: the
rank with the shortest kernel came last. So clocks of several machines need not agree, and how long a backward pass
takes, which holds the wait for others, is not looked at.
"""

import statistics
from collections import Counter
from dataclasses import dataclass
from typing import Self

from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources, place_of
from efprof.facts.time.rank_times import OneRank, RankTimes, Where
from efprof.model import Narrative, SourceLine, Table, ThinEvidence, UnreadableInput

MAX_ROWS = 12
"""More than the few stages and the lines that matter nobody reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankArrivals:
    """The ranks, and by how much each comes later than the next but last one.

    `late_ns` has one entry for each step that all ranks recorded alike: for each rank the nanoseconds for which all
    others waited for it alone.
    """

    ranks: dict[int, OneRank]
    late_ns: tuple[dict[int, int], ...]
    num_collectives: int
    is_on_device: bool

    @classmethod
    def compute(cls, run: Run) -> Self:
        """From all traces of all ranks; raises NotRecorded without a trace, ThinEvidence where ranks do not compare."""
        times = run.get(RankTimes)
        if not times.ranks:
            raise UnreadableInput(next(iter(times.errors.values())))
        ranks = times.ranks
        _check_world({rank: one.distributed for rank, one in ranks.items()})
        stays = {rank: one.stays for rank, one in ranks.items()}
        if len(ranks) < 2 or not any(map(bool, stays.values())):
            return cls(ranks=ranks, late_ns=(), num_collectives=0, is_on_device=False)
        common = set.intersection(*(set(found) for found in stays.values()))
        alike = [step for step in sorted(common) if len({_kinds(found[step]) for found in stays.values()}) == 1]
        if not alike:
            raise ThinEvidence("the ranks recorded no step with the same collectives, so that they do not compare.")
        return cls(
            ranks=ranks,
            late_ns=tuple(_late_ns({rank: found[step] for rank, found in stays.items()}) for step in alike),
            num_collectives=sum(len(next(iter(stays.values()))[step]) for step in alike),
            is_on_device=any(one.is_on_device for one in ranks.values()),
        )

    @property
    def step_ms(self) -> float:
        """The mean step of all ranks, as long as the profiler made it."""
        return statistics.fmean(length_ns for one in self.ranks.values() for length_ns in one.steps_ns) / 1e6

    @property
    def steady_ms(self) -> float:
        """The step outside of windows, of the rank where it is shortest; where it is not known, as it was recorded."""
        return min((one.steady_ms for one in self.ranks.values() if one.steady_ms), default=self.step_ms)

    def late_ms(self, rank: int) -> float:
        """In the median step, what the others would not wait if this rank came with the next but last one."""
        return statistics.median([late[rank] for late in self.late_ns] or [0]) / 1e6

    @property
    def latest(self) -> int:
        """The rank that is waited for most."""
        return max(self.ranks, key=lambda rank: (self.late_ms(rank), -rank))

    def share_of_steps(self, rank: int) -> float:
        """In how many of the steps this rank is waited for more than all others together."""
        num = sum(2 * late[rank] > sum(late.values()) for late in self.late_ns)
        return num / max(1, len(self.late_ns))


def _check_world(headers: dict[int, dict[str, object]]) -> None:
    """Raises ThinEvidence where the ranks are one of several, of several trainings, or exchange in groups."""
    sizes = {size for header in headers.values() if isinstance(size := header.get("world_size"), int)}
    if len(headers) == 1 and any(size > 1 for size in sizes):
        raise ThinEvidence(f"there is a trace of rank {min(headers)} of {max(sizes)} alone: give those of others too.")
    if len(sizes) > 1:
        raise ThinEvidence("the traces are of trainings with different numbers of ranks, so that they do not compare.")
    for header in headers.values():
        groups = header.get("pg_config")
        for group in groups if isinstance(groups, list) else ():
            if isinstance(group, dict) and 1 < int(group.get("pg_size") or 0) < max(sizes):
                raise ThinEvidence(
                    "the ranks exchange in several groups, whose collectives a trace does not tell apart."
                )


def _kinds(stays: list[tuple[str, int]]) -> tuple[str, ...]:
    return tuple(kind for kind, _ in stays)


def _late_ns(stays: dict[int, list[tuple[str, int]]]) -> dict[int, int]:
    """Of one step: for each collective, the last rank is late by what the next but last stays longer."""
    late = Counter(dict.fromkeys(stays, 0))
    for ones in zip(*stays.values(), strict=True):
        ranked = sorted(zip((stay for _, stay in ones), stays, strict=True))
        late[ranked[0][1]] += ranked[1][0] - ranked[0][0]
    return dict(late)


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
    waits = {"Rank": "", "By all others": "ms", "Steps it holds up most": "percent"}
    ranks = (
        (f"rank {rank}", arrivals.late_ms(rank), 100 * arrivals.share_of_steps(rank)) for rank in sorted(arrivals.ranks)
    )
    spent = {"Stage": "", "Line": "", "On": "", f"Rank {late}": "ms", "The others": "ms"}
    stages = (
        (one.stage, f"`{place_of(one.site)}`" if one.site else "all of it", one.where, one.late_ms, one.others_ms)
        for one in times[:MAX_ROWS]
    )
    return (
        Table.of("Waited for, per step", waits, ranks),
        Table.of("Stages, per step", spent, stages),
        Narrative.of(
            "A collective ends when the last rank has come: all others stand still until then.",
            "The rank that stays in a collective for the shortest time came last. It is late by what the next but last "
            f"one stays longer, in {arrivals.num_collectives} collectives of {len(arrivals.late_ns)} steps, by the "
            "order of their launches; clocks were not compared.",
            "Ranks whose trace is missing may come later still. Profiling slows a rank with more calls more.",
        ),
    )
