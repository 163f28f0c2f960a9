"""How far predicted gains are from those measured without recording: `python -m tests.casebook --gains`.

The program with its fault and the mended one run by turns. The measured gain is the median of the pairs' differences,
its noise half their interquartile range; what does not exceed that threefold is not scored.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

from efprof.units import format_bytes, format_ms, format_share
from tests.casebook._cases import Case
from tests.casebook._scores import Score, expected, predicted, until_step

Resource = Literal["time", "memory"]
RESOURCES: Final[tuple[Resource, Resource]] = ("time", "memory")
PAIRS: Final = {"time": 5, "memory": 3}
MAX_ERROR, MIN_CASES, MIN_NOISES, MIN_STEPS = 0.3, 8, 3.0, 6
LATE_SHARE, LONGEST_SHARE = 1 / 3, 0.05
"""Of the steps the last third tells a step's time, without its longest: what grows is then as long as it gets."""
VARIATIONS: Final = {
    ("repeated_forward", "many short texts"): (("(10, 24)", "(32, 8)"), ("1024", "512")),
    ("repeated_forward", "few, a wide encoder"): (("(10, 24)", "(6, 64)"), ("1024", "2048")),
    ("input_stall", "small batches"): (("batch_size=64", "batch_size=16"),),
    ("input_stall", "a wider model"): (("3, 16, 3", "3, 48, 3"), ("16, 32, 3", "48, 32, 3")),
    ("input_stall_worker", "short texts"): (("1024, 400, 32", "1024, 150, 32"),),
    ("input_stall_worker", "a wider model"): (
        ("NUM_WORDS, 1024", "NUM_WORDS, 3072"),
        ("1024, 1024", "3072, 3072"),
        ("1024, 4)", "3072, 4)"),
    ),
}
"""The same programs at other sizes, by what is replaced in their text: a model must not fit one of them alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredGain:
    """Milliseconds per step, or bytes off the peak.

    `predicted` is None where nothing is claimed, and `why` says why; else that says what mended the program.
    """

    name: str
    predicted: float | None
    resource: Resource = "time"
    why: str = ""
    measured: float = 0.0
    noise: float = 0.0
    slower: float = 1.0
    """How much longer the faulty step took here than when it was recorded: 1 on a quiet machine, busy ones change."""

    @property
    def is_scored(self) -> bool:
        return self.predicted is not None and self.measured != 0 and abs(self.measured) >= MIN_NOISES * self.noise

    @property
    def error(self) -> float:
        """A share of what was measured, which is what saying "no change" is off by."""
        return self.off / abs(self.measured)

    @property
    def off(self) -> float:
        """Of the prediction, as it is at the speed that the machine had when the gain was measured."""
        return abs((self.predicted or 0.0) * self.slower - self.measured)


def variations(cases: Sequence[Case], runs: Path) -> Iterator[Case]:
    """The varied programs of these cases, written below `runs`."""
    for (name, what), changes in VARIATIONS.items():
        for case in (case for case in cases if case.name == name):
            text = case.path.read_text()
            for old, new in changes:
                if old not in text:
                    raise ValueError(f"{name} has no {old!r}")
                text = text.replace(old, new)
            path = runs / what.replace(" ", "-") / case.path.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            yield replace(case, name=f"{name}, {what}", path=path.absolute())


def scored_gains(entry: Score, runs: Path) -> Iterator[ScoredGain]:
    """Of the expected findings together, for each resource that one of them claims."""
    by = "by its edit" if entry.mended is entry.fixed else "by the twin"
    gains = [
        ScoredGain(name=entry.case.name, resource=resource, predicted=gain, why=by)
        for resource, gain in zip(RESOURCES, predicted(entry), strict=True)
        if gain is not None
    ]
    yield from (_measured(gain, entry, runs) for gain in gains)
    told = expected(entry)
    refused = [one.gain.explanation for one in told if one.gain.step_ms is None and one.gain.peak_bytes is None]
    for why in refused if told else [f"nothing found; the program {entry.sick.run.ended}"]:
        yield ScoredGain(name=entry.case.name, predicted=None, why=why)


def _measured(gain: ScoredGain, entry: Score, runs: Path) -> ScoredGain:
    case, is_peak = entry.case, gain.resource == "memory"
    mended = runs / f"{case.name}-fixed" / case.path.name
    by_edit = [str(mended)] if entry.mended is entry.fixed else [str(case.path), "--healthy"]
    programs = [[str(case.path)], by_edit] * PAIRS[gain.resource]
    steps = run_bare(programs, runs / f"{case.name}-bare", is_peak=is_peak)
    if min(map(len, steps)) < MIN_STEPS:
        return replace(gain, predicted=None, why=f"a program made less than {MIN_STEPS} steps without the recorder")
    if is_peak:
        values, slower = peaks_until(steps, until_step(entry)), 1.0
    else:
        values = [_late_ms([(later - at) / 1e6 for (at, _), (later, _) in pairwise(one)]) for one in steps]
        (recorded,) = (one.samples for one in entry.sick.measurements.metrics if one.name == "step_ms")
        slower = statistics.median(values[::2]) / _late_ms(recorded)
    differences = [sick - fixed for sick, fixed in zip(values[::2], values[1::2], strict=True)]
    low, _, high = statistics.quantiles(differences, method="inclusive")
    return replace(gain, measured=statistics.median(differences), noise=(high - low) / 2, slower=slower)


def run_bare(programs: list[list[str]], out: Path, *, is_peak: bool) -> list[list[tuple[int, int]]]:
    """Of each run the nanoseconds at which each step ended, and the most bytes till then."""
    command = [sys.executable, "-m", "tests.casebook._bare", str(out), str(int(is_peak)), json.dumps(programs)]
    with Path(f"{out}.log").open("w") as log:
        subprocess.run(command, stdout=log, stderr=log, check=True)
    return [json.loads(Path(f"{out}-{number}").read_text()) for number in range(len(programs))]


def peaks_until(runs: list[list[tuple[int, int]]], until: int | None) -> list[float]:
    """Up to the same step of each run."""
    shortest = min(len(steps) for steps in runs) - 1
    last = shortest if until is None else min(until, shortest)
    return [float(steps[last][1]) for steps in runs]


def _late_ms(lengths_ms: Sequence[float]) -> float:
    late = sorted(lengths_ms[-round(LATE_SHARE * len(lengths_ms)) :])
    return statistics.fmean(late[: round((1 - LONGEST_SHARE) * len(late))])


def gains_table(gains: Sequence[ScoredGain]) -> list[str]:
    """The table that goes into reports/casebook.md, and the medians under it."""
    rows = [
        "| case | what | predicted | measured | noise | slower | error |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows += [f"| {' | '.join(_cells(gain))} |" for gain in gains]
    return [*rows, "", *(_medians(what, gains) for what in (*RESOURCES, "all"))]


def is_well_predicted(gains: Sequence[ScoredGain]) -> bool:
    """Whether enough cases were scored, and their median error is small enough."""
    errors = [gain.error for gain in gains if gain.is_scored]
    return len(errors) >= MIN_CASES and statistics.median(errors) <= MAX_ERROR


def _medians(what: str, gains: Sequence[ScoredGain]) -> str:
    """Beside a predictor that always says "no change", which is off by all that was measured."""
    scored = [gain for gain in gains if gain.is_scored and what in (gain.resource, "all")]
    if not scored:
        return f"{what}: none scored."
    ours, nothing = format_share(statistics.median(gain.error for gain in scored)), "100 %"
    if what != "all":
        ours += f" ({said(what, statistics.median(one.off for one in scored))})"
        nothing += f" ({said(what, statistics.median(abs(one.measured) for one in scored))})"
    return f"{what}: {len(scored)} scored, median error {ours}; of a predictor that says 'no change' {nothing}."


def _cells(gain: ScoredGain) -> tuple[str, ...]:
    if gain.predicted is None:
        return gain.name, "refused", gain.why, "", "", "", ""
    values = (said(gain.resource, value) for value in (gain.predicted, gain.measured, gain.noise))
    error = format_share(gain.error) if gain.is_scored else "too small to score"
    return gain.name, f"{gain.resource}, {gain.why}", *values, f"{gain.slower:.2f}x", error


def said(resource: str, value: float) -> str:
    """With its unit."""
    return f"{format_ms(value)}/step" if resource == "time" else format_bytes(value)
