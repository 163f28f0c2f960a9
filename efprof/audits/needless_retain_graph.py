"""A graph that backward is told to keep, and that nobody goes through again."""

from efprof.facts.retained_backward import RetainedBackward
from efprof.facts.retained_backward_call import RetainingCall
from efprof.facts.retained_backward_evidence import graph_evidence
from efprof.facts.retained_backward_replay import GraphReplay
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.fixes.drop_argument import drop_arguments
from efprof.model import Examination, Finding, Fix, Gain, Severity
from efprof.units import MIB, format_bytes, format_share

LEAST_SAVED_SHARE = 0.02
"""Of the window's peak. Measured on twelve small programs, with and without the argument: 15 to 55 % where it costs, 1
and 2 % where the peak lies elsewhere; the replay was off by 1.2 % of the peak at most."""
LEAST_SAVED_BYTES = MIB
"""Less is not what a run runs out of memory for, whatever its share."""
HIGH_SHARE = 0.4
"""A peak that would fall by so much lets the batch grow by more than half."""
MEDIUM_SHARE = 0.1


def needless_retain_graph(run: Run) -> Examination:
    """Find `retain_graph=True` and `create_graph=True` that keep a graph for nothing.

    What it finds
    -------------
    The last backward call of every step keeps its graph, and the recorded windows show that no node of it is run
    again, in that step or the next.

    Why it matters
    --------------
    All that forward saved stays until the loss is bound anew, in the middle of the next forward pass: the peak then
    holds two graphs. With `create_graph=True` the gradients hold theirs, too, until `.grad` is cleared.

    Fix
    ---
    Drop the argument. It is of no use on `torch.autograd.grad(..., create_graph=True)`, which keeps its graph anyway.

    Predicted gain
    --------------
    The recorded allocations replayed with the graph's blocks released when backward had run them; without an
    allocation window none is claimed.
    """
    found = run.get(RetainedBackward)
    if found.call is None:
        return Examination(looked_at=f"the last backward call of {found.num_steps} steps")
    looked_at = f"{found.num_passes} backward calls, node by node, and the last one of {found.num_steps} steps"
    is_fault = found.is_needless and (found.replay is None or _is_worth_it(found.replay))
    return Examination(looked_at=looked_at, findings=(_finding(run, found, found.call),) if is_fault else ())


def _is_worth_it(replay: GraphReplay) -> bool:
    return replay.saved_bytes >= max(LEAST_SAVED_BYTES, LEAST_SAVED_SHARE * replay.window.peak_bytes)


def _finding(run: Run, found: RetainedBackward, call: RetainingCall) -> Finding:
    return Finding(
        blame=run.get(Sources).line(call.site),
        category="memory",
        headline="The graph is kept after backward, and nobody goes through it again",
        message=_message(found.replay, call),
        fix=_fix(run.get(Sources), call),
        gain=_gain(found.replay),
        evidence=graph_evidence(run, found, call),
        severity=_severity(found.replay),
    )


def _message(replay: GraphReplay | None, call: RetainingCall) -> str:
    told = f"`{'=True, '.join(call.arguments)}=True` makes this backward keep "
    if replay is None:
        return f"{told}its graph, which no later call goes through"
    share = format_share(replay.saved_bytes / replay.window.peak_bytes)
    until = "into the next step's forward pass" if replay.reaches_next_step else "past its end"
    return (
        f"{told}{format_bytes(replay.kept_bytes)} {until}, and no later call goes through that graph: the peak would "
        f"be {format_bytes(replay.saved_bytes)} ({share}) lower"
    )


def _gain(replay: GraphReplay | None) -> Gain:
    if replay is None:
        return Gain(basis="replay", explanation="none is claimed: no allocation window was recorded with these calls")
    low, high = replay.saved_interval
    return Gain(
        basis="replay",
        explanation="the recorded allocations replayed with each block of the graph released when backward had run the "
        "operation that made it",
        peak_bytes=replay.saved_bytes,
        peak_bytes_interval=(float(low), float(high)),
    )


def _fix(sources: Sources, call: RetainingCall) -> Fix:
    edit = drop_arguments(call.file, sources.files[call.file], call.node, call.arguments)
    dropped = " and ".join(f"`{name}=True`" for name in call.arguments)
    return Fix(
        summary=f"Drop {dropped}: backward then releases the graph as it goes.",
        applicability="manual" if edit is None else "review" if call.creates_graph else "safe",
        changes=(edit,) if edit else (),
    )


def _severity(replay: GraphReplay | None) -> Severity:
    share = replay.saved_bytes / replay.window.peak_bytes if replay else 0.0
    return "high" if share >= HIGH_SHARE else "medium" if share >= MEDIUM_SHARE else "low"
