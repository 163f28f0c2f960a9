"""What was seen of the calls of backward, line by line: which keep a graph, and which leave a leaf that never goes."""

from dataclasses import dataclass
from typing import Self

from efprof.artifacts.events import BackwardCalls, read_events
from efprof.facts.run import Run
from efprof.model import NotRecorded

LEAST_CYCLES = 3
"""Leaves alive at once, each with a gradient that has a graph: two are this step's and the one's before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardSites:
    """The lines that call backward, each with all that was seen of it."""

    sites: tuple[BackwardCalls, ...]

    @property
    def cycles(self) -> tuple[BackwardCalls, ...]:
        """Where `create_graph=True` gives more and more leaves a gradient whose graph leads back to them, worst first.

        Tensor, gradient and graph keep each other alive through C++, where Python's garbage collector sees nothing.
        """
        found = [one for one in self.sites if one.num_created and one.num_cycles >= LEAST_CYCLES]
        return tuple(sorted(found, key=lambda one: -one.num_cycles))

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded of a run from before this was looked at, and without events."""
        last = {one.site: one for one in read_events(run.rank_folder)[0] if isinstance(one, BackwardCalls)}
        if not last:
            raise NotRecorded("events.jsonl tells of no backward_calls: record the run again with this efprof.")
        return cls(sites=tuple(last.values()))
