"""Whose line made what is alive at the peak."""

from collections import Counter

from efprof.facts.block_categories import Category
from efprof.facts.peak_composition import PeakComposition
from efprof.facts.run import Run
from efprof.facts.sources import Sources

Owner = tuple[str | None, Category]
"""The user's line, None where there is none, and what its memory is for."""


def most_by_line(run: Run, peak: PeakComposition, preferred: str | None = None) -> list[tuple[Owner, int]]:
    """Bytes by owner, most first; `preferred` is a line that owns all that is made beneath it."""
    sources, window = run.get(Sources), peak.window
    sizes: Counter[Owner] = Counter()
    for block in window.alive_after(window.peak_index):
        event = window.events[block]
        stack = event.forward_stack if event.is_backward else event.stack
        lines = [site for site in stack if sources.is_user_code(site)]
        site = preferred if preferred in lines else lines[-1] if lines else None
        sizes[site, peak.categories[block]] += event.num_bytes
    return sizes.most_common()
