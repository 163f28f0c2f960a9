"""What the peak of memory is without graphs that outlive their backward pass: a replay of a window's allocations.

A graph goes at once, with no allocation between its blocks: by that it is told from what variables of the program hold.
Without the argument each of its blocks is released within the pass, the last one made first; when exactly is not known,
so all of them at its begin and all at its end are the ends of an interval.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from efprof.facts.live_memory import LiveWindow, StageStretch

LEAST_SHARE = 0.5
"""Of what the recorder saw the graph hold: blocks that have less are not the graph."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphReplay:
    """One window with and without the graphs; `live_without` has one place per event, in bytes.

    `peak_interval` is the peak without them where every block had gone as early, or as late, as it can have.
    """

    window: LiveWindow
    kept_bytes: int
    live_without: NDArray[np.int64]
    peak_interval: tuple[int, int]

    @property
    def peak_without(self) -> int:
        """The most that is alive at once without them."""
        return int(np.max(self.live_without))

    @property
    def saved_bytes(self) -> int:
        """What the window's peak falls by."""
        return self.window.peak_bytes - self.peak_without

    @property
    def saved_interval(self) -> tuple[int, int]:
        """The same, at least and at most."""
        least, most = self.peak_interval
        return self.window.peak_bytes - most, self.window.peak_bytes - least


def replay_without_graphs(window: LiveWindow, seen_bytes: int) -> GraphReplay | None:
    """Replay a window whose graphs go when the last pass of their step runs them.

    None where no blocks are found that hold about what the recorder saw a graph hold, `seen_bytes`.
    """
    likely, earliest, latest = dict[int, int](), dict[int, int](), dict[int, int]()
    kept_bytes, first = 0, 0
    moments = list(accumulate(event.num_bytes > 0 for event in window.events))
    for stretch in _last_passes(window):
        candidates = [block for block in range(first, stretch.first) if window.released_at[block] >= stretch.end]
        blocks = _released_together(window, candidates, moments, seen_bytes)
        num_bytes = _bytes_of(window, blocks)
        first = stretch.end
        if num_bytes < LEAST_SHARE * seen_bytes:
            continue
        kept_bytes = max(kept_bytes, num_bytes)
        for rank, block in enumerate(reversed(blocks)):
            earliest[block], latest[block] = stretch.first, stretch.end
            likely[block] = stretch.first + (stretch.end - stretch.first) * rank // len(blocks)
    if not likely:
        return None
    least, most = (int(np.max(_live_with(window, released))) for released in (earliest, latest))
    return GraphReplay(
        window=window, kept_bytes=kept_bytes, live_without=_live_with(window, likely), peak_interval=(least, most)
    )


def _last_passes(window: LiveWindow) -> Sequence[StageStretch]:
    """The last backward pass of each step."""
    return list({stretch.step: stretch for stretch in window.stretches if stretch.stage == "backward"}.values())


def _released_together(
    window: LiveWindow, candidates: Sequence[int], moments: Sequence[int], seen_bytes: int
) -> list[int]:
    """Those with most bytes that go with no allocation between.

    Where the window ends before, variables are among them: as many of the first as a graph was seen to hold.
    """
    together: defaultdict[int | None, list[int]] = defaultdict(list)
    for block in candidates:
        released = int(window.released_at[block])
        together[moments[released] if released < len(moments) else None].append(block)
    moment = max(together, key=lambda one: _bytes_of(window, together[one]), default=None)
    blocks = together[moment]
    if moment is not None:
        return blocks
    sums = accumulate(window.events[block].num_bytes for block in blocks)
    return [block for block, num_bytes in zip(blocks, sums, strict=True) if num_bytes <= seen_bytes]


def _bytes_of(window: LiveWindow, blocks: Sequence[int]) -> int:
    return sum(window.events[block].num_bytes for block in blocks)


def _live_with(window: LiveWindow, released_at: Mapping[int, int]) -> NDArray[np.int64]:
    """Bytes alive after each event, were these blocks released at these events."""
    removed = np.zeros(len(window.events) + 1, dtype=np.int64)
    for block, released in released_at.items():
        removed[released] += window.events[block].num_bytes
        removed[window.released_at[block]] -= window.events[block].num_bytes
    return window.live_bytes - np.cumsum(removed)[:-1]
