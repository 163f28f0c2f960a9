"""Which lines of the user's take the time in which a loader makes its batches, in its workers or in the training.

Of workers it is counted in samples, every 20 ms or so; without workers a window of the profiler has the time of each.
"""

import math
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import takewhile

from efprof.artifacts.events import LoaderBuilt
from efprof.artifacts.readings import read_worker_samples
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources, place_of
from efprof.facts.time.trace_windows import TraceWindows
from efprof.model import Evidence, Finding, Narrative, NotRecorded, Row, SourceLine, Table, frozen_dataclass
from efprof.units import format_interval, format_share, in_brackets

MIN_SAMPLES = 50
"""Of busy workers: with fewer, 95 % of the chance is more than 14 points to each side of a half."""
MIN_BUSY = 0.5
"""Workers that wait for the training more than they work are not what it waits for."""
MIN_SHARE = 0.1
"""What certainly takes less of a batch is not worth an edit."""
MIN_SEEN = 0.5
"""Of the wait, in the windows of the profiler: they leave out fetches of more than 20 ms."""
Z_95 = 1.96
MAX_ROWS = 6
MAX_TEXT = 60

Met = defaultdict[str | None, Counter[str | None]]
"""Samples or nanoseconds by the user's line, and by the library's function inside it; None if unknown."""


@frozen_dataclass
class LoaderLine:
    """One of them and its share of the time, with an interval of 95 % where it was sampled.

    `blame` is None for what a library does for no line of the user's. `inside` is the function of a library that was
    met most often below it.
    """

    blame: SourceLine | None
    share: float
    interval: tuple[float, float] | None
    inside: str | None


@frozen_dataclass
class LoaderLines:
    """The slowest first. `busy_share` is how much of their time the workers worked; None where there are none."""

    lines: tuple[LoaderLine, ...]
    busy_share: float | None
    num_samples: int = 0

    @property
    def slowest(self) -> LoaderLine | None:
        """The user's line that takes most, where it takes enough and the wait is for what it does."""
        if self.busy_share is not None and self.busy_share < MIN_BUSY:
            return None
        least = ((line, line.interval[0] if line.interval else line.share) for line in self.lines if line.blame)
        return next((line for line, share in least if share >= MIN_SHARE), None)

    @property
    def sentence(self) -> str:
        """What a finding says of the slowest; empty where there is none."""
        line = self.slowest
        if line is None or line.blame is None:
            return ""
        whose = "a profiled fetch" if self.busy_share is None else "the workers' time"
        low, high = line.interval or (line.share, line.share)
        chance = in_brackets(format_interval(100 * low, 100 * high, "percent"))
        text = line.blame.text[:MAX_TEXT] + "..." * (len(line.blame.text) > MAX_TEXT)
        within = f", inside {line.inside}" if line.inside else ""
        return f"{format_share(line.share)}{chance} of {whose} goes to {line.blame} `{text}`{within}."

    def evidence(self, sources: Sources) -> tuple[Evidence, ...]:
        """The slowest line with those around it, all lines by their shares, and how they are known."""
        line = self.slowest
        snippet = () if line is None or line.blame is None else (sources.snippet(line.blame),)
        return *snippet, self._table(), NARRATIVE_OF_WINDOWS if self.busy_share is None else self._narrative()

    def _table(self) -> Table:
        title, columns = "Where a profiled fetch takes its time", {"line": "", "inside": "", "share": "percent"}
        if self.busy_share is not None:
            title = "Where a worker is while it makes batches"
            columns |= {"at least": "percent", "at most": "percent"}
        return Table.of(title, columns, map(_row, self.lines[:MAX_ROWS]))

    def _narrative(self) -> Narrative:
        idle = f"; {format_share(1 - (self.busy_share or 0.0))} of all samples found a worker waiting to be asked."
        return Narrative.of(
            f"A thread in each worker looked about 50 times a second at which line it was: {self.num_samples:,} "
            f"samples of busy workers{idle} A sample counts for the innermost line in your own files.",
            "The intervals take the samples to be independent; where one item takes seconds, they are too narrow.",
        )


