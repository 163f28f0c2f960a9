"""Waits for the device that no read of a value asks for."""

from efprof.facts.gain.ended_waits import wait_finding, worth_an_edit
from efprof.facts.run.run import Run
from efprof.facts.source.sources import file_of
from efprof.facts.time.host_waits import HostWaits, WaitingLine
from efprof.fixes.library_settings import library_call
from efprof.fixes.source_edit import delete_statement
from efprof.model import CUDA_DEVICE, Examination, Finding, Fix, NothingToLookAt, NotRecorded
from efprof.units import format_count, format_ms, in_brackets

ASKED = {"copy": "A copy of pageable memory", "mask": "Indexing by a mask", "synchronize": "A synchronisation"}
"""What asks for a wait, in words; else it is an operator's name."""
BY_SHAPE = "Keep the shape: `torch.where(mask, x, other)`, or multiply by the mask: how many it has is then not read."
INSTEAD = {
    **dict.fromkeys(("mask", "masked_select", "nonzero", "where", "argwhere"), BY_SHAPE),
    "repeat_interleave": "Pass `output_size=`, the sum of the repeats, where the host knows it.",
    "one_hot": "Pass `num_classes=`: the largest value is then not read.",
    "copy": "Copy from pinned memory and go on: `pin_memory=True` in the `DataLoader`, or `.pin_memory()` once, and "
    "`.to(device, non_blocking=True)`.",
    "synchronize": "Delete it. To measure time, record `torch.cuda.Event(enable_timing=True)` and read it later.",
}
IN_GENERAL = "It reads values to know a size: have it run where the batch is made, or less often."

WHY = {
    "synchronize": "The program asks for it",
    "copy": "Memory that is not pinned may change while it is copied",
}
SIZE = "The size of the result must be known"


def device_synchronisation(run: Run) -> Examination:
    """Find lines that make the host wait for the device without reading a value.

    ## What it finds
    In every step: operators whose result is as large as values on the device say (`nonzero`, indexing by a mask,
    `masked_select`, `repeat_interleave`, `unique`), copies of pageable memory, and `torch.cuda.synchronize()`. What
    torch's own optimizers, gradient scaler, profiler, loader and allocator wait for is told and not blamed; of another
    library's call, its function is named.

    ## Why it matters
    The host launches nothing while it waits; afterwards the device has nothing to do until the next launch.

    ## Fix
    By what asked for it: `torch.where` instead of a mask, a size that is given, pinned memory, no synchronisation.

    ## Predicted gain
    The steps of the trace replayed without these waits; else the time inside them, at most the device's idle time.
    """
    waits = run.get(HostWaits)
    lines = waits.of("synchronisation")
    if not waits.is_gpu:
        named = ", ".join(f"on a GPU {line.calls[0]} waits at {line.blame}" for line in lines)
        raise NothingToLookAt(f"{CUDA_DEVICE}{in_brackets(named)}")
    if waits.use is None and not lines:
        raise NotRecorded("no trace tells what the host waits for; record the run with '--trace-steps 2:4'.")
    told = ", ".join(f"{line.calls[0]} {format_ms(line.typical_ms)}" for line in waits.of("told"))
    looked_at = f"{waits.steps}, {format_count(len(lines), 'line')} that waited without reading"
    findings = tuple(_finding(run, line) for line in worth_an_edit(run, "synchronisation"))
    return Examination(looked_at=f"{looked_at}{f'; torch itself: {told}' if told else ''}", findings=findings)


def _finding(run: Run, line: WaitingLine) -> Finding:
    asked, waits = line.calls[0], run.get(HostWaits)
    file = file_of(run, line.blame)
    edit = delete_statement(file, line.blame.line, asked) if asked == "synchronize" else None
    called, fix = library_call(line.library, asked), Fix.by(edit, "review", INSTEAD.get(asked, IN_GENERAL))
    if called.fix and asked != "copy":  # a batch is pinned where it is made, whoever copies it
        fix = called.fix
    return wait_finding(
        run,
        [line],
        f"The host waits for the device{called.at}",
        f"{ASKED.get(asked, f'`{asked}`')}{called.by} makes the host wait {line.times}, {waits.cost(line)}.",
        f"{WHY.get(asked, SIZE)}: the host stops until all that was queued before is done.",
        fix,
        "It is harmless where the device has enough to do meanwhile.",
        within=called.function,
    )
