"""What an oversized peak shows for itself: what fills it, the ways to lower it, and how we know."""

from efprof.facts.peak_composition import PeakComposition, Way, most_by_line
from efprof.facts.run import Run
from efprof.facts.sources import place_of
from efprof.model import Bar, CodeEdit, Fix, MemoryMap, Narrative, Table
from efprof.units import format_bytes, format_ms

MOST_BARS = 8
LEAST_BAR = 0.005
"""Of the peak: less is not seen."""


def peak_bars(run: Run, peak: PeakComposition, blamed: str | None) -> MemoryMap:
    """What is alive at the peak: what was there before, then by line and what it is for."""
    held = [Bar(label=f"{name} (about)", num_bytes=size) for name, size in peak.held.items()]
    rest = peak.before_bytes - sum(peak.held.values())
    bars = [
        Bar(
            label=f"{'no line of yours' if site is None else place_of(site)} ({category})",
            num_bytes=size,
            is_highlighted=site is not None and site == blamed,
        )
        for (site, category), size in most_by_line(run, peak, blamed)[:MOST_BARS]
    ]
    bars += [*held, Bar(label="all else that was there before", num_bytes=rest)]
    seen = [bar for bar in bars if bar.num_bytes >= LEAST_BAR * peak.peak_bytes]
    return MemoryMap(title="What is alive at the peak", bars=tuple(sorted(seen, key=lambda bar: -bar.num_bytes)))


def table_of_ways(peak: PeakComposition, budget_bytes: int) -> Table:
    """Each with the peak that is predicted for it, lowest first."""
    ordered = sorted(peak.ways, key=lambda way: way.peak_bytes)
    return Table(
        title=f"Ways to a lower peak than {format_bytes(peak.peak_bytes)}; {format_bytes(budget_bytes)} is wished for",
        columns=("what", "predicted peak", "added to a step, about", "stays below"),
        units=("", "bytes", "ms", ""),
        rows=tuple(
            (name_of_way(way), way.peak_bytes, way.extra_ms, "yes" if way.peak_bytes <= budget_bytes else "no")
            for way in ordered
        ),
    )


def name_of_way(way: Way) -> str:
    """In the words of a table's row."""
    place = "" if way.site is None else place_of(way.site)
    match way.kind:
        case "checkpoint":
            times = f", run {way.num_parts} times a step" if way.num_parts > 1 else ""
            return f"checkpoint the call at {place}{times}"
        case "accumulate":
            return f"accumulate gradients over {way.num_parts} micro-batches"
        case "parts":
            return f"do the work at {place} in {way.num_parts} parts"
    return "autocast to bfloat16, at best"


def lower_peak(peak: PeakComposition, budget: int, way: Way | None, edit: CodeEdit | None, *, is_device: bool) -> Fix:
    """The chosen way in words, what it leaves and costs, and the edit where it is known to the letter."""
    if peak.before_bytes > budget:
        advice = (
            "fewer or smaller parameters, a leaner optimizer, or parts of them on the host or on other devices would."
            if is_device
            else "on a CPU that is all of the process, Python and torch (about 120 MiB) included. Raise the budget by "
            "that."
        )
        return Fix(
            summary=f"No batch comes below the budget: {format_bytes(peak.before_bytes)} were there before the step; "
            f"{advice}",
            applicability="manual",
        )
    if way is None:
        return Fix(
            summary="Make the batch smaller: nothing else was found that lowers the peak.", applicability="manual"
        )
    does = name_of_way(way)
    after = f": {format_bytes(way.peak_bytes)} at the peak"
    cost = f", {format_ms(way.extra_ms)} more per step" if way.extra_ms else ""
    missing = "" if way.peak_bytes <= budget else "; that alone is not enough: make the batch smaller as well"
    others = [one for one in peak.within(budget) if one.kind == "accumulate" and one is not way]
    instead = f" Instead, {name_of_way(others[0])}." if others else ""
    return Fix(
        summary=f"{does[0].upper()}{does[1:]}{after}{cost}{missing}.{instead}",
        applicability="review" if edit else "manual",
        changes=(edit,) if edit else (),
    )


def how_peak_is_known(peak: PeakComposition) -> Narrative:
    """What it means, how we know, and when it is wrong."""
    return Narrative(
        title="What it means, how we know, when it is wrong",
        paragraphs=(
            "Memory must hold the highest instant of a step; this is what it is made of. Activations are what the "
            "forward pass keeps for backward, work space what ends within its own stage.",
            f"Every allocation and release of {peak.window.name} was replayed in order. For checkpointing, what is "
            "made beneath a line was taken away from where forward makes it up to where its backward begins, but for "
            "what the call returns; for micro-batches, all that grows with the batch was divided.",
            "The last tensor a call makes is taken for what it returns, and memory is taken to grow with the batch in "
            "proportion. Micro-batches change what batch normalisation sees; bfloat16 changes the numbers themselves. "
            "What was there before the window is counted but not known by line.",
        ),
    )
