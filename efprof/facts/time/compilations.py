"""Functions that `torch.compile` compiled again and again, and the guard that failed."""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Self

from efprof.artifacts.events import Compilation, events_of
from efprof.facts.run.run import Run
from efprof.model import NotRecorded, frozen_dataclass

_SIZE = re.compile(r"tensor '(.+?)' size mismatch at index (\d+)")
_VALUE = re.compile(r"^(.+?) == (\S+)")
_LOCAL = re.compile(r"L\['(\w+)'\]")


@frozen_dataclass
class Recompiled:
    """One function at one of the user's lines, `num_times` beyond the first; `guard` is the one that failed last.

    Where that is a size, `dimension` is that of the tensor `name`; where it is a value, `name` had `value` once.
    """

    function: str
    site: str
    num_times: int
    seconds: float
    guard: str
    name: str | None
    dimension: int | None
    value: str | None

    @classmethod
    def of(cls, again: Sequence[Compilation]) -> Self:
        # `k == 1.0` of `0/1: k == 1.0      # return x * k  # train.py:6 in f`.
        reason = (again[-1].reason or "").partition("\n")[0].partition("  #")[0]
        guard = _LOCAL.sub(r"\1", reason.partition(": ")[2] or reason).strip()
        size, value = _SIZE.search(guard), _VALUE.search(guard)
        return cls(
            function=again[0].function,
            site=again[0].site or "",
            num_times=len(again),
            seconds=sum(one.seconds for one in again),
            guard=guard,
            name=size[1] if size else value[1] if value else None,
            dimension=int(size[2]) if size else None,
            value=value[2] if value else None,
        )


@frozen_dataclass
class Compilations:
    """How many there were, and the functions that were compiled more than once, the costliest first."""

    num_all: int
    recompiled: tuple[Recompiled, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded where nothing was compiled."""
        events = events_of(run.rank_folder, Compilation)
        if not events:
            raise NotRecorded("no function was compiled by `torch.compile`.")
        again = defaultdict[tuple[str, str], list[Compilation]](list)
        for event in events:
            if event.reason and event.site:
                again[event.site, event.function].append(event)
        found = sorted(map(Recompiled.of, again.values()), key=lambda one: -one.seconds)
        return cls(num_all=len(events), recompiled=tuple(found))