NARRATIVE_OF_WINDOWS = Narrative.of(
    "The training process makes the batches itself, so the windows of the profiler have the time of their lines. The "
    "profiler slows Python functions more than long operators. A line that defines a function stands for what its own "
    "code takes, outside of its calls."
)


def with_lines(run: Run, loader: LoaderBuilt, wait_ms: float, finding: Finding) -> Finding:
    """The finding that a loader is slow, with the line within it that takes most of the time, as far as it is known."""
    lines = lines_of_loader(run, loader, wait_ms)
    if lines is None:
        return finding
    evidence = (*finding.evidence, *lines.evidence(run.get(Sources)))
    return replace(finding, why=lines.sentence or finding.why, evidence=evidence)


def lines_of_loader(run: Run, loader: LoaderBuilt, wait_ms: float) -> LoaderLines | None:
    """None where too little was seen of how it makes its batches; `wait_ms` is what a step waits for them."""
    try:
        return _of_workers(run, loader) if loader.num_workers else _of_windows(run, wait_ms)
    except NotRecorded:
        return None


def _of_workers(run: Run, loader: LoaderBuilt) -> LoaderLines | None:
    met, num_idle, known = Met(Counter), 0, dict[str, str]()
    for samples in read_worker_samples(run.rank_folder):
        if samples.loader == loader.loader:
            num_idle += samples.num_idle
            for line in samples.lines:
                site = line.site and known.setdefault(place_of(line.site), line.site)  # whatever calls its function
                met[site][line.inside] += line.num_samples
    total = sum(inside.total() for inside in met.values())
    if total < MIN_SAMPLES:
        return None
    lines = _ranked(run.get(Sources), met, num_samples=total)
    return LoaderLines(lines=lines, busy_share=total / (total + num_idle), num_samples=total)


def _of_windows(run: Run, wait_ms: float) -> LoaderLines | None:
    """What all paths of the loader have in common leads to it; what is below is the data set's."""
    windows, known = run.get(TraceWindows).windows, dict[str, str]()
    paths: list[tuple[list[str], int]] = []
    for path in (path for window in windows for path in window.walk()):
        if path.stage == "data" and path.own_ns > 0:
            sites = [part.text for part in path.parts() if part.kind in ("line", "function")]
            paths.append(([known.setdefault(place_of(site), site) for site in sites], path.own_ns))
    num_steps = sum(window.num_steps for window in windows)
    if not paths or sum(own_ns for _, own_ns in paths) / 1e6 < MIN_SEEN * wait_ms * num_steps:
        return None
    shared = takewhile(lambda places: len(set(places)) == 1, zip(*(sites for sites, _ in paths), strict=False))
    num_leading = len(list(shared))
    met = Met(Counter)
    for sites, own_ns in paths:
        met[sites[-1] if len(sites) > num_leading else None][None] += own_ns
    return LoaderLines(lines=_ranked(run.get(Sources), met, num_samples=None), busy_share=None)


def _ranked(sources: Sources, met: Met, num_samples: int | None) -> tuple[LoaderLine, ...]:
    found = Counter({site: inside.total() for site, inside in met.items()})
    return tuple(
        LoaderLine(
            blame=None if site is None else sources.line(site),
            share=number / found.total(),
            interval=None if num_samples is None else binomial_interval(number, num_samples),
            inside=met[site].most_common(1)[0][0],
        )
        for site, number in sorted(found.items(), key=lambda one: (-one[1], str(one[0])))
    )


def binomial_interval(number: int, total: int) -> tuple[float, float]:
    """Of a share, with 95 % of the chance: Wilson's (1927), which holds near none and all."""
    share, spread = number / total, Z_95**2 / total
    middle = (share + spread / 2) / (1 + spread)
    half_width = Z_95 * math.sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
    return max(0.0, middle - half_width), min(1.0, middle + half_width)


def _row(line: LoaderLine) -> Row:
    named = "no line of yours" if line.blame is None else f"{line.blame} {line.blame.text[:MAX_TEXT]}"
    return named, line.inside or "", 100 * line.share, *(100 * end for end in line.interval or ())
