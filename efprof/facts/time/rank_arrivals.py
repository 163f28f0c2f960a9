"""Which rank of a training comes last to the collectives, by how long each rank stays in them.

A collective is over for all ranks at about the same time, and each of them stays in it from its own arrival on: the
rank with the shortest kernel came last. So clocks of several machines need not agree, and how long a backward pass
takes, which holds the wait for others, is not looked at.
"""

import statistics
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from efprof.facts.run.run import Run
from efprof.facts.time.rank_times import OneRank, RankTimes
from efprof.model import ThinEvidence, UnreadableInput


@dataclass(frozen=True, kw_only=True, slots=True)
class RankArrivals:
    """The ranks, and by how much each comes later than the next but last one.

    `late_ns` has one entry for each step that all ranks recorded alike: for each rank the nanoseconds for which all
    others waited for it alone. `unread` names files or folders of ranks whose trace cannot be read.
    """

    ranks: dict[int, OneRank]
    late_ns: tuple[dict[int, int], ...]
    num_collectives: int
    is_on_device: bool
    unread: tuple[str, ...] = ()

    @classmethod
    def compute(cls, run: Run) -> Self:
        """From all traces of all ranks; raises NotRecorded without a trace, ThinEvidence where ranks do not compare."""
        times = run.get(RankTimes)
        if not times.ranks:
            raise UnreadableInput(next(iter(times.errors.values())))
        ranks, unread = times.ranks, tuple(Path(name).name for name in times.errors)
        _check_world({rank: one.distributed for rank, one in ranks.items()})
        stays = {rank: one.stays for rank, one in ranks.items()}
        if len(ranks) < 2 or not any(map(bool, stays.values())):
            return cls(ranks=ranks, late_ns=(), num_collectives=0, is_on_device=False, unread=unread)
        common = set.intersection(*(set(found) for found in stays.values()))
        alike = [step for step in sorted(common) if len({_kinds(found[step]) for found in stays.values()}) == 1]
        if not alike:
            raise ThinEvidence("the ranks recorded no step with the same collectives, so that they do not compare.")
        return cls(
            ranks=ranks,
            late_ns=tuple(_late_ns({rank: found[step] for rank, found in stays.items()}) for step in alike),
            num_collectives=sum(len(next(iter(stays.values()))[step]) for step in alike),
            is_on_device=any(one.is_on_device for one in ranks.values()),
            unread=unread,
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
