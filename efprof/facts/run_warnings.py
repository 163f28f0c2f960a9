"""What a reader must know before trusting a report: lines lost, collectors that stopped, a run that ended badly."""

import statistics

from efprof.artifacts.events import (
    WHOLE_RECORDING,
    CollectorStopped,
    Event,
    OtherThreadTrained,
    OutOfMemory,
    StepsWithoutOptimizer,
    TrainingRaised,
    read_events,
)
from efprof.artifacts.run_file import Ending
from efprof.artifacts.steps import read_steps
from efprof.facts.attempt_endings import describe_attempts, name_of_error
from efprof.facts.device_memory import DeviceMemory
from efprof.facts.live_memory import LiveMemory
from efprof.facts.run import Run
from efprof.facts.step_times import StepTimes
from efprof.model import NotRecorded, UnreadableInput
from efprof.units import format_ms

ENDINGS: dict[Ending, str] = {
    "running": "The run was still going on, or its recorder was killed, when this report was made.",
    "raised": "The run ended with an error of its own: what would have come after it is not in this report.",
    "out_of_memory": "The run ended because memory ran out: what would have come after it is not in this report.",
    "interrupted": "The run was interrupted: what would have come after it is not in this report.",
    "killed": "The run was killed: what would have come after it is not in this report.",
}


FOREIGN = (
    "This report is made from a file that efprof did not record: it tells of memory only. Record the training with "
    "'efprof record -- COMMAND' to see its steps, its time and its numbers too."
)

WITHOUT_OPTIMIZER = (
    "Parameters were updated without a torch optimizer: a step ends at the fetch, forward or backward pass after an "
    "update, and the update itself counts as 'other'; mark steps by efprof.step() and efprof.stage('optimizer')."
)

OTHER_THREAD = (
    "Another thread of this process updated parameters too{times}, while the recorded one trained: its steps are not "
    "in this report, and took part of the machine's time; train by one thread in each process to see them apart."
)

UNEQUAL_STEPS = (
    "Times of this run are uncertain: half of the steps took between {low} and {high}, as where other programs use the "
    "machine; run it again while they do not. Steps that do unequal work look the same."
)

LEAST_STEPS = 20
"""Of fewer, five decide where the middle half ends."""

MOST_SPREAD = 1.0
"""Interquartile range over median, with the waits for data and without them: from one on the steps differ by as much as
one of them takes. Of 114 recordings on two shared cores 88 lay below 0.4, and 11 above one."""

IGNORED_VARIABLE = (
    "PYTORCH_ALLOC_CONF={value} did nothing: the CUDA allocator of torch {version} does not read that variable. Set "
    "PYTORCH_CUDA_ALLOC_CONF instead, or install torch 2.10."
)
"""pytorch/pytorch#183387: torch 2.9 asks its users for the new name, and reads the old one alone."""


def warnings_of(run: Run) -> tuple[str, ...]:
    """One sentence each; of a run that finished no step one, beside that of a setting that did nothing."""
    return (*_about_run(run), *_about_ignored_variable(run))


def _about_run(run: Run) -> tuple[str, ...]:
    try:
        times = run.get(StepTimes)
        events, num_torn_events = read_events(run.rank_folder)
    except NotRecorded:
        return _without_steps(run)
    warnings = [ENDINGS[run.run_file.ended]] if run.run_file.ended in ENDINGS else []
    warnings += [*_about_answers_to_shortage(run, events), *filter(None, [describe_attempts(run)])]
    warnings += [_about_stop(event) for event in events if isinstance(event, CollectorStopped)]
    warnings += _about_stops_in_other_ranks(run)
    warnings += [WITHOUT_OPTIMIZER for event in events if isinstance(event, StepsWithoutOptimizer)]
    warnings += _about_other_threads(events)
    warnings += _about_torn_lines("steps.jsonl", times.num_torn) + _about_torn_lines("events.jsonl", num_torn_events)
    warnings += [*_about_broken_windows(run), *_about_untold_devices(run), *_about_unequal_steps(times)]
    return tuple(warnings)


