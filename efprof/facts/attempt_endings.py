"""How the attempts ended that a report leaves out, where a training was started more than once in its run."""

from pathlib import Path
from typing import Final

from efprof.artifacts.attempts import Attempt, read_process
from efprof.artifacts.events import Event, RecordingEnded, TrainingRaised, read_events
from efprof.artifacts.steps import read_steps
from efprof.facts.run import Run
from efprof.model import NotRecorded

MAX_MESSAGE: Final = 80
"""Letters of an exception's message: enough to know it by, and the sentence stays one."""


def describe_attempts(run: Run) -> str:
    """One sentence about the other attempts; empty where there are none."""
    others = [attempt for attempt in run.attempts if attempt is not run.attempt and _is_worth_telling(attempt)]
    if run.attempt is None or not others:
        return ""
    endings = ", ".join(f"attempt {attempt.number + 1} {_how_it_ended(attempt)}" for attempt in others)
    earlier = [attempt for attempt in run.attempts[:-1] if _is_worth_telling(attempt)]
    told = "started its training again" if _has_restart(earlier) else "trained in one process after another"
    return f"This run {told}; the report is about attempt {run.attempt.number + 1}: {endings}."


def name_of_error(error: TrainingRaised) -> str:
    """`KeyError ('missing')`: its class, and the first line of what it said."""
    first_line = error.message.partition("\n")[0][:MAX_MESSAGE]
    return f"{error.error} ({first_line})" if first_line else error.error


def _is_worth_telling(attempt: Attempt) -> bool:
    """What neither trained nor failed only looked at something: a script for evaluation, most likely."""
    return attempt.has_steps or any(_error(read_events(rank)[0]) for rank in attempt.rank_folders)


def _has_restart(earlier: list[Attempt]) -> bool:
    """Whether what came after one of these is the same training: after a launcher's, or one that did not end well.

    What ended well without a launcher is not repeated: its successor is another training, as in a search.
    """
    return any(_is_launched(rank) or _has_failed(rank) for attempt in earlier for rank in attempt.rank_folders)


def _is_launched(rank: Path) -> bool:
    process = read_process(rank)
    return process is not None and bool(process.group)


def _has_failed(rank: Path) -> bool:
    events = read_events(rank)[0]
    end = _end(events)
    return end is None or end.signal is not None or _error(events) is not None


def _how_it_ended(attempt: Attempt) -> str:
    """By the first rank that raised, then by those that were killed; other ranks only went down with them."""
    events = {rank: read_events(rank)[0] for rank in attempt.rank_folders}
    raised = [(error.at_ns, rank, error) for rank, some in events.items() if (error := _error(some)) is not None]
    told = []
    if raised:
        _, rank, error = min(raised, key=lambda entry: entry[0])
        told.append(f"was ended by {name_of_error(error)} at step {error.step}{_in_rank(rank, attempt)}")
    told += [
        f"was killed at step {_num_steps(rank)}{_in_rank(rank, attempt)}"
        for rank, some in events.items()
        if _end(some) is None and _error(some) is None
    ]
    return " and ".join(told) or _without_fault(attempt, events)


def _without_fault(attempt: Attempt, events: dict[Path, list[Event]]) -> str:
    first = attempt.rank_folders[0]
    signals = [end.signal for some in events.values() if (end := _end(some)) is not None and end.signal is not None]
    if signals:
        return f"was ended by {signals[0]} at step {_num_steps(first)}"
    return f"ended after {_num_steps(first)} steps"


def _error(events: list[Event]) -> TrainingRaised | None:
    return next((event for event in reversed(events) if isinstance(event, TrainingRaised)), None)


def _end(events: list[Event]) -> RecordingEnded | None:
    return next((event for event in reversed(events) if isinstance(event, RecordingEnded)), None)


def _in_rank(rank: Path, attempt: Attempt) -> str:
    return f" in {rank.name}" if len(attempt.rank_folders) > 1 else ""


def _num_steps(rank: Path) -> int:
    try:
        return len(read_steps(rank)[0])
    except NotRecorded:
        return 0
