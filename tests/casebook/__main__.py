"""Records every case sick and healthy, reports, and scores the audits: `make casebook`.

For each case the expected audit must fire on the line marked `# fault`, nothing else may, and the healthy twin must
stay silent. Where the report has an edit, the program is run again with it, and must still run. The gain that was
predicted is shown beside the one that was measured: sick run less the run with the report's own edit, or less the
healthy twin where a person must write the fix; the median of the pairs where there are several. Where the sick run
grows, its last steps are the highest: both peaks are then those of steps outside windows, whose profiler keeps memory
of its own, up to the last step that both runs were read to. The table tells it where the run went on for long.

A case with the constant DEVICE runs on such a device alone: elsewhere it is named, and not counted.
"""

import ast
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import click
import torch

from efprof.commands.report import analyse
from efprof.model import CodeEdit, Finding, MemorySample, Report
from efprof.report.ranking import peak_bytes
from efprof.units import format_bytes, format_ms, parse_bytes
from tests.casebook._edits import edited

FOLDER = Path(__file__).parent
MARK = "# fault"
EFPROF = Path(sys.executable).with_name("efprof")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One program; `faults` are (audit id, marked line).

    `budget_bytes`, `options` of `efprof record` and `device` are the constants BUDGET, OPTIONS and DEVICE, if it has
    them.
    """

    name: str
    path: Path
    faults: tuple[tuple[str, int], ...]
    budget_bytes: int | None = None
    options: tuple[str, ...] = ()
    device: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """How one case came out in one pair of runs, recorded one after the other."""

    case: Case
    sick: Report
    healthy: Report
    fixed: Report | None
    found: int
    on_line: int
    extra: tuple[str, ...]
    false_alarms: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        wanted = len(self.case.faults)
        is_told = self.found == self.on_line == wanted and not self.extra and not self.false_alarms
        return is_told and not self.is_broken_by_fix

    @property
    def mended(self) -> Report:
        """What the sick run is measured against: the run with the report's edits, if those mend every fault."""
        told = [finding for audit, finding in _findings(self.sick) if audit in dict(self.case.faults)]
        has_edits = all(any(isinstance(change, CodeEdit) for change in finding.fix.changes) for finding in told)
        return self.fixed if self.fixed is not None and has_edits else self.healthy

    @property
    def is_broken_by_fix(self) -> bool:
        """Whether the program does not run to its end with the report's edit."""
        return self.fixed is not None and self.fixed.run.ended != "finished"


@click.command()
@click.argument("names", nargs=-1)
@click.option("--runs", type=click.Path(path_type=Path), default=Path(".efprof-casebook"), help="Where to record.")
@click.option("--repeat", default=1, show_default=True, help="Pairs of runs of each case.")
@click.option("--json", "is_json", is_flag=True, help="Print the scores as JSON.")
def main(names: tuple[str, ...], runs: Path, repeat: int, is_json: bool) -> None:
    """Run the casebook, or the cases NAMES of it."""
    shutil.rmtree(runs, ignore_errors=True)
    scores = []
    wanted = [case for case in all_cases() if not names or case.name in names]
    cases = [case for case in wanted if case.device is None or torch.cuda.is_available()]
    if missing := ", ".join(case.name for case in wanted if case not in cases):
        click.echo(f"Not run, for want of a CUDA device: {missing}.", err=True)
    for pair in range(repeat):
        for case in cases:
            home = runs / str(pair)
            sick, healthy = record(case, home, "sick"), record(case, home, "healthy")
            scores.append(score(case, sick, healthy, record_fixed(case, home, sick)))
            if not is_json:
                click.echo(_progress(scores[-1]), err=True)
    click.echo(json.dumps([_plain(entry) for entry in scores], indent=1) if is_json else "\n".join(table(scores)))
    sys.exit(0 if all(entry.is_right for entry in scores) else 1)


def find_cases() -> Iterator[Case]:
    """Those that any machine runs to their end: tests/runs/ holds recordings of them."""
    for case in all_cases():
        if case.device is None and "out_of_memory" not in dict(case.faults):
            yield case


def all_cases() -> Iterator[Case]:
    """Every file of this folder that names what is expected of it."""
    for path in sorted(FOLDER.glob("[!_]*.py")):
        expected, budget = _constant(path, "EXPECTED"), _constant(path, "BUDGET")
        if expected:
            audits = (expected,) if isinstance(expected, str) else tuple(expected)
            yield Case(
                name=path.stem,
                path=path,
                faults=tuple(_faults(path, audits)),
                budget_bytes=parse_bytes(budget) if budget else None,
                options=_constant(path, "OPTIONS") or (),
                device=_constant(path, "DEVICE"),
            )


