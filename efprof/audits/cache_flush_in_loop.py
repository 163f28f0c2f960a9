"""The allocator's cache, emptied in the loop."""

from efprof.facts.device.cache_flushes import FlushingLine, flushing_lines, what_flushes_give_back
from efprof.facts.device.device_memory import DeviceMemory
from efprof.facts.run.run import Run
from efprof.facts.source.sources import file_of, line_at
from efprof.facts.steps.step_times import StepTimes, stall_lines, within_idle
from efprof.fixes.library_settings import library_call
from efprof.fixes.source_edit import delete_statement
from efprof.model import CUDA_DEVICE, Examination, Finding, Fix, Gain, Narrative, NothingToLookAt, StallLine
from efprof.units import format_bytes, format_count, format_ms, format_share, format_times

CALL = "empty_cache"
MIN_PER_STEP = 0.1
"""Once in ten steps: less often, such as once an epoch or before a checkpoint, it costs nobody anything."""
MIN_FLUSHES, MIN_TAKEN_AGAIN = 4, 0.5
"""By one line of a snapshot, which marks no steps; and of what they gave back."""
MEDIUM_SHARE = 0.05
"""Of the recorded time."""
ADVICE = (
    "Delete the call: what it gives back is asked for again. Against fragments, 'efprof allocator what-if' names the "
    "setting that helps."
)


def cache_flush_in_loop(run: Run) -> Examination:
    """Find calls that empty the allocator's cache again and again.

    ## What it finds
    `torch.cuda.empty_cache()` within the training loop, the time it takes of a step, and what it really gave back. Of a
    snapshot from elsewhere: the same line, four times or more, after which half of it is asked for again.

    ## Why it matters
    The call waits for the device and gives back free segments, which the next step slowly asks the driver for again.

    ## Fix
    Delete the call; where fragments are the reason for it, a setting of the allocator keeps them from arising.

    ## Predicted gain
    The time measured inside the calls; asking the driver again comes on top.
    """
    if run.is_foreign:
        return _of_snapshots(run)
    times, stalls = run.get(StepTimes), stall_lines(run)
    if not run.is_on_cuda:
        raise NothingToLookAt(CUDA_DEVICE)
    flushes = [line for line in stalls if CALL in line.call and line.count_per_step >= MIN_PER_STEP]
    looked_at = f"{len(times.steady)} steps, {format_count(len(stalls), 'line')} that stall"
    return Examination(looked_at=looked_at, findings=tuple(_finding(run, line) for line in flushes))


def _finding(run: Run, line: StallLine) -> Finding:
    gain = Gain.of_step("the time inside the calls; what asking the driver again takes comes on top", line.step_ms)
    gain, step_ms = within_idle(run, gain), max(1e-9, run.get(StepTimes).median_ms())
    flushed, called = what_flushes_give_back(run), library_call(line.library, line.call)
    edit = delete_statement(file_of(run, line.blame), line.blame.line, CALL)
    given_back = "" if flushed is None else f" In the recorded stretch it gave {format_bytes(flushed)} back each time."
    return Finding(
        blame=line.blame,
        category="time",
        headline=f"The allocator's cache is emptied in the loop{called.at}",
        message=f"The cache is emptied {format_times(round(line.count_per_step, 1))} per step"
        f"{called.by}, which takes {format_ms(line.step_ms)} of it ({format_share(line.step_ms / step_ms)}).",
        why="The call waits for the device and gives back segments that the next step asks the driver for again."
        f"{given_back}",
        fix=called.fix or Fix.by(edit, "safe", ADVICE),
        gain=gain,
        within=called.function,
        evidence=(
            Narrative.of(
                "Each call was timed where it is made. It is right where the memory is meant for another process "
                "on the same device, which cannot have what lies in this one's cache.",
            ),
        ),
    )


def _of_snapshots(run: Run) -> Examination:
    run.get(DeviceMemory)  # raises NotRecorded where no history tells
    lines = flushing_lines(run)
    num_flushes = sum(len(line.flushes) for line in lines)
    if not num_flushes:
        raise NothingToLookAt("a line that empties the cache")
    looked_at = f"a history in which lines emptied the cache {format_count(num_flushes, 'time')}"
    often = [line for line in lines if len(line.flushes) >= MIN_FLUSHES and line.taken_share >= MIN_TAKEN_AGAIN]
    return Examination(looked_at=looked_at, findings=tuple(_of_history(run, line) for line in often))


def _of_history(run: Run, line: FlushingLine) -> Finding:
    num, share, called = len(line.flushes), line.share, library_call(line.flushes[0].library, CALL)
    num_segments = sum(flush.num_segments for flush in line.flushes)
    takes = "" if share is None else f" These calls take some {format_share(share)} of the recorded time."
    return Finding(
        blame=line_at(run, line.site),
        category="time",
        headline=f"The allocator's cache is emptied again and again{called.at}",
        message=f"This line emptied the cache {num:,} times, each time of {format_bytes(line.mean_bytes)}.",
        why=f"{format_share(line.taken_share)} of these {num_segments:,} segments was asked for again.{takes}",
        fix=called.fix or Fix.by_hand(ADVICE),
        gain=Gain.none("a snapshot marks no steps, so it does not tell what a step takes"),
        evidence=(
            Narrative.of(
                "Counted are segments that went back to the driver together, below a call of `empty_cache()`, or while "
                "no request had to be served.",
                "What the calls take is the median time between such an event and the one before it.",
            ),
        ),
        severity="low" if share is not None and share < MEDIUM_SHARE else "medium",
    )
