"""A device that waits while the host does something else than launch its work."""

import re

from efprof.facts.run.run import Run
from efprof.facts.source.sources import FRAME
from efprof.facts.time.idle_causes import FirstCalls, IdleCause, IdleCauses, IdleKind
from efprof.facts.time.launching_lines import UNKNOWN
from efprof.model import CUDA_DEVICE, Examination, Finding, Fix, Gain, Narrative, NothingToLookAt, SourceLine
from efprof.units import format_count, format_ms, format_share

MIN_SHARE = 0.1
"""Of the steps, or of all that was traced."""
HEADLINES: dict[IdleKind, str] = {
    "memory": "The device waits for memory from its driver",
    "Python": "The device waits while the host computes",
    "operators": "The device waits while the host computes",
}
WHY: dict[IdleKind, str] = {
    "memory": "Each call gives memory back to the driver, or asks it for more, and waits for the device.",
    "Python": "Python runs there for more than a millisecond at a time, and launches nothing.",
    "operators": "These operators run on the CPU, and launch nothing.",
}
ADVICE: dict[IdleKind, str] = {
    "memory": "Leave the allocator's cache on: unset `PYTORCH_NO_CUDA_MEMORY_CACHING`, delete `empty_cache()` in the "
    "loop. If both are so already, memory is nearly full: use smaller micro-batches.",
    "Python": "Move this work into data workers, do it on the device, or do it less often.",
    "operators": "Run these operators on the device (`device=`), or in data workers.",
}

PIN = re.compile("HostAlloc")
PINNED = "Pin memory once: keep the buffers, or let the loader's thread pin batches (`pin_memory=True`)."


def host_computes(run: Run) -> Examination:
    """Find what the host does while the device has nothing to do.

    ## What it finds
    A tenth of the steps in which the device waits for a host that asks the driver for memory, runs Python for more than
    a millisecond at a time, or runs operators that launch nothing; and a tenth of all that was traced in first calls.

    ## Why it matters
    The device stands still meanwhile, however fast it is. To compile the model changes nothing of that.

    ## Fix
    By what the host does: keep the allocator's cache, move work into data workers or onto the device, trace after a
    warm-up.

    ## Predicted gain
    At most the time in which the device waits; of first calls none, since a long training makes them once.
    """
    causes, first = run.get(IdleCauses), run.get(FirstCalls)
    if causes.window.device is None and not first.total_ns:
        raise NothingToLookAt(CUDA_DEVICE)
    told = [cause for cause in causes.causes if cause.kind in ADVICE and causes.share(cause) >= MIN_SHARE]
    findings = [_finding(causes, cause) for cause in told]
    if run.is_foreign and first.total_ns >= MIN_SHARE * first.traced_ns:
        findings.append(_of_first_calls(first))
    kinds = ", ".join(f"{cause.kind} {format_share(causes.share(cause))}" for cause in causes.causes[:3])
    looked_at = f"{format_count(len(causes.window.steps), 'step')}, in which the device waits for: {kinds or 'nothing'}"
    return Examination(looked_at=looked_at, findings=tuple(findings))


def _finding(causes: IdleCauses, cause: IdleCause) -> Finding:
    window, blame = causes.window, cause.blame or UNKNOWN
    waits_ms = cause.spent_ns / 1e6 / window.num_steps * window.scale
    where = "a step on average" if window.has_steps else "of the trace"
    main = _said(cause.function if cause.function and cause.kind != "memory" else cause.parts[0][0])
    parts = ", ".join(f"`{name}` {format_ms(ns / 1e6 / window.num_steps)}" for name, ns in cause.parts)
    return Finding(
        blame=blame,
        category="time",
        headline=HEADLINES[cause.kind],
        message=f"The device waits {format_ms(waits_ms)} {where} ({format_share(causes.share(cause))}) for the host, "
        f"which is in {main}.",
        why=WHY[cause.kind],
        fix=Fix.by_hand(PINNED if PIN.search(cause.parts[0][0]) else ADVICE[cause.kind]),
        gain=Gain.of_step("at most the time in which the device waits", waits_ms),
        evidence=(
            Narrative.of(
                "Each stretch in which the device had nothing to do, and the host had launched nothing, counts for "
                f"what the thread did that launched next, or the thread that it waited for. Per step: {parts}.",
                "The profiler slows Python with its stacks most: a trace without `with_stack=True` tells how much.",
            ),
        ),
    )


def _said(name: str) -> str:
    """`preprocess` (transformers/image_processing.py:235) of a function of Python."""
    frame = FRAME.fullmatch(name)
    return f"`{frame['function']}` ({frame['file']}:{frame['line']})" if frame else f"`{name}`"


def _of_first_calls(first: FirstCalls) -> Finding:
    total, share = format_ms(first.total_ns / 1e6), format_share(first.total_ns / first.traced_ns)
    name, longest_ns = first.spent_ns[0]
    return Finding(
        blame=SourceLine(file="the trace"),
        category="time",
        headline="The trace has no warm-up",
        message=f"{total} of the trace ({share}) went to first calls.",
        why=f"`{name}` alone took {format_ms(longest_ns / 1e6)}: modules are loaded and algorithms chosen once.",
        fix=Fix.by_hand("Trace later steps: `torch.profiler.schedule(wait=5, warmup=2, active=5)`."),
        gain=Gain.none("a long training makes these calls once"),
        severity="medium",  # what else the trace tells is of a few steps, if of any
    )
