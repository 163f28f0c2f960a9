"""Tensor values that are read into Python in every step."""

import math

from efprof.facts.gain.ended_waits import MIN_SHARE_OF_STEPS, wait_finding, worth_an_edit
from efprof.facts.run.run import Run
from efprof.facts.source.sources import file_of
from efprof.facts.time.host_waits import HostWaits, WaitingLine
from efprof.fixes.library_settings import library_call
from efprof.fixes.scalar_read import read_less
from efprof.model import Examination, Finding
from efprof.units import format_count

MIN_COST, MIN_COST_MS = 0.01, 0.05
"""On the CPU: 1 % of the step is worth an edit; below 50 us, 1 % is the measuring itself."""
AFTER_COST = 0.001
"""The share of the step that reading may cost after the fix."""


def blocking_scalar_read(run: Run) -> Examination:
    """Find lines that copy tensor values to Python in every step.

    ## What it finds
    `.item()`, `.tolist()`, `.cpu()`, `float(tensor)`, `if tensor:` in the training step, by line. Reads that torch's
    own code makes are told and not blamed; of another library's, its function is named. On a CPU, where a read waits
    for nothing, all lines are one finding.

    ## Why it matters
    A read waits for all that the GPU has queued; meanwhile Python queues nothing, and the GPU idles afterwards.

    ## Fix
    Keep the value on the device (`.detach()`), and read it every so many steps, or have one read serve several.

    ## Predicted gain
    On a GPU the steps of a trace replayed without the waits; else the time inside the calls, at most the device's idle
    time: an upper bound, since a later read may wait in their place.
    """
    waits = run.get(HostWaits)
    reads = waits.of("read")
    looked_at = f"{waits.steps}, {format_count(len(reads), 'line')} that read"
    if waits.is_gpu:
        guilty = worth_an_edit(run, "read")
        findings = tuple(_finding(run, [line], f", which waits for the GPU for {waits.cost(line)}.") for line in guilty)
        return Examination(looked_at=looked_at, findings=findings)
    least_ms = max(MIN_COST * waits.step_ms, MIN_COST_MS)
    guilty = [line for line in reads if line.typical_ms >= least_ms and line.share_of_steps >= MIN_SHARE_OF_STEPS]
    if not guilty:
        return Examination(looked_at=looked_at)
    where = f"at {len(guilty)} lines" if len(guilty) > 1 else "on this CPU"
    cost = f" {where}: {waits.cost(*guilty)}."
    return Examination(looked_at=looked_at, findings=(_finding(run, guilty, cost),))


def _finding(run: Run, lines: list[WaitingLine], cost: str) -> Finding:
    first, every = lines[0], math.ceil(run.get(HostWaits).share(lines) / AFTER_COST)
    file, called = file_of(run, first.blame), library_call(first.library, " ".join(first.calls))
    return wait_finding(
        run,
        lines,
        f"Tensor values are read in {'every step' if first.count >= 1 else 'half of the steps'}{called.at}",
        f"Tensor values are read {first.times}{called.by}{cost}",
        "Python needs the number: on a GPU the host stops until all that was queued before is done.",
        called.fix or read_less(file, first.blame.line, calls=first.calls, reads_per_step=first.count, every=every),
        "It is harmless where the program must decide by the value before it can go on, and nothing else could be "
        "queued meanwhile.",
        within=called.function,
    )
