"""The table of calls that made steps wait."""

from collections.abc import Sequence
from typing import Final

from efprof.model import StallLine
from efprof.report.wording import show

COLUMNS: Final = ("Call", "Line", "Calls per step", "Time per step")
MAX_ROWS: Final = 20
"""The most expensive come first; what follows costs next to nothing."""


def stall_rows(stalls: Sequence[StallLine]) -> tuple[tuple[str, ...], ...]:
    """The rows under `COLUMNS`, averages over the steps."""
    return tuple(
        (stall.call, str(stall.blame), show(stall.count_per_step, "count"), show(stall.step_ms, "ms"))
        for stall in stalls[:MAX_ROWS]
    )
