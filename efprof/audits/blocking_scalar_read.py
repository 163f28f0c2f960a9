"""Tensor values that are read into Python in every step."""

import math

from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.facts.steps.step_times import StepTimes, part_of_steps, within_idle
from efprof.facts.time.scalar_reads import ReadingLine, gain_without, read_numbers, scalar_reads, what_reading_means
from efprof.fixes.scalar_read import read_less
from efprof.model import Examination, Finding
from efprof.units import format_ms, format_share, format_value

MIN_STEPS = 5
"""Fewer steady steps cannot tell a read in every step from one in a few."""
MIN_SHARE_OF_STEPS = 0.5
"""A line that reads in fewer steps is logging now and then, which is the cure."""
READS_ON_GPU = 1.0
"""On a GPU every read empties the queue: one per step is enough to stall it."""
READS_ON_CPU = 4.0
"""On the CPU a read waits for nothing. Four per backward pass come from an inner loop, which stalls a GPU most; one for
each accumulated micro-batch is ordinary logging."""
MIN_COST, MIN_COST_MS = 0.01, 0.05
"""On the CPU: 1 % of the step is worth an edit; below 50 us, 1 % is the measuring itself."""
AFTER_COST = 0.001
"""The share of the step that reading may cost after the fix."""
HIGH_COST, MEDIUM_COST = 0.1, 0.01


def blocking_scalar_read(run: Run) -> Examination:
    """Find lines that copy tensor values to Python in every step.

    What it finds
    -------------
    `.item()`, `.tolist()`, `.cpu()`, `float(tensor)`, `if tensor:` and `nonzero` in the training step, by line.

    Why it matters
    --------------
    A read waits until the GPU has done everything that was queued before it; meanwhile Python queues nothing, and
    the GPU stands idle afterwards until Python has caught up.

    Fix
    ---
    Keep the value on the device (`.detach()`), and read it only every so many steps. Where the program
    goes on with the number at once, have one read serve several such calls.

    Predicted gain
    --------------
    The measured time inside the reading calls: an upper bound, since a later read may wait in their place.
    """
    times = run.get(StepTimes)
    num_steps = len(times.at_least(MIN_STEPS))
    reads = scalar_reads(run)
    is_gpu, step_ms = bool(run.run_file.devices), times.median_ms()
    guilty = [line for line in reads if _is_guilty(line, step_ms, is_gpu=is_gpu)]
    looked_at = f"{num_steps} steps, {len(reads)} line{'' if len(reads) == 1 else 's'} that read"
    findings = tuple(_finding(run, line, step_ms, is_gpu=is_gpu) for line in guilty)
    return Examination(looked_at=looked_at, findings=findings)


def _is_guilty(line: ReadingLine, step_ms: float, *, is_gpu: bool) -> bool:
    if line.share_of_steps < MIN_SHARE_OF_STEPS:
        return False
    if is_gpu:
        return line.mean_count >= READS_ON_GPU
    costs = line.typical_ms >= max(MIN_COST * step_ms, MIN_COST_MS)
    return costs or (line.count_per_micro_batch >= READS_ON_CPU and not line.is_cut_on_host)


def _finding(run: Run, line: ReadingLine, step_ms: float, *, is_gpu: bool) -> Finding:
    share, gain = line.typical_ms / step_ms, within_idle(run, gain_without(line, is_gpu=is_gpu))
    cost, sources = (gain.step_ms or 0.0) / step_ms, run.get(Sources)
    return Finding(
        blame=line.blame,
        category="time",
        headline=f"A tensor's value is read in {'every step' if line.median_count >= 1 else 'half of the steps'}",
        message=_message(line, share, is_gpu=is_gpu),
        fix=read_less(
            sources.file(line.blame.file),
            line.blame.line,
            calls=line.calls,
            reads_per_step=line.median_count,
            every=math.ceil(cost / AFTER_COST),
        ),
        gain=gain,
        evidence=(
            sources.snippet(line.blame),
            part_of_steps(run.get(StepTimes), "reads of this line", line.ms),
            read_numbers(line, share),
            what_reading_means(line, is_gpu=is_gpu),
        ),
        severity="high" if cost >= HIGH_COST else "medium" if cost >= MEDIUM_COST else "low",
    )


def _message(line: ReadingLine, share: float, *, is_gpu: bool) -> str:
    times = f"{format_value(line.median_count, 'count')} time{'' if line.median_count == 1 else 's'} per step"
    times = times if line.median_count >= 1 else "in half of the steps"
    of_step = format_share(share) if share >= AFTER_COST else f"under {format_share(AFTER_COST)}"
    cost = f"{format_ms(line.typical_ms)} per step ({of_step} of it)"
    if is_gpu:
        return f"A tensor's value is read {times}, which waits for the GPU for {cost}."
    return (
        f"A tensor's value is read {times}; on this CPU run that costs {cost}, "
        "on a GPU each read waits for every kernel queued before it."
    )
