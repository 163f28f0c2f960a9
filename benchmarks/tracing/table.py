"""The table of `make bench-trace`, and what must hold of its figures."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.tracing.works import Cost, Whole

MB: Final = 1_000_000
BARE, ALONE, BY_TWO, HTA = "bare", "ours", "ours by two", "HTA"

MAX_OVER_BARE: Final = 2.5
MIN_BYTES_OVER_BARE: Final = 20 * MB
"""In smaller files what is done once for a file, as to learn how it writes its times, is part of the figure."""
MAX_WALL_OVER_BARE: Final = 1.5
MIN_OVER_HTA, MIN_OVER_HTA_LARGE, MIN_OVER_HTA_BY_TWO = 8.0, 10.0, 18.0
MIN_BYTES_OVER_HTA: Final = MB
LARGE: Final = 100 * MB
"""From here on two processes must be worth it."""
MAX_PEAK_BYTES, MAX_PEAK_BYTES_PER_EVENT = 60 * MB, 120
HUGE: Final = 1000 * MB
MAX_HUGE_BYTES: Final = 600 << 20
MAX_REPORT_BYTES: Final = 300 * MB
MIN_OVER_TRACELENS: Final = 6.0
MAX_OTHERS: Final = 0.3
"""Processors that other programs keep busy: beyond that two processes have not two of them, and time tells little."""

TABLE_HEAD: Final = (
    "| file | JSON | events | bare: CPU | ours: CPU | over bare | bare: wall | two: wall | over bare "
    "| HTA: CPU | over ours | HTA: wall | over two | peak: bare | ours | two | HTA | at rest, per event |\n"
    f"|{' --- |' * 18}"
)


@dataclass(kw_only=True)
class Row:
    """One file; costs are by the name of the work, round by round, and empty where it was not done."""

    name: str
    num_bytes: int
    costs: dict[str, list[Cost]] = field(default_factory=dict)
    peak_by_two: int = 0

    def median(self, work: str, of: Callable[[Cost], float]) -> float | None:
        """Over the rounds."""
        costs = self.costs.get(work)
        return statistics.median(map(of, costs)) if costs else None

    def ratio(self, work: str, other: str, of: Callable[[Cost], float]) -> float | None:
        """The median of the rounds' ratios; a work that was done less often is compared with its own rounds."""
        pairs = list(zip(self.costs.get(work, ()), self.costs.get(other, ()), strict=False))
        return statistics.median(of(one) / of(two) for one, two in pairs) if pairs else None

    @property
    def num_events(self) -> int:
        return self.costs[ALONE][0].num_events


def cpu(cost: Cost) -> float:
    return cost.cpu_s


def wall(cost: Cost) -> float:
    return cost.wall_s


def peak(cost: Cost) -> float:
    return cost.peak_bytes


def table_line(row: Row, no_hta: str) -> str:
    """One line of the table; `no_hta` stands where HTA has no figure."""
    has_hta = bool(row.costs.get(HTA))
    hta = [
        _seconds(row.median(HTA, cpu)),
        _times(row.ratio(HTA, ALONE, cpu)),
        _seconds(row.median(HTA, wall)),
        _times(row.ratio(HTA, BY_TWO, wall)),
    ]
    cells = [
        row.name,
        f"{row.num_bytes / MB:,.1f} MB",
        f"{row.num_events:,}",
        _seconds(row.median(BARE, cpu)),
        _seconds(row.median(ALONE, cpu)),
        _times(row.ratio(ALONE, BARE, cpu)),
        _seconds(row.median(BARE, wall)),
        _seconds(row.median(BY_TWO, wall)),
        _times(row.ratio(BY_TWO, BARE, wall)),
        *(hta if has_hta else [no_hta, "", "", ""]),
        _megabytes(row.median(BARE, peak)),
        _megabytes(row.median(ALONE, peak)),
        _megabytes(row.peak_by_two),
        _megabytes(row.median(HTA, peak)),
        f"{row.costs[ALONE][0].num_bytes / row.num_events:.1f} B",
    ]
    return f"| {' | '.join(cells)} |"


