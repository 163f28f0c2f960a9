"""A graph that backward is told to keep, and that nobody goes through again."""

from efprof.facts.growth.backward_calls import KeepingCalls, RetainedBackward, how_it_is_needless
from efprof.facts.run.run import Run
from efprof.facts.source.sources import file_of, line_at
from efprof.fixes.step_calls import drop_graph
from efprof.model import Examination, Finding, Gain
from efprof.units import MIB, format_bytes

MIN_SHARE = 0.02
"""Of the peak: what a smaller graph adds to it is within what runs differ by."""
MIN_BYTES = MIB
"""Less is not what a run runs out of memory for, whatever its share."""


def needless_retain_graph(run: Run) -> Examination:
    """Find `retain_graph=True` and `create_graph=True` that keep a graph for nothing.

    ## What it finds
    A line whose calls of backward all keep their graph, no node of which was seen to be run again.

    ## Why it matters
    All that forward saved stays until the loss is bound anew, in the next forward pass: the peak holds two graphs.

    ## Fix
    Drop the argument.

    ## Predicted gain
    What a graph was measured to hold, where it lives on into the next forward pass; else none is predicted.
    """
    found = run.get(RetainedBackward)
    looked_at = f"{found.num_calls} backward calls, and {found.num_watched} graphs that they kept, node by node"
    least = max(MIN_BYTES, MIN_SHARE * found.peak_bytes)
    worth_it = [one for one in found.needless if one.kept_bytes >= least]
    return Examination(looked_at=looked_at, findings=tuple(_finding(run, one) for one in worth_it))


def _finding(run: Run, calls: KeepingCalls) -> Finding:
    blame, kept = line_at(run, calls.site), calls.kept_bytes
    argument = "create_graph" if calls.num_created else "retain_graph"
    until = "past its end"
    gain = Gain.none("none is predicted: the graph is gone before the next forward")
    if 2 * calls.num_released_later > calls.num_released:  # mostly
        until = "into the next step's forward pass"
        gain = Gain(
            explanation="what a graph was measured to hold while the next forward pass is made; at most all of it",
            peak_bytes=kept,
            peak_bytes_interval=(0.0, float(kept)),
        )
    return Finding(
        blame=blame,
        category="memory",
        headline="Backward keeps a graph that is never used again",
        message=f"`backward({argument}=True)` keeps {format_bytes(kept)} of graph {until}.",
        why="No later backward goes through that graph.",
        fix=drop_graph(file_of(run, blame), blame.line, argument),
        gain=gain,
        evidence=(how_it_is_needless(calls),),
    )
