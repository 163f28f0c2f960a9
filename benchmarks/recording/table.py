"""The measured pairs as a Markdown table, and what they say about each budget."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.intervals import Estimate, median_with_interval
from benchmarks.recording.blocks import BlockTimes
from benchmarks.recording.measuring import Pair

LONG_STEP_MS = 5.0
MAX_RATIO_OF_LONG, MAX_RATIO_OF_SHORT = 1.01, 1.03
"""What recording, always on, may make of a step of LONG_STEP_MS or more, and of a shorter one."""

MAX_START_UP_MS = 5.0

MAX_PEAK_BYTES = 50 * 2**20

HEADER = (
    "loop and tool",
    "bare step",
    "ratio, clock on the wall",
    "ratio, CPU time",
    "added per step",
    "by its own account",
    "beyond the allowance",
    "per window",
    "peak memory added",
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A tool on a loop; `added_us` goes by the wall if `is_by_wall`, else by CPU time.

    `beyond_share` is what windows and counts took of a whole run's time, beyond the allowance.
    """

    loop: str
    tool: str
    bare_ms: float
    wall_ratio: Estimate
    cpu_ratio: Estimate
    added_us: Estimate
    beyond_share: float | None = None
    is_by_wall: bool
    own_us: float | None
    window_s: float | None
    peak_added_bytes: int


def row_of(
    loop: str,
    tool: str,
    pairs: Sequence[Pair],
    *,
    is_by_wall: bool,
    peak_added_bytes: int,
    beyond_share: float | None = None,
) -> Row:
    """What the pairs come to."""

    def ratio(of: Callable[[BlockTimes], float]) -> Estimate:
        return median_with_interval([of(pair.tool) / of(pair.bare) for pair in pairs])

    clock = _wall_ms if is_by_wall else _cpu_ms
    return Row(
        loop=loop,
        tool=tool,
        bare_ms=statistics.median(pair.bare.step_ms for pair in pairs),
        wall_ratio=ratio(_wall_ms),
        cpu_ratio=ratio(_cpu_ms),
        added_us=median_with_interval([(clock(pair.tool) - clock(pair.bare)) * 1000 for pair in pairs]),
        beyond_share=beyond_share,
        is_by_wall=is_by_wall,
        own_us=_median([pair.own_us for pair in pairs]),
        window_s=_median([pair.window_s for pair in pairs]),
        peak_added_bytes=peak_added_bytes,
    )


def table_line(row: Row) -> str:
    """Its line of the table."""
    return line(
        [
            f"{row.loop}, {row.tool}",
            f"{row.bare_ms:.2f} ms",
            interval(row.wall_ratio, ".3f"),
            interval(row.cpu_ratio, ".3f"),
            f"{interval(row.added_us, '.0f')} us",
            "" if row.own_us is None else f"{row.own_us:.0f} us",
            "" if row.beyond_share is None else f"{row.beyond_share:.2%}",
            "" if row.window_s is None else f"{row.window_s:.2f} s",
            _mib(row.peak_added_bytes),
        ]
    )


def budgets(row: Row) -> list[str]:
    """Whether always-on recording keeps within what it may cost on this loop."""
    most = MAX_RATIO_OF_LONG if row.bare_ms >= LONG_STEP_MS else MAX_RATIO_OF_SHORT
    lines = [
        f"- {row.loop}, {row.tool}, {clock} {_verdict(whole, most)}: ratio {interval(whole, '.3f')}, at most {most}."
        for clock, ratio in (("CPU time", row.cpu_ratio), ("wall", row.wall_ratio))
        for whole in [_plus(ratio, row.beyond_share or 0.0)]
    ]
    is_small = row.peak_added_bytes <= MAX_PEAK_BYTES
    memory = f"{'held' if is_small else 'not held'}: added {_mib(row.peak_added_bytes)}, at most {_mib(MAX_PEAK_BYTES)}"
    return [*lines, f"- {row.loop}, {row.tool}, peak host memory {memory}."]


def start_up_budget(added_ms: Estimate) -> str:
    """The same of a Python child that never imports torch."""
    verdict, added = _verdict(added_ms, MAX_START_UP_MS), interval(added_ms, ".1f")
    return f"- A Python child that never imports torch {verdict}: added {added} ms, at most {MAX_START_UP_MS:.0f} ms."


def _plus(ratio: Estimate, share: float) -> Estimate:
    return Estimate(value=ratio.value + share, low=ratio.low + share, high=ratio.high + share)


def _verdict(estimate: Estimate, most: float) -> str:
    if estimate.high <= most:
        return "held"
    return "not held" if estimate.low > most else "unclear"


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


TABLE_HEAD = (line(HEADER), line(["---"] * len(HEADER)))


def interval(estimate: Estimate, form: str) -> str:
    if math.isinf(estimate.low):
        return f"{estimate.value:{form}} (too few rounds)"
    return f"{estimate.value:{form}} ({estimate.low:{form}} to {estimate.high:{form}})"


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.0f} MiB"


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _wall_ms(block: BlockTimes) -> float:
    return block.step_ms


def _cpu_ms(block: BlockTimes) -> float:
    return block.cpu_ms
