"""What a reader must know before trusting a report: lines lost, collectors that stopped, attempts left out."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice

from efprof.artifacts.events import (
    WHOLE_RECORDING,
    CollectorStopped,
    DeviceOutOfMemory,
    Event,
    NumbersUnread,
    OtherThreadTrained,
    RecordingEnded,
    StepsWithoutOptimizer,
    WindowClosed,
    WindowLeftOut,
    events_of,
    read_events,
)
from efprof.artifacts.runs import Attempt
from efprof.facts.device.device_memory import DeviceMemory
from efprof.facts.overview.identity import first_error
from efprof.facts.peak.live_memory import LiveMemory
from efprof.facts.run.run import Run
from efprof.facts.run.run_limits import catches_out_of_memory
from efprof.facts.steps.ready_threads import MIN_OTHERS, ReadyThreads
from efprof.facts.steps.step_times import StepTimes
from efprof.facts.time.rank_times import RankTimes
from efprof.facts.time.time_use import TimeUse
from efprof.facts.time.trace_windows import TraceWindow, TraceWindows
from efprof.model import NotRecorded, UnreadableInput
from efprof.units import format_count, format_ms, format_share

FOREIGN = (
    "This report is made from a file that efprof did not record: it tells of {what} only. Record the training with "
    "'efprof record -- COMMAND' to see {missing} too."
)

INFERENCE = (
    "No backward pass and no optimizer runs in this trace: it is of inference, of which efprof reads traces alone."
)

MAX_NAMED = 8
MAX_EVENTS = 300_000
"""As the recorder has it: a step of more has no window with lines, unless it is asked for."""
SNAPSHOT = "memory-0.pickle"

WITHOUT_OPTIMIZER = (
    "Parameters were updated without a torch optimizer: a step ends at the fetch, forward or backward pass after an "
    "update, and the update itself counts as 'other'; mark steps by efprof.step() and efprof.stage('optimizer')."
)

UNREAD = (
    "The {what} of this run are of type {type}: their values would take a collective of all ranks, or have no norm, so "
    "they are not read, and are not checked for NaN."
)

OTHER_THREAD = (
    "Another thread of this process updated parameters too, while the recorded one trained: its steps are not "
    "in this report, and took part of the machine's time; train by one thread in each process to see them apart."
)

PROFILED = (
    "The program's own profiler was on in some steps: what it wrote down holds the recorder's calls too, so read its "
    "traces of runs without efprof."
)

SURVIVED = (
    "Requests for memory of the device failed, {num:,} in all, and the program went on: where it caught the error a "
    "batch may be missing; libraries such as cuDNN try work spaces, and take less where one fails."
)


def warnings_of(run: Run) -> tuple[str, ...]:
    """One sentence each; of a run that finished no step one."""
    try:
        run.get(StepTimes)
        events, num_torn_events = read_events(run.rank_folder)
    except NotRecorded:
        return _without_steps(run)
    failed = [event.num_failed + event.num_rejected for event in events if isinstance(event, DeviceOutOfMemory)]
    return (
        *_about_other_programs(run),
        *_about_other_attempts(run),
        *_about_stops(run),
        *_about_windows_left_out(run, events),
        *[PROFILED][: any(stall.call == "torch.profiler" for record in run.steps for stall in record.stalls)],
        *(WITHOUT_OPTIMIZER for event in events if isinstance(event, StepsWithoutOptimizer)),
        *(UNREAD.format(what=one.what, type=one.type) for one in events if isinstance(one, NumbersUnread)),
        *[OTHER_THREAD][: any(isinstance(event, OtherThreadTrained) for event in events)],
        *([SURVIVED.format(num=failed[-1])] if failed and catches_out_of_memory(run) else ()),
        *_about_torn_lines("steps.jsonl", run.read_steps[1]),
        *_about_torn_lines("events.jsonl", num_torn_events),
        *_about_what_is_not_read(run),
        *_about_broken_ranks(run),
        *_about_devices_not_replayed(run),
    )


def _about_what_is_not_read(run: Run) -> Iterator[str]:
    """What cannot be read, or is too large for a report of some seconds."""
    memory = None
    try:
        memory = run.find(LiveMemory)
    except UnreadableInput as error:
        yield str(error)
    if traces := run.find(TraceWindows, UnreadableInput):
        yield from traces.unread
    for window in memory.windows if memory else ():
        if window.num_unread:
            yield f"{format_count(window.num_unread, 'allocation')} at the end of {window.name} are not read."


def _about_foreign(run: Run) -> Iterator[str]:
    """What files from elsewhere leave open, and which of several cannot be read."""
    traces = run.find(RankTimes)
    if traces is None:
        yield FOREIGN.format(what="memory", missing="its steps, its time and its numbers")
        return
    if traces.ranks:
        yield from traces.errors
    yield from _about_windows_of_one_rank(run.get(TraceWindows).windows if traces.ranks else ())
    told = [one.header.distributed.get("world_size") for one in traces.ranks.values()]
    sizes = {size for size in told if isinstance(size, int)}  # in a file from elsewhere it may be anything
    (size,) = sizes if len(sizes) == 1 and len(told) > 1 else (0,)
    if (num := size - len(told)) > 0:
        named = ", ".join(map(str, islice((rank for rank in count() if rank not in traces.ranks), min(num, MAX_NAMED))))
        yield f"Of {size} ranks {num} have no trace here that can be read: {named}{', ...' * (num > MAX_NAMED)}."
    if not any((folder / SNAPSHOT).exists() for folder in run.rank_folders):
        use = run.find(TimeUse, UnreadableInput)
        is_inference = use is not None and use.window.is_inference
        of_training = FOREIGN.format(what="time", missing="its memory, its numbers and its exact lines")
        yield INFERENCE if is_inference else of_training


def _about_windows_of_one_rank(windows: Sequence[TraceWindow]) -> Iterator[str]:
    if len(windows) > 1 and windows[0].has_steps:
        first, last = windows[0].step_ms, windows[-1].step_ms
        yield (
            f"{len(windows)} windows of one rank: a step took {format_ms(first)} in the first and {format_ms(last)} in "
            f"the last ({last / first:.2f} times), of which all else here is."
        )


def _about_other_programs(run: Run) -> Iterator[str]:
    threads = run.find(ReadyThreads)
    if threads is not None and threads.is_disturbed:
        others = format_share(threads.others)
        yield f"Other programs held {others} of the cores while this ran: times may be longer than alone."
    if threads is not None and threads.ranks[0].throttled_periods > MIN_OTHERS:
        periods = format_share(threads.ranks[0].throttled_periods)
        yield f"The container's limit of CPU time held this program back in {periods} of the limit's periods."


def _about_other_attempts(run: Run) -> Iterator[str]:
    """How those ended that the report leaves out.

    What neither trained nor failed only looked at something: a script for evaluation, most likely.
    """
    endings = [
        f"attempt {attempt.number + 1} {_how_it_ended(attempt)}"
        for attempt in run.attempts
        if attempt is not run.attempt and (attempt.has_steps or first_error(attempt.rank_folders))
    ]
    if run.attempt is not None and endings:
        about = f"the report is about attempt {run.attempt.number + 1}"
        yield f"This run trained in one process after another; {about}: {', '.join(endings)}."


def _how_it_ended(attempt: Attempt) -> str:
    """By the rank that raised first, else by that which was killed; other ranks only went down with it."""
    error = first_error(attempt.rank_folders)
    if error is not None:
        return f"was ended by {error.error} at step {error.step}"
    for rank in attempt.rank_folders:
        ends = events_of(rank, RecordingEnded)
        if not ends or ends[-1].signal is not None:
            return f"was ended by {ends[-1].signal}" if ends else "was killed"
    return "came to its end"


def _without_steps(run: Run) -> tuple[str, ...]:
    if run.is_foreign:
        return (*_about_foreign(run), *_without_history(run), *_about_devices_not_replayed(run))
    with contextlib.suppress(NotRecorded):
        if torn := tuple(_about_torn_lines("steps.jsonl", run.read_steps[1])):
            return torn
    return (f"No training step was finished in this run, which ended as '{run.run_file.ended}': nothing to check.",)


def _without_history(run: Run) -> Iterator[str]:
    try:
        with contextlib.suppress(UnreadableInput):  # each audit that reads it says so
            run.get(DeviceMemory)
    except NotRecorded as error:
        if any((folder / SNAPSHOT).exists() for folder in run.rank_folders):
            yield str(error)


def _about_devices_not_replayed(run: Run) -> tuple[str, ...]:
    """A check that passes on one device says nothing of another, nor of entries that are not known."""
    memory = run.find(DeviceMemory, UnreadableInput)
    return memory.not_replayed + memory.newer if memory else ()


def _about_stops(run: Run) -> Iterator[str]:
    stops = ((folder, event) for folder in run.rank_folders for event in events_of(folder, CollectorStopped))
    for rank, event in stops:
        where = f"In {rank.name}: " if rank != run.rank_folder else ""
        what = "Recording" if event.collector == WHOLE_RECORDING else f"The collector '{event.collector}'"
        when = f" at step {event.step}" if event.step >= 0 else ""  # the recorder's shell does not know the step
        yield f"{where}{what} stopped{when} ({event.reason}); training went on without it."


def _about_windows_left_out(run: Run, events: Iterable[Event]) -> Iterator[str]:
    left_out = next((event for event in events if isinstance(event, WindowLeftOut)), None)
    dropped = [event.step for event in events if isinstance(event, WindowClosed) and not event.files]
    if any(run.rank_folder.glob("sites-*.parquet")):  # a long run affords one later
        return
    if dropped:
        yield (
            f"{format_count(len(dropped), 'profiler window')} held far more than the step before, or compiled code, "
            f"and none with lines was kept. 'efprof record --trace-steps {dropped[0]}:{dropped[0] + 1}' keeps one, "
            "whatever it takes."
        )
    elif left_out is not None:
        why = "too many for" if left_out.num_events > MAX_EVENTS else "more than the allowance holds of"
        amount, time = f"About {left_out.num_events:,}", f", in {left_out.seconds:.1f} s of CPU time"
        if left_out.has_more:
            amount, time = f"More than {MAX_EVENTS:,}", ""
        yield (
            f"{amount} events per step were {why} a profiler window with lines. 'efprof record --trace-steps "
            f"{left_out.step}:{left_out.step + 1}' records one{time}. It takes 0.8 to 1 GB of memory per million calls."
        )


def _about_broken_ranks(run: Run) -> Iterator[str]:
    """Of several; slow_rank reads their traces too, and names an error of ours in it."""
    with contextlib.suppress(UnreadableInput, RuntimeError):
        times = run.find(RankTimes) if len(run.rank_folders) > 1 else None
        yield from times.errors if times and times.ranks else ()


def _about_torn_lines(file: str, num_torn: int) -> Iterator[str]:
    if num_torn:
        lines = format_count(num_torn, "line")
        yield f"{lines} of {file} could not be read: the recorder was stopped, or the disk was full, while writing."
