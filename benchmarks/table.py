"""The measured pairs as a Markdown table, and what they say about each budget."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.blocks import BlockTimes
from benchmarks.intervals import Estimate, median_with_interval
from benchmarks.measuring import Pair
from benchmarks.variants import LONG_STEP_MS

MAX_RATIO = 1.01
"""What tier 1 may make of a step of LONG_STEP_MS or more."""

MAX_ADDED_US = 40.0
"""What it may add to a shorter one."""

MAX_START_UP_MS = 5.0

MAX_PEAK_BYTES = 50 * 2**20

HEADER = (
    "loop and tool",
    "bare step",
    "ratio, clock on the wall",
    "ratio, CPU time",
    "added per step",
    "of that at its hooks",
    "by its own account",
    "per window",
    "peak memory added",
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A tool on a loop; `added_us` and the budgets go by `clock`."""

    loop: str
    tool: str
    bare_ms: float
    wall_ratio: Estimate
    cpu_ratio: Estimate
    added_us: Estimate
    at_hooks_us: Estimate | None = None
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
    at_hooks_us: Sequence[float] = (),
) -> Row:
    """What the pairs come to, and what was timed at the hooks."""

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
        at_hooks_us=median_with_interval(at_hooks_us) if at_hooks_us else None,
        is_by_wall=is_by_wall,
        own_us=_median([pair.own_us for pair in pairs]),
        window_s=_median([pair.window_s for pair in pairs]),
        peak_added_bytes=peak_added_bytes,
    )


def table_line(row: Row) -> str:
    """Its line of the table."""
    return _line(
        [
            f"{row.loop}, {row.tool}",
            f"{row.bare_ms:.2f} ms",
            _interval(row.wall_ratio, ".3f"),
            _interval(row.cpu_ratio, ".3f"),
            f"{_interval(row.added_us, '.0f')} us",
            "" if row.at_hooks_us is None else f"{_interval(row.at_hooks_us, '.0f')} us",
            "" if row.own_us is None else f"{row.own_us:.0f} us",
            "" if row.window_s is None else f"{row.window_s:.2f} s",
            _mib(row.peak_added_bytes),
        ]
    )


def budgets(row: Row) -> list[str]:
    """Whether the always-on tier keeps within what it may cost on this loop."""
    if row.bare_ms >= LONG_STEP_MS:
        estimate = row.wall_ratio if row.is_by_wall else row.cpu_ratio
        time = f"{_verdict(estimate, MAX_RATIO)}: ratio {_interval(estimate, '.3f')}, at most {MAX_RATIO}"
    else:
        added = _interval(row.added_us, ".0f")
        time = f"{_verdict(row.added_us, MAX_ADDED_US)}: added {added} us, at most {MAX_ADDED_US:.0f} us"
        if row.at_hooks_us is not None:
            at_hooks = _interval(row.at_hooks_us, ".0f")
            time += f"; at its hooks {_verdict(row.at_hooks_us, MAX_ADDED_US)}: {at_hooks} us"
    is_small = row.peak_added_bytes <= MAX_PEAK_BYTES
    memory = f"{'held' if is_small else 'not held'}: added {_mib(row.peak_added_bytes)}, at most {_mib(MAX_PEAK_BYTES)}"
    return [f"- {row.loop}, {row.tool}, time {time}.", f"- {row.loop}, {row.tool}, peak host memory {memory}."]


def start_up_budget(added_ms: Estimate) -> str:
    """The same of a Python child that never imports torch."""
    verdict, added = _verdict(added_ms, MAX_START_UP_MS), _interval(added_ms, ".1f")
    return f"- A Python child that never imports torch {verdict}: added {added} ms, at most {MAX_START_UP_MS:.0f} ms."


def _verdict(estimate: Estimate, most: float) -> str:
    if estimate.high <= most:
        return "held"
    return "not held" if estimate.low > most else "unclear"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


TABLE_HEAD = (_line(HEADER), _line(["---"] * len(HEADER)))


def _interval(estimate: Estimate, form: str) -> str:
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