def requirements(rows: Sequence[Row]) -> Iterator[str]:
    """What holds, and what does not."""
    over_bare = [row.ratio(ALONE, BARE, cpu) or 0.0 for row in rows if row.num_bytes >= MIN_BYTES_OVER_BARE]
    if over_bare:
        yield _most("CPU of columns over a bare decoding's, median over files from 20 MB on", over_bare, MAX_OVER_BARE)
    for row in rows:
        if row.num_bytes >= LARGE:
            yield _wall(row)
        if row.costs.get(HTA) and row.num_bytes >= MIN_BYTES_OVER_HTA:
            yield from _over_hta(row)
    for row in rows:
        most = MAX_PEAK_BYTES + MAX_PEAK_BYTES_PER_EVENT * row.num_events
        yield _memory(f"Peak of one process, {row.name}", row.median(ALONE, peak) or 0.0, most)
        if row.num_bytes >= HUGE:
            yield _memory(f"Peak of two processes together, {row.name}", row.peak_by_two, MAX_HUGE_BYTES)


def report_lines(report: Sequence[Whole], tracelens: Sequence[Whole]) -> Iterator[str]:
    """What a whole report takes, and AMD's of the same file."""
    yield from ("| program | CPU | wall | peak of all processes |", "| --- | --- | --- | --- |")
    for name, wholes in (("efprof report", report), ("TraceLens", tracelens)):
        if wholes:
            cpu_s, wall_s, most = (
                statistics.median(getattr(one, name) for one in wholes) for name in ("cpu_s", "wall_s", "peak_bytes")
            )
            yield f"| {name} | {cpu_s:.2f} s | {wall_s:.2f} s | {most / MB:,.0f} MB |"
    yield ""
    yield _memory("Peak of a report", statistics.median(one.peak_bytes for one in report), MAX_REPORT_BYTES)
    if tracelens:
        ratio = statistics.median(one.cpu_s for one in tracelens) / statistics.median(one.cpu_s for one in report)
        yield _least("CPU of TraceLens over a report's", ratio, MIN_OVER_TRACELENS)


def ranks_lines(wholes: Sequence[tuple[int, Whole]]) -> Iterator[str]:
    """What a report of many ranks takes on so many processors."""
    yield from ("| processors | CPU | wall | peak of all processes |", "| --- | --- | --- | --- |")
    for num, one in wholes:
        yield f"| {num} | {one.cpu_s:.1f} s | {one.wall_s:.1f} s | {one.peak_bytes / MB:,.0f} MB |"


def _wall(row: Row) -> str:
    over_bare = [row.ratio(BY_TWO, BARE, wall) or 0.0]
    name = f"Wall of two processes over a bare decoding's, {row.name}"
    return _with_others(row, _most(name, over_bare, MAX_WALL_OVER_BARE))


def _with_others(row: Row, line: str) -> str:
    """Two processes that must share their processors with other programs are not to blame for it."""
    others = row.median(BY_TWO, lambda cost: cost.others) or 0.0
    if others > MAX_OTHERS:
        line = line.replace(" not held: ", " unclear: ")
    return f"{line} Other programs kept {others:.1f} processors busy meanwhile."


def _over_hta(row: Row) -> Iterator[str]:
    least = MIN_OVER_HTA_LARGE if row.num_bytes >= LARGE else MIN_OVER_HTA
    yield _least(f"CPU of HTA over that of one process, {row.name}", row.ratio(HTA, ALONE, cpu) or 0.0, least)
    if row.num_bytes >= LARGE:
        by_two = row.ratio(HTA, BY_TWO, wall) or 0.0
        name = f"Wall of HTA over that of two processes, {row.name}"
        yield _with_others(row, _least(name, by_two, MIN_OVER_HTA_BY_TWO))


def _most(what: str, values: Sequence[float], most: float) -> str:
    value = statistics.median(values)
    return f"- {what} {'held' if value <= most else 'not held'}: {value:.2f} times, at most {most:g}."


def _least(what: str, value: float, least: float) -> str:
    return f"- {what} {'held' if value >= least else 'not held'}: {value:.1f} times, at least {least:g}."


def _memory(what: str, value: float, most: float) -> str:
    return f"- {what} {'held' if value <= most else 'not held'}: {value / MB:,.0f} MB, at most {most / MB:,.0f} MB."


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _megabytes(value: float | None) -> str:
    return "" if value is None else f"{value / MB:,.0f} MB"
