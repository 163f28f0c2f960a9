"""A graph that backward is told to keep, and that nobody goes through again."""

from efprof.facts.retained_backward import NeedlessGraph, RetainedBackward
from efprof.facts.retained_backward_call import retaining_call
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
    A line whose calls of backward all keep their graph, where every node of the graphs that were watched is let go
    without having been run again.

    Why it matters
    --------------
    All that forward saved stays until the loss is bound anew, in the middle of the next forward pass: the peak then
    holds two graphs. With `create_graph=True` the gradients hold theirs, too, until `.grad` is cleared.

    Fix
    ---
    Drop the argument. It is of no use on `torch.autograd.grad(..., create_graph=True)`, which keeps its graph anyway.

    Predicted gain
    --------------
    The recorded allocations replayed with the graph's blocks released within the pass that runs them; without an
    allocation window none is claimed.
    """
    found = run.get(RetainedBackward)
    looked_at = f"{found.num_calls} backward calls, and {found.num_watched} graphs that they kept, node by node"
    worth_it = [one for one in found.needless if _is_worth_it(one)]
    return Examination(looked_at=looked_at, findings=tuple(_finding(run, one) for one in worth_it))


def _is_worth_it(found: NeedlessGraph) -> bool:
    replay = found.replay
    if replay is None:
        return found.calls.kept_bytes >= LEAST_SAVED_BYTES
    return replay.saved_bytes >= max(LEAST_SAVED_BYTES, LEAST_SAVED_SHARE * replay.window.peak_bytes)


def _finding(run: Run, found: NeedlessGraph) -> Finding:
    return Finding(
        blame=run.get(Sources).line(found.calls.site),
        category="memory",
        headline="Backward keeps a graph that nobody goes through again",
        message=_message(found),
        fix=_fix(run.get(Sources), found),
        gain=_gain(found.replay),
        evidence=graph_evidence(run, found),
        severity=_severity(found.replay),
    )


def _message(found: NeedlessGraph) -> str:
    replay = found.replay
    until = "into the next step's forward pass" if found.reaches_next_step else "past its end"
    kept = format_bytes(found.calls.kept_bytes if replay is None else replay.kept_bytes)
    told = f"`{found.argument}=True` makes this backward keep {kept} {until}, and no later call goes through that graph"
    if replay is None:
        return told
    share = format_share(replay.saved_bytes / replay.window.peak_bytes)
    return f"{told}: the peak would be {format_bytes(replay.saved_bytes)} ({share}) lower"


def _gain(replay: GraphReplay | None) -> Gain:
    if replay is None:
        return Gain(basis="replay", explanation="none is claimed: no allocation window was recorded with these calls")
    low, high = replay.saved_interval
    return Gain(
        basis="replay",
        explanation="the recorded allocations replayed with each block of the graph released within backward",
        peak_bytes=replay.saved_bytes,
        peak_bytes_interval=(float(low), float(high)),
    )


def _fix(sources: Sources, found: NeedlessGraph) -> Fix:
    call = retaining_call(sources, found.calls.site)
    edit = drop_arguments(call.file, sources.files[call.file], call.node, call.arguments) if call else None
    dropped = " and ".join(f"`{name}=True`" for name in (call.arguments if call else (found.argument,)))
    return Fix(
        summary=f"Drop {dropped}: backward then releases the graph as it goes.",
        applicability="manual" if edit is None else "review" if found.calls.num_created else "safe",
        changes=(edit,) if edit else (),
    )


def _severity(replay: GraphReplay | None) -> Severity:
    share = replay.saved_bytes / replay.window.peak_bytes if replay else 0.0
    return "high" if share >= HIGH_SHARE else "medium" if share >= MEDIUM_SHARE else "low"
