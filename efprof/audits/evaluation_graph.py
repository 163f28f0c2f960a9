"""An evaluation that builds graphs, through which no backward pass goes."""

from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.facts.steps.evaluations import Evaluations, NeedlessGraphs
from efprof.fixes.without_graph import without_graph
from efprof.model import Examination, Finding, Gain, Narrative, Numbers, ThinEvidence
from efprof.units import MIB, format_bytes, format_count, format_duration

MIN_BYTES = MIB
"""Of graphs at a time: less is within what the allocator's own rounding adds."""


def evaluation_graph(run: Run) -> Examination:
    """Find evaluations that build graphs, or keep them.

    ## What it finds
    Two or more forward passes in a row of a trained module that build a graph, where no backward pass goes through
    their outputs before the module is updated or the program ends; and how many of these graphs are kept at a time.

    ## Why it matters
    A graph holds the activations of every layer: the peak of memory is then in the evaluation, and a list of its
    losses or outputs keeps all of its batches.

    ## Fix
    Run the evaluation's loop under `with torch.no_grad():`, or decorate its function with `@torch.no_grad()`.

    ## Predicted gain
    The graphs that were there at once, as far as the run's peak would be lower without them. Time is not claimed.
    """
    found = run.get(Evaluations)
    if not found.num_evaluations:
        raise ThinEvidence("No evaluation was seen: every forward pass that came with another was used by backward.")
    forwards = format_count(found.num_forwards, "forward pass")
    looked_at = f"{format_count(found.num_evaluations, 'evaluation')}, {forwards}"
    guilty = [one for one in found.graphs if one.graph_bytes * one.num_alive >= MIN_BYTES]
    return Examination(looked_at=looked_at, findings=tuple(_finding(run, one) for one in guilty))


def _finding(run: Run, found: NeedlessGraphs) -> Finding:
    held = format_bytes(found.num_alive * found.graph_bytes)
    if found.is_kept:
        headline = "An evaluation keeps the graphs of its outputs"
        message = f"{held} in {found.num_alive} graphs at a time are kept by the evaluation at {found.blame}."
    else:
        headline = "An evaluation builds graphs that no backward pass uses"
        message = (
            f"{format_bytes(found.graph_bytes)} of graph is built by each of {found.num_forwards:,} forward "
            f"passes of the evaluation at {found.blame}."
        )
    return Finding(
        blame=found.blame,
        category="memory",
        headline=headline,
        message=message,
        fix=without_graph(run.get(Sources).file(found.blame.file), found.loop or found.blame),
        gain=_gain(found),
        evidence=(
            Numbers.of(
                "Its graphs",
                ("graph of one forward pass", found.graph_bytes, "bytes"),
                ("graphs at a time", found.num_alive, "count"),
                ("forward passes", found.num_forwards, "count"),
                ("evaluations", found.num_evaluations, "count"),
            ),
            Narrative.of(
                "A hook on each output's node is called where a backward pass goes through it: none was, until the "
                "module was updated or the program ended. Memory was read before and after each forward pass; its "
                f"output is no part of the graph. The evaluations took {format_duration(found.total_ms / 1000)}.",
            ),
        ),
    )


def _gain(found: NeedlessGraphs) -> Gain:
    if not found.saved_bytes:
        return Gain.none("the peak is in training; forward passes without a graph take less time, which was not read")
    return Gain(
        basis="measured bound",
        explanation="the graphs that were there at once, as far as the peak is higher than in training",
        peak_bytes=found.saved_bytes,
        of_bytes=found.peak_bytes,
    )
