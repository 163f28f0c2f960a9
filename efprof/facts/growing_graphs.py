"""How fast a variable is counted to keep more autograd graphs, in every count of the run's holders."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from efprof.artifacts.holders import Holder, HolderCensus, read_censuses
from efprof.facts.bounded_holders import bound_of
from efprof.facts.holder_lines import GRAPH_NODE_BYTES, HolderGrowth, HolderLines
from efprof.facts.run import Run
from efprof.model import NotRecorded

LEAST_CENSUSES = 3
"""As many as the recorder takes where memory grows, over some sixteen steps: what a loop keeps for a few is no leak."""
COUNTED_SHARE = 0.52
"""Of what graphs take, that of their nodes (measured: losses with their graphs; facts/growth_suspects.py)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GrowingGraphs:
    """What the fastest such variable keeps per step; 0 where no variable keeps more graphs in every census.

    Only variables that a statement of the program feeds and nothing in it bounds.
    """

    bytes_per_step: float

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Counts that ran out of time are left out."""
        with contextlib.suppress(NotRecorded):
            censuses = [census for census in read_censuses(run.rank_folder) if not census.is_partial]
            if len(censuses) >= LEAST_CENSUSES:
                return cls(bytes_per_step=max((_rate(growth, censuses) for growth in _endless(run)), default=0.0))
        return cls(bytes_per_step=0.0)


def _endless(run: Run) -> list[HolderGrowth]:
    """Those that keep graphs, with a statement that feeds them and none that bounds them."""
    return [
        growth
        for growth in run.get(HolderLines).holders
        if growth.keeps_graphs and growth.statements and bound_of(growth, run) is None
    ]


def _rate(growth: HolderGrowth, censuses: Sequence[HolderCensus]) -> float:
    """Bytes per step from the first count to the last; 0 where a count in between saw it stand still, or fall."""
    counted = [_counted(census, growth.holder) for census in censuses]
    found = [holder for holder in counted if holder is not None]
    rises = all(one.graph_nodes_before < one.graph_nodes_after for one in found)
    goes_on = all(one.graph_nodes_after <= later.graph_nodes_before for one, later in pairwise(found))
    if len(found) < len(censuses) or not rises or not goes_on:
        return 0.0
    first, last = found[0], found[-1]
    nodes = last.graph_nodes_after - first.graph_nodes_before
    saved = last.graph_bytes_after - first.graph_bytes_before
    num_steps = censuses[-1].step_after - censuses[0].step_before
    return (nodes * GRAPH_NODE_BYTES / COUNTED_SHARE + max(0, saved)) / max(1, num_steps)


def _counted(census: HolderCensus, sought: Holder) -> Holder | None:
    places = ((holder, (holder.scope, holder.path, holder.file)) for holder in census.holders)
    return next((holder for holder, place in places if place == (sought.scope, sought.path, sought.file)), None)
