"""Tensor values that are read into Python in every step."""

import math

from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.facts.steps.step_times import StepTimes, part_of_steps, within_idle
from efprof.facts.time.scalar_reads import (
    AFTER_COST,
    ReadingLine,
    gain_without,
    lines_table,
    read_numbers,
    reading_message,
    scalar_reads,
    what_reading_means,
)
from efprof.fixes.scalar_read import read_less
from efprof.model import Examination, Finding, Severity

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

    On a CPU all lines together are one finding of low severity: there a read waits for nothing.

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
    together = [[line] for line in guilty] if is_gpu else [guilty] * bool(guilty)
    findings = tuple(_finding(run, lines, step_ms, is_gpu=is_gpu) for lines in together)
    return Examination(looked_at=looked_at, findings=findings)


def _is_guilty(line: ReadingLine, step_ms: float, *, is_gpu: bool) -> bool:
    if line.share_of_steps < MIN_SHARE_OF_STEPS:
        return False
    if is_gpu:
        return line.mean_count >= READS_ON_GPU
    costs = line.typical_ms >= max(MIN_COST * step_ms, MIN_COST_MS)
    return costs or (line.count_per_micro_batch >= READS_ON_CPU and not line.is_cut_on_host)


def _finding(run: Run, lines: list[ReadingLine], step_ms: float, *, is_gpu: bool) -> Finding:
    first, sources = lines[0], run.get(Sources)
    gain = gain_without(*lines, is_gpu=is_gpu)
    gain = within_idle(run, gain) if is_gpu else gain
    cost = (gain.step_ms or 0.0) / step_ms
    return Finding(
        blame=first.blame,
        category="time",
        headline=f"A tensor's value is read in {'every step' if first.median_count >= 1 else 'half of the steps'}",
        message=reading_message(lines, step_ms, is_gpu=is_gpu),
        fix=read_less(
            sources.file(first.blame.file),
            first.blame.line,
            calls=first.calls,
            reads_per_step=first.median_count,
            every=math.ceil(cost / AFTER_COST),
        ),
        gain=gain,
        evidence=(
            sources.snippet(first.blame),
            part_of_steps(run.get(StepTimes), "reads of this line", first.ms),
            read_numbers(first, first.typical_ms / step_ms),
            *((lines_table(lines),) if len(lines) > 1 else ()),
            what_reading_means(first, is_gpu=is_gpu),
        ),
        severity=_severity(cost) if is_gpu else "low",
    )


def _severity(cost: float) -> Severity:
    return "high" if cost >= HIGH_COST else "medium" if cost >= MEDIUM_COST else "low"
