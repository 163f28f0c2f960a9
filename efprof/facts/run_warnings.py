"""What a reader must know before trusting a report: lines lost, collectors that stopped, a run that ended badly."""

from efprof.artifacts.events import CollectorStopped, read_events
from efprof.artifacts.run_file import Ending
from efprof.facts.run import Run
from efprof.facts.step_times import StepTimes
from efprof.model import NotRecorded

ENDINGS: dict[Ending, str] = {
    "running": "The run was still going on, or its recorder was killed, when this report was made.",
    "raised": "The run ended with an error of its own: what would have come after it is not in this report.",
    "out_of_memory": "The run ended because memory ran out: what would have come after it is not in this report.",
    "interrupted": "The run was interrupted: what would have come after it is not in this report.",
    "killed": "The run was killed from outside: what would have come after it is not in this report.",
}


def warnings_of(run: Run) -> tuple[str, ...]:
    """One sentence each; a run that finished no step has exactly one."""
    try:
        num_torn = run.get(StepTimes).num_torn
        events, num_torn_events = read_events(run.rank_folder)
    except NotRecorded:
        return (f"No training step was finished in this run, which ended as '{run.run_file.ended}': nothing to check.",)
    warnings = [ENDINGS[run.run_file.ended]] if run.run_file.ended in ENDINGS else []
    warnings += _about_torn_lines("steps.jsonl", num_torn) + _about_torn_lines("events.jsonl", num_torn_events)
    warnings += [
        f"The collector '{event.collector}' stopped at step {event.step} ({event.reason}); training went on without it."
        for event in events
        if isinstance(event, CollectorStopped)
    ]
    return tuple(warnings)


def _about_torn_lines(file: str, num_torn: int) -> list[str]:
    if not num_torn:
        return []
    lines = "1 line" if num_torn == 1 else f"{num_torn} lines"
    return [f"{lines} of {file} could not be read: the recorder was stopped, or the disk was full, while writing."]
