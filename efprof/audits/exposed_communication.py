"""Collectives during which the device computes nothing."""

from efprof.facts.run.run import Run
from efprof.facts.time.collectives import ExposedCommunication, communication_evidence, waiting_share
from efprof.facts.time.launching_lines import what_tells_lines
from efprof.model import Examination, Finding, Fix, Gain, NothingToLookAt, SourceLine, ThinEvidence
from efprof.units import format_ms, format_share, format_value

MIN_SHARE = 0.1
"""Of the step. The last bucket of a backward pass can overlap with nothing, and takes some percent of it."""
MANY_EXCHANGES, SHORT_MS = 30, 0.1
"""Then their number costs, not what they carry: a bucket of DDP's 25 MiB takes longer even at 250 GB/s."""
SPARED = 1.5
"""Backward passes per step from which on accumulation is meant, and not a step cut in two by the window."""


MOST = 0.5
"""Of the exposed time: then the wait for the last rank is what to end."""
EVEN_OUT = (
    "Even out the ranks' work before the collective: batches of equal size, shards of equal cost. To move less, or "
    "earlier, saves little of a wait."
)


def exposed_communication(run: Run) -> Examination:
    """Find collectives that nothing runs beside.

    ## What it finds
    A tenth of the step or more in which the only kernels on the device are those of collectives.

    ## Why it matters
    Every device of the training stands still meanwhile, and more devices make it worse.

    ## Fix
    By what is exchanged, and how: `no_sync()` where each of several backward passes per step exchanges gradients;
    buckets where there are many small ones; less to exchange where they are large; prefetching for FSDP; else
    `async_op=True`.

    ## Predicted gain
    The time in which collectives ran alone. It holds the wait for slower ranks.
    """
    found = run.get(ExposedCommunication)
    if not found.collectives:
        raise NothingToLookAt("collectives on a device")
    num = format_value(round(len(found.collectives) / found.window.num_steps, 1), "count")
    looked_at = f"{num} collectives per step, alone on the device for {format_share(found.share)} of it"
    if found.share < MIN_SHARE:
        return Examination(looked_at=looked_at)
    if found.line is None:
        raise ThinEvidence(f"{looked_at}; what launches them is not recorded. {what_tells_lines(found.window)}")
    return Examination(looked_at=looked_at, findings=(_finding(run, found, found.line),))


def _finding(run: Run, found: ExposedCommunication, blame: SourceLine) -> Finding:
    exposed, waiting = found.exposed_by_kind, waiting_share(run, found)
    total = exposed.total() or 1
    kinds = ", ".join(f"{kind} {format_share(spent / total)}" for kind, spent in exposed.most_common(3) if spent)
    where = "each step" if found.window.has_steps else "the trace"
    message = (
        f"For {format_ms(found.exposed_ms)} of {where} ({format_share(found.share)}) the device does nothing but "
        "communicate."
    )
    if waiting:
        message += f" {format_ms(waiting * found.exposed_ms)} of that it waits for the last rank."
    return Finding(
        blame=blame,
        category="time",
        headline="The device waits for communication",
        message=message,
        why=f"No kernel runs beside these collectives: {kinds}."
        f"{'' if blame.line else f' {what_tells_lines(found.window)}'}",
        fix=Fix.by_hand(EVEN_OUT if (waiting or 0.0) > MOST else _advice(found, exposed.most_common(1)[0][0])),
        gain=_gain(found, waiting),
        evidence=communication_evidence(found),
    )


def _gain(found: ExposedCommunication, waiting: float | None) -> Gain:
    """`waiting` is the share in which it waits for other ranks; None where their traces do not tell."""
    if waiting is None:
        why = "the time in which collectives ran alone, waits for slower ranks included"
        return Gain.of_step(why, found.exposed_ms)
    if waiting > MOST:
        return Gain.of_step("what this rank waits for the last one", waiting * found.exposed_ms)
    return Gain.of_step("the time in which collectives ran alone and moved data", (1 - waiting) * found.exposed_ms)


def _advice(found: ExposedCommunication, kind: str) -> str:
    if kind.endswith("of gradients"):
        return _of_gradients(found)
    if kind in ("all-gather", "reduce-scatter") and found.is_fsdp:
        return (
            "Fetch the next layer's parameters while this one computes: FSDP's `forward_prefetch=True` and "
            "`backward_prefetch=BackwardPrefetch.BACKWARD_PRE`, or shard fewer, larger units."
        )
    return f"Start the {kind} earlier with `async_op=True`, and wait for it only where its result is needed."


def _of_gradients(found: ExposedCommunication) -> str:
    num, typical_ms = found.gradients()
    if found.passes_synced_in_vain >= SPARED - 1:
        passes = format_value(round(found.passes_synced_in_vain + 1, 1), "count")
        advice = (
            f"Exchange gradients once per step: `with model.no_sync():` around all but the last of the {passes} "
            "passes, all of which exchange them now."
        )
    elif num >= MANY_EXCHANGES and typical_ms < SHORT_MS:
        how = "a larger `bucket_cap_mb` of DistributedDataParallel" if found.is_ddp else "buckets, as DDP makes them"
        advice = (
            f"Exchange gradients in fewer, larger parts: {how}. Now there are {format_value(round(num), 'count')} "
            f"per step, half of them shorter than {format_ms(typical_ms)}."
        )
    else:
        advice = (
            "Start the exchange earlier: a smaller `bucket_cap_mb` of DistributedDataParallel. Or exchange less "
            "(`bf16_compress_hook`), or less often (accumulate micro-batches under `no_sync()`)."
        )
    if found.copies_buckets:
        advice += " `gradient_as_bucket_view=True` spares the copies after each exchange."
    return advice
