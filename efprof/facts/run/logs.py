"""What was seen of the program's log."""

from efprof.artifacts.events import DuplicatedLog, events_of
from efprof.facts.run.run import Run
from efprof.model import NotRecorded

Logged = DuplicatedLog
"""How many records were written, how many of them twice to one stream, and by which lines."""


def logged(run: Run) -> Logged:
    """What was seen last; raises NotRecorded where nothing was logged."""
    seen = events_of(run.rank_folder, DuplicatedLog)
    if not seen:
        raise NotRecorded("events.jsonl holds no record of Python's `logging` that was written to a stream.")
    return seen[-1]