def record(case: Case, runs: Path, twin: Literal["sick", "healthy", "fixed"], program: Path | None = None) -> Report:
    """Record one run of the case and report it; `program` is its file where that is not the case's own."""
    home = runs / f"{case.name}-{twin}"
    environment = os.environ | {"EFPROF_HOME": str(home.absolute())}
    program_command = [sys.executable, str(program or case.path), *(["--healthy"] if twin == "healthy" else [])]
    command = [str(EFPROF), "record", "--name", case.name, *case.options, "--", *program_command]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise click.ClickException(f"{case.name} could not be recorded:\n{done.stderr}")
    (folder,) = (home / "runs").iterdir()
    return analyse(folder, case.budget_bytes)


def record_fixed(case: Case, runs: Path, sick: Report) -> Report | None:
    """The sick program with the edits of its own report; None where there are none, or some are of other files."""
    fixes = [finding.fix for audit, finding in _findings(sick) if audit in dict(case.faults)]
    edits = [change for fix in fixes for change in fix.changes if isinstance(change, CodeEdit)]
    if not edits or any(edit.file != _relative(case) for edit in edits):
        return None
    program = runs / f"{case.name}-fixed" / case.path.name
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(edited(case.path.read_text(), edits))
    return record(case, runs, "fixed", program)


def score(case: Case, sick: Report, healthy: Report, fixed: Report | None) -> Score:
    """Compare what was found with what was planted."""
    wanted = {(audit, f"{_relative(case)}:{line}") for audit, line in case.faults}
    found = [(audit, str(finding.blame)) for audit, finding in _findings(sick)]
    audits = {audit for audit, _ in wanted}
    return Score(
        case=case,
        sick=sick,
        healthy=healthy,
        fixed=fixed,
        found=len(audits & {audit for audit, _ in found}),
        on_line=len(wanted & set(found)),
        extra=tuple(f"{audit} at {place}" for audit, place in found if (audit, place) not in wanted),
        false_alarms=tuple(f"{audit} at {finding.blame}" for audit, finding in _findings(healthy)),
    )


