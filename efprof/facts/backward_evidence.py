"""What a backward peak shows for itself: what filled it, its numbers, and how we know."""

from collections import Counter

from efprof.facts.backward_jump import BackwardJump, Temporaries
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.model import Bar, MemoryMap, Narrative, Number, Numbers
from efprof.units import format_bytes, format_share

MOST_BARS = 8


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
