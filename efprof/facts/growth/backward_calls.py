"""What calls of backward leave behind: graphs that nobody goes through again, gradients that nothing clears."""

from collections.abc import Sequence
from typing import Self

from efprof.artifacts.events import BackwardCalls, GradientClearing, events_of
from efprof.artifacts.steps import StepRecord
from efprof.facts.run.run import Run
from efprof.facts.source.sources import place_of
from efprof.facts.steps.step_times import StepTimes
from efprof.model import Narrative, NotRecorded, ThinEvidence, frozen_dataclass

MIN_CYCLES = 3
"""Leaves alive at once, each with a gradient that has a graph: two are this step's and the one's before."""

MIN_WATCHED = 3
"""Graphs of one line: fewer may be those of an odd first step."""
MAX_ALIVE = 2
"""Watched graphs that are not gone when the recording ends: the last step's, and one that is just let go. More are held
by something, which may go through them yet."""


def backward_calls(run: Run) -> list[BackwardCalls]:
    """All that was seen of each line that calls backward; raises NotRecorded of older runs, and without events."""
    last = {one.site: one for one in events_of(run.rank_folder, BackwardCalls)}
    if not last:
        raise NotRecorded("events.jsonl holds no backward_calls: record the run again with this efprof.")
    return list(last.values())


def gradient_cycles(run: Run) -> list[BackwardCalls]:
    """Where `create_graph=True` gives more and more leaves a gradient whose graph leads back to them, worst first.

    Tensor, gradient and graph keep each other alive through C++, where Python's garbage collector sees nothing.
    """
    found = [one for one in backward_calls(run) if one.num_created and one.num_cycles >= MIN_CYCLES]
    return sorted(found, key=lambda one: -one.num_cycles)


KeepingCalls = BackwardCalls
"""Of one line, whose graphs nobody needs."""


@frozen_dataclass
class RetainedBackward:
    """Of all lines that call backward: how many calls were seen, how many graphs watched, and which nobody needs.

    `peak_bytes` is the most that was allocated at any boundary of a steady step; 0 where no memory was read.
    """

    num_calls: int
    num_watched: int
    peak_bytes: int
    needless: tuple[KeepingCalls, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded where calls of backward were not looked at; ThinEvidence where a graph was too large."""
        steady, sites = run.get(StepTimes).at_least(1), backward_calls(run)
        keeping = [one for one in sites if one.num_retained and one.num_retained == one.num_calls]
        unseen = [one for one in keeping if one.num_watched < MIN_WATCHED]
        if unseen and len(unseen) == len(keeping):
            raise ThinEvidence(
                f"{place_of(unseen[0].site)} keeps the graph, of which too few were watched: they are too large, or "
                "too few."
            )
        records = [time.record for time in steady]
        return cls(
            num_calls=sum(one.num_calls for one in sites),
            num_watched=sum(one.num_watched for one in sites),
            peak_bytes=max((size for record in records for size in record.allocated()), default=0),
            needless=tuple(one for one in keeping if _is_needless(one, records)),
        )


UnclearedOptimizer = GradientClearing
"""One whose gradients were never cleared before all of its steps that were watched."""


def uncleared_optimizers(run: Run) -> tuple[int, list[UnclearedOptimizer]]:
    """How many were watched until it was clear what becomes of their gradients, and those whose are never cleared.

    Raises NotRecorded where no optimizer can be told of.
    """
    seen = [event for event in events_of(run.rank_folder, GradientClearing) if event.outcome != "changed"]
    if not seen:
        raise NotRecorded(
            "events.jsonl does not say what becomes of the gradients: record 20 steps of an optimizer whose gradients "
            "are neither sparse nor sharded, nor changed in place, as `zero_grad(set_to_none=False)` and some do."
        )
    num_optimizers = sum(not event.num_cleared for event in seen)  # the others are told of as cleared, too
    return num_optimizers, [event for event in seen if event.outcome == "kept" and event.backward_sites]


def how_it_is_needless(calls: KeepingCalls) -> Narrative:
    return Narrative.of(
        f"Each node of {calls.num_watched} graphs that this line kept was watched: no later call of backward, nor of "
        f"torch.autograd.grad, ran any of them again before they were let go. All {calls.num_calls} calls that were "
        "seen keep their graph. How much a graph holds was measured: the bytes of the tensors saved in it.",
        "It is wrong where the graph is gone through at some rare step that was not watched: torch then raises an "
        'error that says "Trying to backward through the graph a second time".',
    )


def _is_needless(calls: BackwardCalls, records: Sequence[StepRecord]) -> bool:
    """Whether all that was watched went by unused, and no later step has more passes, one of which may need it."""
    num_passes = {one.step: sum(span.stage == "backward" for span in one.spans) for one in records}
    watched = [number for step, number in num_passes.items() if step <= calls.last_watched_step]
    later = [number for step, number in num_passes.items() if step > calls.last_watched_step]
    return (
        calls.num_watched >= MIN_WATCHED
        and calls.num_run_again == 0
        and calls.num_released >= max(1, calls.num_watched - MAX_ALIVE)
        and max(later, default=0) <= max(watched, default=0)
    )
