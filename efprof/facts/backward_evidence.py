"""What a backward peak shows for itself: memory over the window, what filled it, the stages, and how we know."""

from collections import Counter

from efprof.artifacts.steps import read_steps
from efprof.facts.backward_jump import BackwardJump, Temporaries
from efprof.facts.live_memory import LiveWindow
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.facts.stage_memory import stage_deltas
from efprof.model import Bar, MemoryMap, Narrative, Number, Numbers, Series, SeriesLine, StageDelta, Table
from efprof.units import format_bytes, format_share

MOST_BARS = 8
MOST_POINTS = 600
"""A picture this wide loses nothing, and the peak itself is kept."""


def live_series(jump: BackwardJump) -> Series:
    """Bytes alive over the step of the peak, with the start of backward marked."""
    window, stretch = jump.window, jump.stretch
    assert stretch is not None
    stretches = window.stretches_of(stretch.step)
    first, end = stretches[0].first, stretches[-1].end
    stride = max(1, (end - first) // MOST_POINTS)
    places = sorted({*range(first, end, stride), window.peak_index, end - 1})
    start_ns = window.events[first].time_ns
    return Series(
        title=f"Memory alive in step {stretch.step}",
        x_label="time in the step",
        x_unit="ms",
        y_label="alive",
        y_unit="bytes",
        lines=(
            SeriesLine(
                label="allocated in the window",
                x=tuple((window.events[place].time_ns - start_ns) / 1e6 for place in places),
                y=tuple(float(window.live_bytes[place]) for place in places),
                is_highlighted=True,
            ),
        ),
        marks=(
            ((window.events[stretch.first].time_ns - start_ns) / 1e6, "backward begins"),
            ((window.events[window.peak_index].time_ns - start_ns) / 1e6, "peak"),
        ),
    )


def peak_map(run: Run, jump: BackwardJump, blamed: Temporaries) -> MemoryMap:
    """What is alive at the peak, by the user's line and whether forward or backward made it."""
    sources, events = run.get(Sources), jump.window.events
    sizes: Counter[tuple[str, str]] = Counter()
    for block in jump.window.alive_after(jump.window.peak_index):
        stack = events[block].forward_stack if events[block].is_backward else events[block].stack
        site = next((site for site in reversed(stack) if sources.is_user_code(site)), None)
        place = "no line of yours" if site is None else site.rpartition(":")[0]
        sizes["backward" if events[block].is_backward else "forward", place] += events[block].num_bytes
    bars = [
        Bar(
            label=f"{place} ({stage})",
            num_bytes=num_bytes,
            is_highlighted=stage == "backward" and blamed.site.startswith(f"{place}:"),
        )
        for (stage, place), num_bytes in sizes.most_common(MOST_BARS)
    ]
    return MemoryMap(title="What is alive at the peak", bars=tuple(bars))


def jump_numbers(jump: BackwardJump, blamed: Temporaries) -> Numbers:
    """The peak and what it is made of."""
    return Numbers(
        title="The peak of the recorded window",
        numbers=(
            Number(label="peak", value=jump.peak_bytes, unit="bytes"),
            Number(label="alive when backward began", value=jump.start_bytes, unit="bytes"),
            Number(label="gradients of parameters (needed)", value=jump.needed_bytes, unit="bytes"),
            Number(label="jump", value=jump.jump_bytes, unit="bytes"),
            Number(label="of this line", value=blamed.num_bytes, unit="bytes"),
        ),
    )


def stage_rows(run: Run) -> tuple[StageDelta, ...]:
    """Memory at each stage boundary over the whole run."""
    return stage_deltas([record for record in read_steps(run.rank_folder)[0] if record.window is None])


def stage_table(rows: tuple[StageDelta, ...], window: LiveWindow) -> Table:
    """Deltas by stage, and the module that allocated most of what the stage keeps."""
    return Table(
        title="Memory by stage over the whole run",
        columns=("boundary", "average", "average change", "largest jump", "at step", "most by"),
        units=("", "bytes", "bytes", "bytes", "count", ""),
        rows=tuple(
            (
                row.boundary,
                row.average_bytes,
                row.average_delta_bytes,
                row.largest_jump_bytes,
                row.largest_jump_step,
                module_of(window, row.boundary),
            )
            for row in rows
        ),
    )


def largest_jump(rows: tuple[StageDelta, ...], window: LiveWindow) -> str:
    """The end of the message: what backward changes on average, and the run's largest change between boundaries."""
    backward = next((row for row in rows if row.boundary == "post_backward"), None)
    if backward is None:
        return "."
    top = max(rows, key=lambda row: row.largest_jump_bytes)
    module = module_of(window, top.boundary)
    by = f", most of it by {module}" if module else ""
    return (
        f"; over the whole of backward it changes by {format_bytes(backward.average_delta_bytes)} on average, and the "
        f"run's largest jump is {format_bytes(top.largest_jump_bytes)}, up to {top.boundary} of step "
        f"{top.largest_jump_step}{by}."
    )


def module_of(window: LiveWindow, boundary: str) -> str:
    """The innermost module class that allocated most in the stage before a boundary; empty where none did."""
    stages = {
        "pre_forward": "data",
        "post_forward_pre_backward": "forward",
        "pre_backward": "forward",
        "post_backward": "backward",
        "post_optimizer_step": "optimizer",
    }
    sizes: Counter[str] = Counter()
    for stretch in window.stretches:
        if stretch.stage == stages.get(boundary):
            for event in window.events[stretch.first : stretch.end]:
                if event.num_bytes > 0:
                    sizes[event.modules[-1] if event.modules else ""] += event.num_bytes
    return sizes.most_common(1)[0][0] if sizes else ""


def how_jump_is_known(jump: BackwardJump, blamed: Temporaries) -> Narrative:
    """What it means, how we know, and when it is wrong."""
    assert jump.stretch is not None
    share = format_share(blamed.num_bytes / max(1, jump.temporary_bytes))
    return Narrative(
        title="What it means, how we know, when it is wrong",
        paragraphs=(
            "The largest batch that fits is set by one instant: when this line's gradient is computed. The gradient of "
            "a large result is as large as that, and here it exists more than once, beside all that forward saved.",
            "Every allocation and release of a window was replayed in order. Its peak lies in backward of step "
            f"{jump.stretch.step}; {share} of what backward had allocated then, and released before it ended, was for "
            "the operation that forward called on this line. Gradients of parameters "
            f"({format_bytes(jump.needed_bytes)}), which the optimizer needs, are not counted.",
            "The window counts from its own start: weights and optimizer state are not in it. It is wrong where the "
            "recorded steps are not typical, such as shorter sequences than later ones.",
        ),
    )
