"""How many threads of the ranks on a machine were ready to run at once, on how many cores."""

from collections import defaultdict
from typing import Literal, Self

from efprof.artifacts.events import ThreadsReady, events_of
from efprof.facts.run.run import Run
from efprof.model import NotRecorded, frozen_dataclass

MIN_OTHERS = 0.1
"""Of the cores: less is what any system does by itself."""
FULL = 0.8
"""Where more is left over, others may hold as many as they like."""


@frozen_dataclass
class ReadyThreads:
    """Of the ranks that share the most crowded cores, in the last stretch that was counted: one event for each."""

    ranks: tuple[ThreadsReady, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded where nobody counted."""
        sharing = defaultdict[str, list[ThreadsReady]](list)
        for folder in run.rank_folders:
            for event in events_of(folder, ThreadsReady)[-1:]:
                sharing[event.cores].append(event)
        if not sharing:
            raise NotRecorded("No event tells of ready threads: it is written on Linux, from step 10 on; record again.")
        return max((cls(ranks=tuple(ranks)) for ranks in sharing.values()), key=lambda one: one.per_core("ready"))

    @property
    def others(self) -> float:
        """The share of these cores that other programs and virtual machines held; 0 where nobody counted."""
        return self.ranks[0].busy - sum(rank.own for rank in self.ranks)

    @property
    def is_disturbed(self) -> bool:
        """True if others held many of the cores, and left few over."""
        return self.others > MIN_OTHERS and self.ranks[0].busy > FULL

    def per_core(self, kind: Literal["ready", "waiting", "children", "num_threads"]) -> float:
        """That of all ranks together, over the cores that they share."""
        total: float = sum(getattr(rank, kind) for rank in self.ranks)
        return total / self.ranks[0].num_cores
