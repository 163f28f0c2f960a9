"""The allocator's cache, emptied in the loop."""

from efprof.facts.device.allocation_retries import what_flushes_give_back
from efprof.facts.run.run import Run
from efprof.facts.source.sources import file_of
from efprof.facts.steps.step_times import StepTimes, stall_lines, within_idle
from efprof.fixes.source_edit import delete_statement
from efprof.model import CUDA_DEVICE, Examination, Finding, Fix, Gain, Narrative, NothingToLookAt, StallLine
from efprof.units import format_bytes, format_count, format_ms, format_share, format_value

CALL = "empty_cache"
MIN_PER_STEP = 0.1
"""Once in ten steps: less often, such as once an epoch or before a checkpoint, it costs nobody anything."""


def cache_flush_in_loop(run: Run) -> Examination:
    """Find calls that empty the allocator's cache again and again.

    ## What it finds
    `torch.cuda.empty_cache()` within the training loop, the time it takes of a step, and what it really gave back.

    ## Why it matters
    The call waits for the device and gives back free segments, which the next step slowly asks the driver for again.

    ## Fix
    Delete the call; where fragments are the reason for it, a setting of the allocator keeps them from arising.

    ## Predicted gain
    The time measured inside the calls; asking the driver again comes on top.
    """
    times, stalls = run.get(StepTimes), stall_lines(run)
    if not run.is_on_cuda:
        raise NothingToLookAt(CUDA_DEVICE)
    flushes = [line for line in stalls if CALL in line.call and line.count_per_step >= MIN_PER_STEP]
    looked_at = f"{len(times.steady)} steps, {format_count(len(stalls), 'line')} that stall"
    return Examination(looked_at=looked_at, findings=tuple(_finding(run, line) for line in flushes))


def _finding(run: Run, line: StallLine) -> Finding:
    gain = Gain.of_step("the time inside the calls; what asking the driver again takes comes on top", line.step_ms)
    gain, step_ms = within_idle(run, gain), max(1e-9, run.get(StepTimes).median_ms())
    flushed = what_flushes_give_back(run)
    given_back = "" if flushed is None else f" In the recorded stretch it gave {format_bytes(flushed)} back each time."
    return Finding(
        blame=line.blame,
        category="time",
        headline="The allocator's cache is emptied in the loop",
        message=f"The cache is emptied {format_value(round(line.count_per_step, 1), 'count')} times per step, "
        f"which takes {format_ms(line.step_ms)} of it ({format_share(line.step_ms / step_ms)}).",
        why="The call waits for the device and gives back segments that the next step asks the driver for again."
        f"{given_back}",
        fix=Fix.by(
            delete_statement(file_of(run, line.blame), line.blame.line),
            "safe",
            "Delete the call: what it gives back is asked for again. Against fragments, 'efprof allocator what-if' "
            "names the setting that helps.",
        ),
        gain=gain,
        evidence=(
            Narrative.of(
                "Each call was timed where it is made. It is right where the memory is meant for another process "
                "on the same device, which cannot have what lies in this one's cache.",
            ),
        ),
    )