def _about_other_threads(events: list[Event]) -> list[str]:
    counts = [event.num_updates for event in events if isinstance(event, OtherThreadTrained)]
    if not counts:
        return []
    times = {None: "", 1: " once"}.get(counts[-1], f" {counts[-1]} times")
    return [OTHER_THREAD.format(times=times)]


def _about_unequal_steps(times: StepTimes) -> list[str]:
    if len(times.steady) < LEAST_STEPS:
        return []
    whole = statistics.quantiles((time.total_ms for time in times.steady), n=4, method="inclusive")
    rest = statistics.quantiles((time.total_ms - time.of("data") for time in times.steady), n=4, method="inclusive")
    if any(high - low < MOST_SPREAD * middle for low, middle, high in (whole, rest)):
        return []
    return [UNEQUAL_STEPS.format(low=format_ms(whole[0]), high=format_ms(whole[2]))]


def _about_answers_to_shortage(run: Run, events: list[Event]) -> list[str]:
    """The errors by which the program answered a shortage of memory, which the verdict is about."""
    if run.run_file.ended != "out_of_memory":
        return []
    shortages = {event.message for event in events if isinstance(event, OutOfMemory)}
    if not shortages:
        return []
    return [
        f"When memory had run out, the program raised another error{_at_line(event)}: {name_of_error(event)}."
        for event in events
        if isinstance(event, TrainingRaised) and event.message not in shortages
    ]


def _at_line(error: TrainingRaised) -> str:
    return f" at {error.sites[-1].rpartition(':')[0]}" if error.sites else ""


def _about_ignored_variable(run: Run) -> list[str]:
    file = run.run_file
    value, version = file.environment.get("PYTORCH_ALLOC_CONF"), file.versions.get("torch", "")
    is_ignored = value and "PYTORCH_CUDA_ALLOC_CONF" not in file.environment and version.startswith("2.9.")
    if not is_ignored or not file.devices:  # without a GPU there is nothing to set
        return []
    return [IGNORED_VARIABLE.format(value=value, version=version)]


def _without_steps(run: Run) -> tuple[str, ...]:
    if run.run_file.ended == "unknown":
        return (FOREIGN, *_without_history(run), *_about_untold_devices(run))
    num_torn = _num_unread_steps(run)
    if num_torn:
        return tuple(_about_torn_lines("steps.jsonl", num_torn))
    return (f"No training step was finished in this run, which ended as '{run.run_file.ended}': nothing to check.",)


def _without_history(run: Run) -> tuple[str, ...]:
    try:
        run.get(DeviceMemory)
    except NotRecorded as error:
        return (str(error),)
    except UnreadableInput:  # each audit that reads it says so
        return ()
    return ()


def _about_untold_devices(run: Run) -> tuple[str, ...]:
    """A check that passes on one device says nothing of another."""
    try:
        return run.get(DeviceMemory).untold
    except (NotRecorded, UnreadableInput):
        return ()


def _num_unread_steps(run: Run) -> int:
    try:
        return read_steps(run.rank_folder)[1]
    except NotRecorded:
        return 0


def _about_stop(event: CollectorStopped) -> str:
    if event.collector == WHOLE_RECORDING:
        return (
            f"Recording stopped at step {event.step} ({event.reason}); training went on, and what came after is not in "
            "this report."
        )
    when = f" at step {event.step}" if event.step >= 0 else ""  # the recorder's shell does not know the step
    return f"The collector '{event.collector}' stopped{when} ({event.reason}); training went on without it."


def _about_stops_in_other_ranks(run: Run) -> list[str]:
    return [
        f"In {rank.name}: {_about_stop(event)}"
        for rank in run.rank_folders[1:]
        for event in read_events(rank)[0]
        if isinstance(event, CollectorStopped)
    ]


def _about_broken_windows(run: Run) -> list[str]:
    try:
        run.get(LiveMemory)
    except UnreadableInput as error:
        return [str(error)]
    except NotRecorded:
        pass
    return []


def _about_torn_lines(file: str, num_torn: int) -> list[str]:
    if not num_torn:
        return []
    lines = "1 line" if num_torn == 1 else f"{num_torn} lines"
    return [f"{lines} of {file} could not be read: the recorder was stopped, or the disk was full, while writing."]
