"""The calls of backward that keep a graph which was seen to be gone through by nobody, and what keeping it costs."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from efprof.artifacts.events import BackwardCalls
from efprof.artifacts.steps import StepRecord, read_steps
from efprof.facts.backward_calls import BackwardSites
from efprof.facts.live_memory import LiveMemory
from efprof.facts.retained_backward_replay import GraphReplay, replay_without_graphs
from efprof.facts.run import Run
from efprof.facts.step_times import StepTimes
from efprof.model import NotRecorded, ThinEvidence

LEAST_WATCHED = 3
"""Graphs of one line: fewer may be those of an odd first step."""
MOST_ALIVE = 2
"""Watched graphs that are not gone when the recording ends: the last step's, and one that is just let go. More are held
by something, which may go through them yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NeedlessGraph:
    """The calls of one line; `replay` is None where no allocations tell what it costs."""

    calls: BackwardCalls
    replay: GraphReplay | None

    @property
    def reaches_next_step(self) -> bool:
        """Whether the graph mostly lives on into the next step's forward pass."""
        return 2 * self.calls.num_released_later > self.calls.num_released

    @property
    def argument(self) -> str:
        """By which backward was told to keep it, as far as was seen."""
        return "create_graph" if self.calls.num_created else "retain_graph"


@dataclass(frozen=True, kw_only=True, slots=True)
class RetainedBackward:
    """Of all lines that call backward: how many calls were seen, how many graphs watched, and which nobody needs."""

    num_calls: int
    num_watched: int
    needless: tuple[NeedlessGraph, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded where calls of backward were not looked at; ThinEvidence where a graph was too large."""
        steady, sites = run.get(StepTimes).at_least(1), run.get(BackwardSites).sites
        keeping = [one for one in sites if one.num_retained and one.num_retained == one.num_calls]
        unseen = [one for one in keeping if one.num_watched < LEAST_WATCHED]
        if unseen and len(unseen) == len(keeping):
            place = unseen[0].site.rpartition(":")[0]
            raise ThinEvidence(
                f"{place} keeps the graph, of which too few were watched: they are too large, or too few."
            )
        records = [time.record for time in steady]
        return cls(
            num_calls=sum(one.num_calls for one in sites),
            num_watched=sum(one.num_watched for one in sites),
            needless=tuple(
                NeedlessGraph(calls=one, replay=_replay(run, one)) for one in keeping if _is_needless(one, records)
            ),
        )


def _is_needless(calls: BackwardCalls, records: Sequence[StepRecord]) -> bool:
    """Whether all that was watched went by unused, and no later step has more passes, one of which may need it."""
    watched = [_num_passes(one) for one in records if one.step <= calls.last_watched_step]
    later = [_num_passes(one) for one in records if one.step > calls.last_watched_step]
    return (
        calls.num_watched >= LEAST_WATCHED
        and calls.num_run_again == 0
        and calls.num_released >= max(1, calls.num_watched - MOST_ALIVE)
        and max(later, default=0) <= max(watched, default=0)
    )


def _num_passes(record: StepRecord) -> int:
    return sum(span.stage == "backward" for span in record.spans)


def _replay(run: Run, calls: BackwardCalls) -> GraphReplay | None:
    """Of the window whose peak is highest, where the line's call is the last pass of the window's steps."""
    last_here = {one.step for one in read_steps(run.rank_folder)[0] if one.backward_site == calls.site}
    replays: list[GraphReplay] = []
    with contextlib.suppress(NotRecorded):
        for live in run.get(LiveMemory).windows:
            if {stretch.step for stretch in live.stretches} <= last_here:
                found = replay_without_graphs(live, calls.kept_bytes)
                replays += [found] if found else []
    return max(replays, key=lambda one: one.window.peak_bytes, default=None)
