"""Collectives during which the device computes nothing."""

from efprof.facts.run.run import Run
from efprof.facts.time.collectives import ExposedCommunication, communication_evidence
from efprof.facts.time.launching_lines import LaunchingLine, what_tells_lines
from efprof.model import Examination, Finding, Fix, Gain, ThinEvidence
from efprof.units import format_ms, format_share, format_value

MIN_SHARE = 0.1
"""Of the step. The last bucket of a backward pass can overlap with nothing, and takes some percent of it."""
HIGH_SHARE = 0.3
"""Of the step: a third of what all devices cost."""


def exposed_communication(run: Run) -> Examination:
    """Find collectives that nothing runs beside.

    ## What it finds
    A tenth of the step or more in which the only kernels on the device are those of collectives.

    ## Why it matters
    Every device of the training stands still meanwhile, and more devices make it worse.

    ## Fix
    By what is exchanged: gradients less often, compressed, or in other buckets; prefetching for FSDP; else
    `async_op=True`.

    ## Predicted gain
    The time in which collectives ran alone. It holds the wait for slower ranks.
    """
    found = run.get(ExposedCommunication)
    if not found.collectives:
        return Examination(looked_at="a trace without collectives on a device")
    num = format_value(round(found.per_step, 1), "count")
    looked_at = f"{num} collectives per step, alone on the device for {format_share(found.share)} of it"
    if found.share < MIN_SHARE:
        return Examination(looked_at=looked_at)
    if found.line is None:
        raise ThinEvidence(f"{looked_at}; what launches them is not recorded. {what_tells_lines(found.window)}")
    return Examination(looked_at=looked_at, findings=(_finding(found, found.line),))


def _finding(found: ExposedCommunication, line: LaunchingLine) -> Finding:
    exposed = found.exposed_by_kind
    total = exposed.total() or 1
    kinds = ", ".join(f"{kind} {format_share(spent / total)}" for kind, spent in exposed.most_common(3) if spent)
    where = "each step" if found.window.has_steps else "the trace"
    message = (
        f"For {format_ms(found.exposed_ms)} of {where} ({format_share(found.share)}) the device does nothing but "
        f"communicate: {kinds}."
    )
    return Finding(
        blame=line.blame,
        category="time",
        headline="The device waits for communication",
        message=f"{message}{'' if line.is_line else f' {what_tells_lines(found.window)}'}",
        fix=Fix.by_hand(_advice(found.per_step, exposed.most_common(1)[0][0])),
        gain=Gain.of_step("the time in which collectives ran alone, waits for slower ranks included", found.exposed_ms),
        evidence=communication_evidence(found),
        severity="high" if found.share >= HIGH_SHARE else "medium",
    )


def _advice(per_step: float, kind: str) -> str:
    if kind.endswith("of gradients"):
        return (
            "Exchange less often, by accumulating micro-batches under `model.no_sync()` but for the last; or less, by "
            "`bf16_compress_hook`. A smaller `bucket_cap_mb` of DistributedDataParallel starts it earlier in the "
            f"backward pass, a larger one has fewer parts than the {format_value(round(per_step), 'count')} per step "
            "now; `gradient_as_bucket_view=True` spares copies."
        )
    if kind in ("all-gather", "reduce-scatter"):
        return (
            "Fetch the next layer's parameters while this one computes: FSDP's `forward_prefetch=True` and "
            "`backward_prefetch=BackwardPrefetch.BACKWARD_PRE`, or shard fewer, larger units."
        )
    return f"Start the {kind} earlier with `async_op=True`, and wait for it only where its result is needed."
