"""What a graph that is kept for nothing shows for itself: memory with and without it, and how we know."""

from efprof.facts.retained_backward import NeedlessGraph
from efprof.facts.retained_backward_replay import GraphReplay
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.model import Evidence, Narrative, Number, Numbers, Series, SeriesLine
from efprof.units import format_bytes

MOST_POINTS = 600
"""A picture this wide loses nothing, and both peaks are kept."""


def graph_evidence(run: Run, found: NeedlessGraph) -> tuple[Evidence, ...]:
    """Everything under a finding, the picture first."""
    sources = run.get(Sources)
    snippet, narrative = sources.snippet(sources.line(found.calls.site)), _how_it_is_known(found)
    if found.replay is None:
        kept = Number(label="held by a graph, the most it can be", value=found.calls.kept_bytes, unit="bytes")
        return snippet, Numbers(title="What is kept", numbers=(kept,)), narrative
    return _memory_series(found.replay), snippet, _numbers(found.replay), narrative


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


def _how_it_is_known(found: NeedlessGraph) -> Narrative:
    calls = found.calls
    paragraphs = [
        f"Each node of {calls.num_watched} graphs that this line kept was watched: no later call of backward, nor of "
        f"torch.autograd.grad, ran any of them again before they were let go. All {calls.num_calls} calls that were "
        "seen keep their graph.",
        _how_much(found.replay),
        "It is wrong where the graph is gone through at some rare step that was not watched: torch then raises an "
        'error that says "Trying to backward through the graph a second time".',
    ]
    if calls.num_created:
        paragraphs.append(
            "create_graph=True gives every gradient a graph, and that graph holds the parameter whose .grad it is: "
            "torch warns of this cycle, which lasts until .grad is cleared. Where second derivatives are wanted, "
            "torch.autograd.grad(..., create_graph=True) returns the gradients and leaves .grad alone."
        )
    return Narrative(title="What it means, how we know, when it is wrong", paragraphs=tuple(paragraphs))


def _how_much(replay: GraphReplay | None) -> str:
    if replay is None:
        return (
            "No allocation window was recorded together with these calls, so that no gain is claimed; it is at most "
            "what a graph was seen to hold."
        )
    least, most = map(format_bytes, replay.saved_interval)
    return (
        "The recorded allocations were replayed with every block of the graph released within backward, the last one "
        f"made first. When exactly each would go is not known: if all went at its end, {least} would be saved, if all "
        f"at its begin, {most}."
    )
