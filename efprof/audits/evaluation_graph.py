"""An evaluation that builds graphs, through which no backward pass goes."""

from collections import defaultdict

from efprof.facts.overview.measurements import evaluations_of
from efprof.facts.run.run import Run
from efprof.facts.source.sources import file_of
from efprof.fixes.step_calls import without_graph
from efprof.model import Evaluation, Examination, Finding, Gain, Narrative, SourceLine, ThinEvidence
from efprof.units import MIB, format_bytes, format_count, format_duration

MIN_BYTES = MIB
"""Of graphs at a time: less is within what the allocator's own rounding adds."""
MAX_IN_TURN = 2
"""Graphs that are there at a time where none is kept: a name has the last output until it is given the next one."""


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
    evaluations = [one for one in evaluations_of(run) if not one.is_rollout]
    if not evaluations:
        raise ThinEvidence("No evaluation was seen: no two forward passes in a row were left unused.")
    by_line = defaultdict[SourceLine, list[Evaluation]](list)
    for one in evaluations:
        if one.blame and (one.graph_bytes or 0) * one.num_graphs >= MIN_BYTES:
            by_line[one.blame].append(one)
    forwards = sum(one.num_batches for one in evaluations)
    return Examination(
        looked_at=f"{format_count(len(evaluations), 'evaluation')}, {forwards:,} forward passes",
        findings=tuple(_finding(run, blame, every) for blame, every in by_line.items()),
    )


def _finding(run: Run, blame: SourceLine, every: list[Evaluation]) -> Finding:
    most = max(every, key=lambda one: one.peak_bytes)
    graph_bytes = most.graph_bytes or 0
    held_bytes = graph_bytes * most.num_graphs
    forwards = sum(one.num_batches for one in every)
    why = "Gradients are on there, but no backward pass went through its outputs"
    if most.num_graphs > MAX_IN_TURN:
        headline = "An evaluation keeps its outputs with their graphs"
        message = (
            f"{format_bytes(held_bytes)} of graphs, {most.num_graphs} at a time, are kept by the evaluation at {blame}."
        )
    else:
        headline = "An evaluation builds graphs that are never used"
        message = (
            f"{format_bytes(graph_bytes)} of graph is built by each of {forwards:,} forward passes "
            f"of the evaluation at {blame}."
        )
    seconds = sum(one.total_ms for one in every) / 1000
    return Finding(
        blame=blame,
        category="memory",
        headline=headline,
        message=message,
        why=f"{why}{', and something keeps them' * (most.num_graphs > MAX_IN_TURN)}.",
        fix=without_graph(file_of(run, blame), most.loop or blame),
        gain=_gain(run, most.peak_bytes, held_bytes),
        evidence=(
            Narrative.of(
                "A hook on each output's node is called where a backward pass goes through it: none was, until the "
                "module was updated or the program ended. Memory was read before and after each forward pass; its "
                f"output is no part of the graph. {format_count(len(every), 'evaluation')} of {forwards:,} forward "
                f"passes took {format_duration(seconds)}.",
            ),
        ),
    )


def _gain(run: Run, peak_bytes: int, held_bytes: int) -> Gain:
    steps = (one for one in run.steps if not one.has_pause)
    trained = max((size for one in steps for size in one.allocated()), default=0)
    saved = peak_bytes - max(trained, peak_bytes - held_bytes)
    if saved <= 0:
        return Gain.none("the peak is in training; what the graphs take of time was not measured")
    return Gain(
        explanation="the graphs that were there at once, as far as the peak is higher than in training",
        peak_bytes=saved,
        of_bytes=peak_bytes,
    )
