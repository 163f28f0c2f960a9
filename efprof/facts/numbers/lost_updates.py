"""Updates that lose something: optimizers built again, early, late or unused gradients, evaluation mode, schedules."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from efprof.artifacts.events import (
    GradientClips,
    OptimizerBuilt,
    ParametersSeen,
    ScaledClips,
    ScheduleMoves,
    TrainedAsEvaluated,
    UntrainedParameters,
    events_of,
)
from efprof.facts.run.run import Run
from efprof.model import NothingToLookAt, NotRecorded

MIN_REBUILT = 2
"""By one line: a single time it is a second phase, as fine-tuning is."""

BuiltOptimizer = OptimizerBuilt
"""An optimizer, where it was built, and of how many parameters it lost the state."""

Clips = GradientClips
"""The calls of one line that clips, and how many came after the update."""

Scaled = ScaledClips
"""Updates by a scaler whose gradients one line had clipped, and in how many they were still scaled."""

Moves = ScheduleMoves
"""How often a schedule of the learning rate moves on for each update."""

Evaluated = TrainedAsEvaluated
"""Updates of a module in evaluation mode, the last of them in a row."""

Seen = ParametersSeen
"""What had gradients in two steps, and what of it no update changes."""

Untrained = UntrainedParameters
"""Parameters that no update changes, for one reason."""


def built_optimizers(run: Run) -> list[BuiltOptimizer]:
    """Each optimizer that was seen to be built, in order; raises NotRecorded where none was."""
    latest = {event.number: event for event in events_of(run.rank_folder, OptimizerBuilt)}
    if not latest:
        raise NotRecorded("events.jsonl holds no optimizer that was built while efprof recorded.")
    return list(latest.values())


def rebuilt_optimizers(run: Run) -> Mapping[str, list[BuiltOptimizer]]:
    """By the line that built them, those that took the place of one with state."""
    found = defaultdict[str, list[BuiltOptimizer]](list)
    for event in built_optimizers(run):
        if event.num_lost and event.site:
            found[event.site].append(event)
    return {site: events for site, events in sorted(found.items()) if len(events) >= MIN_REBUILT}


def trained_as_evaluated(run: Run) -> list[Evaluated]:
    """What was seen last of each such module; raises NotRecorded where there was none."""
    latest = {event.module: event for event in events_of(run.rank_folder, TrainedAsEvaluated)}
    if not latest:
        raise NotRecorded("no update of a module with dropout or batch statistics was seen in evaluation mode.")
    return list(latest.values())


def parameters_seen(run: Run) -> Seen:
    """What was seen last; raises NotRecorded where no two steps were looked at."""
    seen = events_of(run.rank_folder, ParametersSeen)
    if not seen:
        raise NotRecorded("events.jsonl holds no parameters that had gradients in two steps of an optimizer.")
    return seen[-1]


def gradient_clips(run: Run) -> list[Clips]:
    """What was seen of each line that clips, in all; raises NotRecorded where none was compared."""
    latest = {event.site: event for event in events_of(run.rank_folder, GradientClips)}
    seen = [event for event in latest.values() if event.num_calls]
    if not seen:
        raise NotRecorded("events.jsonl holds no call of clip_grad_norm_ or clip_grad_value_ in two full steps.")
    return seen


def clip_in_time(run: Run) -> tuple[str, float] | None:
    """The place of a line that clips gradients before their update, and its limit; None where none was seen."""
    latest = {event.site: event for event in events_of(run.rank_folder, GradientClips)}
    sound = [one for one in latest.values() if one.num_calls > max(one.num_late, one.num_empty)]
    return next(((":".join(one.site.split(":")[:2]), one.limit) for one in sound if one.limit is not None), None)


def clips_under_scaler(run: Run) -> Mapping[str, Sequence[Scaled]]:
    """By the line that clips, what was seen at each line where a scaler steps; raises NothingToLookAt without any."""
    latest = {(event.site, event.step_site): event for event in events_of(run.rank_folder, ScaledClips)}
    if not latest:
        raise NothingToLookAt("gradients that are clipped under a gradient scaler")
    found = defaultdict[str, list[Scaled]](list)
    for event in latest.values():
        found[event.site].append(event)
    return found


def schedule_moves(run: Run) -> list[Moves]:
    """What was seen last of each schedule; raises NothingToLookAt where none moved on while updates were seen."""
    latest = {event.number: event for event in events_of(run.rank_folder, ScheduleMoves)}
    seen = [event for event in latest.values() if event.num_updates]
    if not seen:
        raise NothingToLookAt("a schedule of the learning rate")
    return seen