def table(scores: list[Score]) -> list[str]:
    """The table that goes into the README, and the totals under it."""
    rows = [
        "| case | found | on the line | other findings | healthy twin | predicted gain | measured gain |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    names = dict.fromkeys(entry.case.name for entry in scores)
    rows += [_row([entry for entry in scores if entry.case.name == name]) for name in names]
    wanted = sum(len(entry.case.faults) for entry in scores)
    found, on_line = sum(entry.found for entry in scores), sum(entry.on_line for entry in scores)
    raised = found + sum(len(entry.extra) + len(entry.false_alarms) for entry in scores)
    rows.append("")
    rows.append(
        f"Recall {found}/{wanted}, precision {found}/{raised}, exact line {on_line}/{wanted}, "
        f"healthy twins silent {sum(not entry.false_alarms for entry in scores)}/{len(scores)}."
    )
    return rows


def _relative(case: Case) -> str:
    """The case's file as reports name it."""
    return str(case.path.relative_to(Path.cwd())) if case.path.is_relative_to(Path.cwd()) else str(case.path)


def _constant(path: Path, name: str) -> Any:
    """A constant of the module, read without running the file; None where it has none."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == name:
            return ast.literal_eval(node.value)
    return None


def _faults(path: Path, expected: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """The marked lines; where a case has several faults, each mark names its audit."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        code, mark, named = line.partition(MARK)
        if mark and code.strip():
            yield named.removeprefix(":").strip() or expected[0], number


def _findings(report: Report) -> list[tuple[str, Finding]]:
    return [(result.audit_id, finding) for result in report.audits for finding in result.findings]


def _progress(entry: Score) -> str:
    verdict = "right" if entry.is_right else "WRONG"
    details = [f"extra: {text}" for text in entry.extra] + [f"false alarm: {text}" for text in entry.false_alarms]
    errors = [
        f"{r.audit_id} errored: {r.reason}" for r in entry.sick.audits + entry.healthy.audits if r.status == "errored"
    ]
    broken = ["the program does not run with the edit"] if entry.is_broken_by_fix else []
    return "; ".join([f"{entry.case.name}: {verdict}", *details, *broken, *errors])


def _row(entries: list[Score]) -> str:
    wanted = sum(len(entry.case.faults) for entry in entries)
    cells = [
        entries[0].case.name,
        f"{sum(entry.found for entry in entries)}/{wanted}",
        f"{sum(entry.on_line for entry in entries)}/{wanted}",
        "; ".join(text for entry in entries for text in entry.extra) or "none",
        "; ".join(text for entry in entries for text in entry.false_alarms) or "silent",
        _said([_predicted(entry) for entry in entries]) + _as_far(entries),
        f"{_said([_measured(entry) for entry in entries])}{_measured_as_far(entries)}, by {_fixed_by(entries[0])}",
    ]
    return f"| {' | '.join(cells)} |"


def _predicted(entry: Score) -> tuple[float, float]:
    """Milliseconds per step and bytes of peak that the fixes of the expected findings promise together."""
    gains = [finding.gain for audit, finding in _findings(entry.sick) if audit in dict(entry.case.faults)]
    return sum(gain.step_ms or 0.0 for gain in gains), float(sum(gain.peak_bytes or 0 for gain in gains))


def _measured(entry: Score) -> tuple[float, float]:
    step_ms = _median(entry.sick, "step_ms") - _median(entry.mended, "step_ms")
    if _until_step(entry) is None and not any(_samples(entry.sick, "memory_growth_bytes_per_step")):
        return step_ms, float((peak_bytes(entry.sick) or 0) - (peak_bytes(entry.mended) or 0))
    until = _both_read_until(entry)
    return step_ms, float(_peak_outside_windows(entry.sick, until) - _peak_outside_windows(entry.mended, until))


def _fixed_by(entry: Score) -> str:
    return "the twin" if entry.mended is entry.healthy else "its edit"


def _until_step(entry: Score) -> int | None:
    """The last step that the prediction of the peak holds for; None where it is of the whole run."""
    ends = [finding.gain.until_step for audit, finding in _findings(entry.sick) if audit in dict(entry.case.faults)]
    return max((end for end in ends if end is not None), default=None)


def _both_read_until(entry: Score) -> int:
    """The last step of the sick run that was read and that the mended run, which may go on growing, was read to."""
    sick, mended = ([step for step, _ in _read_outside_windows(report)] for report in (entry.sick, entry.mended))
    return max((step for step in sick if step <= max(mended, default=0)), default=0)


def _measured_as_far(entries: list[Score]) -> str:
    """Empty where it is as far as the prediction goes."""
    until, reached = _until_step(entries[0]), _both_read_until(entries[0])
    return "" if until is None or reached >= until else f" up to step {reached:,}"


def _as_far(entries: list[Score]) -> str:
    end = _until_step(entries[0])
    return "" if end is None else f" up to step {end:,}"


def _said(gains: list[tuple[float, float]]) -> str:
    """The medians over the pairs of runs."""
    step_ms, peak = (statistics.median(column) for column in zip(*gains, strict=True))
    if not step_ms and not peak:
        return "none claimed"
    parts = [f"{format_ms(step_ms)}/step"] if step_ms else []
    return ", ".join([*parts, *([f"{format_bytes(peak)} of peak"] if peak else [])])


def _samples(report: Report, name: str) -> tuple[float, ...]:
    return next((metric.samples for metric in report.measurements.metrics if metric.name == name), ())


def _median(report: Report, name: str) -> float:
    samples = _samples(report, name)
    return statistics.median(samples) if samples else 0.0


def _peak_outside_windows(report: Report, until_step: int) -> int:
    """The highest boundary of any step but those in windows, up to a step.

    One that was read at its end alone is taken to need as much within it as the last one that was read throughout.
    """
    read = [samples for step, samples in _read_outside_windows(report) if step <= until_step]
    fullest = max((len({sample.boundary for sample in samples}) for samples in read), default=0)
    peak = needed = 0
    for samples in read:
        highest = max(sample.allocated_bytes for sample in samples)
        kept = max(samples[0].allocated_bytes, samples[-1].allocated_bytes)
        if len({sample.boundary for sample in samples}) == fullest:
            needed = highest - kept
        peak = max(peak, highest, kept + needed)
    return peak


def _read_outside_windows(report: Report) -> list[tuple[int, list[MemorySample]]]:
    """The steps whose memory was read, each with what was read of it."""
    timeline = report.measurements.timeline
    in_windows = {step.step for step in timeline.steps if step.is_in_window}
    by_step = groupby(timeline.memory, lambda sample: sample.step)
    return [(step, list(samples)) for step, samples in by_step if step not in in_windows]


def _plain(entry: Score) -> dict[str, object]:
    return {
        "case": entry.case.name,
        "is_right": entry.is_right,
        "faults": [list(fault) for fault in entry.case.faults],
        "found": entry.found,
        "on_line": entry.on_line,
        "extra": entry.extra,
        "false_alarms": entry.false_alarms,
        "predicted": _predicted(entry),
        "measured": _measured(entry),
        "measured_by": _fixed_by(entry),
        "until_step": _until_step(entry),
    }


if __name__ == "__main__":
    main()
