"""What a graph that is kept for nothing shows for itself: memory with and without it, and how we know."""

import statistics

from efprof.facts.retained_backward import RetainedBackward
from efprof.facts.retained_backward_call import RetainingCall, graph_making_line
from efprof.facts.retained_backward_replay import GraphReplay
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.facts.step_times import StepTimes
from efprof.model import Evidence, Narrative, Number, Numbers, Series, SeriesLine
from efprof.units import format_bytes

MOST_POINTS = 600
"""A picture this wide loses nothing, and both peaks are kept."""


def graph_evidence(run: Run, found: RetainedBackward, call: RetainingCall) -> tuple[Evidence, ...]:
    """Everything under a finding, the picture first."""
    sources = run.get(Sources)
    snippet, narrative = sources.snippet(sources.line(call.site)), _how_it_is_known(run, found, call)
    if found.replay is None:
        bound = forward_rise(run)
        numbers = (
            [Number(label="left behind by forward, the most it can be", value=bound, unit="bytes")] if bound else []
        )
        return (snippet, *([Numbers(title="What is kept", numbers=tuple(numbers))] if numbers else []), narrative)
    return _memory_series(found.replay), snippet, _numbers(found.replay), narrative


def forward_rise(run: Run) -> float | None:
    """Bytes that are there when forward ends and were not when it began, the median of the steady steps.

    All that a step's graph saved is among them; None where memory was not read there.
    """
    rises = []
    for time in run.get(StepTimes).steady:
        at = {here.boundary: here.allocated_bytes for here in reversed(time.record.memory)}  # the first of each
        if "pre_forward" in at and "post_forward_pre_backward" in at:
            rises.append(at["post_forward_pre_backward"] - at["pre_forward"])
    return max(0.0, statistics.median(rises)) if rises else None


def _memory_series(replay: GraphReplay) -> Series:
    window = replay.window
    stride = max(1, len(window.events) // MOST_POINTS)
    peak_without = int(replay.live_without.argmax())
    places = sorted({*range(0, len(window.events), stride), window.peak_index, peak_without})
    start_ns = window.events[0].time_ns
    times = tuple((window.events[place].time_ns - start_ns) / 1e6 for place in places)
    return Series(
        title="Memory alive in the recorded steps, with and without the graphs that are kept",
        x_label="time in the window",
        x_unit="ms",
        y_label="alive",
        y_unit="bytes",
        lines=(
            SeriesLine(
                label="as it ran", x=times, y=tuple(float(window.live_bytes[place]) for place in places),
                is_highlighted=True,
            ),
            SeriesLine(
                label="without the argument (replay)", x=times,
                y=tuple(float(replay.live_without[place]) for place in places),
            ),
        ),
        marks=tuple(
            ((window.events[stretch.first].time_ns - start_ns) / 1e6, "backward begins")
            for stretch in window.stretches
            if stretch.stage == "backward"
        ),
    )  # fmt: skip


def _numbers(replay: GraphReplay) -> Numbers:
    low, high = replay.saved_interval
    return Numbers(
        title="The peak of the recorded window",
        numbers=(
            Number(label="kept past backward", value=replay.kept_bytes, unit="bytes"),
            Number(label="peak", value=replay.window.peak_bytes, unit="bytes"),
            Number(label="peak without", value=replay.peak_without, unit="bytes"),
            Number(label="saved", value=replay.saved_bytes, unit="bytes", interval=(float(low), float(high))),
        ),
    )


def _how_it_is_known(run: Run, found: RetainedBackward, call: RetainingCall) -> Narrative:
    paragraphs = [
        f"{found.num_passes} calls of this line were recorded node by node: no later call ran any of their nodes "
        "again, and they ran none that is older than their own step. All "
        f"{found.num_steps} steady steps call backward last on this line, and none more often than those recorded.",
        _how_much(found.replay),
        "It is wrong where the graph is gone through at some rare step that no window saw: torch then raises an error "
        'that says "Trying to backward through the graph a second time".',
    ]
    if call.creates_graph:
        paragraphs.append(
            "create_graph=True gives every gradient a graph, and that graph holds the parameter whose .grad it is: "
            "torch warns of this cycle, which lasts until .grad is cleared. Where second derivatives are wanted, "
            "torch.autograd.grad(..., create_graph=True) returns the gradients and leaves .grad alone."
        )
    line = graph_making_line(run.get(Sources), call.file)
    if line is not None:
        paragraphs.append(
            f"Line {line} calls torch.autograd.grad(..., create_graph=True), which keeps its graph with or without "
            "retain_graph=True: to take it out there changes nothing. What frees memory there is to let go of the "
            "gradient and the penalty after backward (del), or to compute the penalty in every n-th step only."
        )
    return Narrative(title="What it means, how we know, when it is wrong", paragraphs=tuple(paragraphs))


def _how_much(replay: GraphReplay | None) -> str:
    if replay is None:
        return (
            "No allocation window was recorded together with these calls, so that no gain is claimed; it is at most "
            "what the forward pass leaves behind."
        )
    least, most = map(format_bytes, replay.saved_interval)
    doubt = f"if all did, {least} would be saved, if none did, {most}" if least != most else f"it is {least} either way"
    return (
        "The recorded allocations were replayed with every block of the graph released when backward had run the "
        "operation that made it. Whether an operation needs its own result for that is known for the common ones; "
        f"{doubt}."
    )
