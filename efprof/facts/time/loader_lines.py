"""Which lines of the user's take the time in which the workers of a loader make its batches: counted in samples."""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import Final, Self

from efprof.artifacts.events import LoaderBuilt
from efprof.artifacts.readings import read_worker_samples
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources, place_of
from efprof.model import Evidence, Finding, Narrative, NotRecorded, SourceLine, Table
from efprof.units import format_interval, format_share, in_brackets

MIN_SAMPLES: Final = 50
"""Of busy workers: with fewer, 95 % of the chance is more than 14 points to each side of a half."""
MIN_BUSY: Final = 0.5
"""Workers that wait for the training more than they work are not what it waits for."""
MIN_SHARE: Final = 0.1
"""What certainly takes less of a batch is not worth an edit."""
Z_95: Final = 1.96
MAX_ROWS: Final = 6
MAX_TEXT: Final = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderLine:
    """One of them and its share of the samples, with an interval of 95 %; None is no line of the user's.

    `inside` is the function of a library that was met most often below it.
    """

    blame: SourceLine | None
    share: float
    interval: tuple[float, float]
    inside: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderLines:
    """The slowest first. `busy_share` is how much of their time the workers worked."""

    lines: tuple[LoaderLine, ...]
    busy_share: float
    num_samples: int

    @classmethod
    def of(cls, run: Run, loader: LoaderBuilt) -> Self | None:
        """None where too little was seen of how its workers make its batches."""
        try:
            samples = [one for one in read_worker_samples(run.rank_folder) if one.loader == loader.loader]
        except NotRecorded:
            return None
        found = Counter[str | None]()
        inside: dict[str | None, Counter[str | None]] = defaultdict(Counter)
        sites: dict[str | None, str | None] = {}
        for line in (line for one in samples for line in one.lines):
            place = place_of(line.site) if line.site else None
            sites.setdefault(place, line.site)
            found[place] += line.num_samples
            inside[place][line.inside] += line.num_samples
        total, sources = found.total(), run.get(Sources)
        if total < MIN_SAMPLES:
            return None
        lines = (
            LoaderLine(
                blame=sources.line(site) if (site := sites[place]) else None,
                share=number / total,
                interval=binomial_interval(number, total),
                inside=inside[place].most_common(1)[0][0],
            )
            for place, number in sorted(found.items(), key=lambda one: (-one[1], str(one[0])))
        )
        busy_share = total / (total + sum(one.num_idle for one in samples))
        return cls(lines=tuple(lines), busy_share=busy_share, num_samples=total)

    @property
    def slowest(self) -> LoaderLine | None:
        """The user's line that takes most, where it takes enough and the wait is for what it does."""
        worth_it = (line for line in self.lines if line.blame and line.interval[0] >= MIN_SHARE)
        return next(worth_it, None) if self.busy_share >= MIN_BUSY else None

    @property
    def sentence(self) -> str:
        """What a finding says of the slowest; empty where there is none."""
        line = self.slowest
        if line is None or line.blame is None:
            return ""
        low, high = line.interval
        chance = in_brackets(format_interval(100 * low, 100 * high, "percent"))
        text = line.blame.text[:MAX_TEXT] + "..." * (len(line.blame.text) > MAX_TEXT)
        within = f", inside {line.inside}" if line.inside else ""
        return f" {format_share(line.share)}{chance} of the workers' time goes to {line.blame} `{text}`{within}."

    def evidence(self, sources: Sources) -> tuple[Evidence, ...]:
        """The slowest line with those around it, all lines by their shares, and how they are known."""
        line = self.slowest
        snippet = () if line is None or line.blame is None else (sources.snippet(line.blame),)
        columns = {"line": "", "inside": "", "share": "percent", "at least": "percent", "at most": "percent"}
        table = Table.of("Where a worker is while it makes batches", columns, map(_row, self.lines[:MAX_ROWS]))
        narrative = Narrative.of(
            f"A thread in each worker looked about 50 times a second at which line it was: {self.num_samples:,} "
            f"samples of busy workers; {format_share(1 - self.busy_share)} of all samples found a worker waiting to be "
            "asked. A sample counts for the innermost line in your own files.",
            "The intervals take the samples to be independent; where one item takes seconds, they are too narrow.",
        )
        return *snippet, table, narrative


def with_lines(run: Run, loader: LoaderBuilt | None, finding: Finding) -> Finding:
    """The finding that a loader is slow, with the line in its workers that takes most of the time, where it is known."""
    lines = LoaderLines.of(run, loader) if loader else None
    if lines is None:
        return finding
    evidence = (*finding.evidence, *lines.evidence(run.get(Sources)))
    return replace(finding, message=finding.message + lines.sentence, evidence=evidence)


def binomial_interval(number: int, total: int) -> tuple[float, float]:
    """Of a share, with 95 % of the chance: Wilson's (1927), which holds near none and all."""
    share, spread = number / total, Z_95**2 / total
    middle = (share + spread / 2) / (1 + spread)
    half_width = Z_95 * math.sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
    return max(0.0, middle - half_width), min(1.0, middle + half_width)


def _row(line: LoaderLine) -> tuple[str | float, ...]:
    named = "no line of yours" if line.blame is None else f"{line.blame} {line.blame.text[:MAX_TEXT]}"
    return named, line.inside or "", *(100 * share for share in (line.share, *line.interval))
