"""Records every case sick and healthy, reports, and scores the audits: `make casebook`.

For each case the expected audit must fire on the line marked `# fault`, nothing else may, and the healthy twin must
stay silent. The gain that was predicted is shown beside the one that was measured: sick run less healthy run, the
median of the pairs where there are several.
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
from pathlib import Path
from typing import Any

import click

from efprof.commands.report import analyse
from efprof.model import Finding, Report
from efprof.units import format_bytes, format_ms, parse_bytes

FOLDER = Path(__file__).parent
MARK = "# fault"
EFPROF = Path(sys.executable).with_name("efprof")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One program; `faults` are (audit id, marked line); `budget_bytes` is the constant BUDGET, if it has one."""

    name: str
    path: Path
    faults: tuple[tuple[str, int], ...]
    budget_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """How one case came out in one pair of runs, recorded one after the other."""

    case: Case
    sick: Report
    healthy: Report
    found: int
    on_line: int
    extra: tuple[str, ...]
    false_alarms: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        wanted = len(self.case.faults)
        return self.found == self.on_line == wanted and not self.extra and not self.false_alarms


@click.command()
@click.argument("names", nargs=-1)
@click.option("--runs", type=click.Path(path_type=Path), default=Path(".efprof-casebook"), help="Where to record.")
@click.option("--repeat", default=1, show_default=True, help="Pairs of runs of each case.")
@click.option("--json", "is_json", is_flag=True, help="Print the scores as JSON.")
def main(names: tuple[str, ...], runs: Path, repeat: int, is_json: bool) -> None:
    """Run the casebook, or the cases NAMES of it."""
    shutil.rmtree(runs, ignore_errors=True)
    scores = []
    cases = [case for case in find_cases() if not names or case.name in names]
    for pair in range(repeat):
        for case in cases:
            home = runs / str(pair)
            scores.append(score(case, record(case, home, []), record(case, home, ["--healthy"])))
            if not is_json:
                click.echo(_progress(scores[-1]), err=True)
    click.echo(json.dumps([_plain(entry) for entry in scores], indent=1) if is_json else "\n".join(table(scores)))
    sys.exit(0 if all(entry.is_right for entry in scores) else 1)


def find_cases() -> Iterator[Case]:
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
            )


def record(case: Case, runs: Path, arguments: list[str]) -> Report:
    """Record one run of the case and report it."""
    home = runs / f"{case.name}{'-healthy' if arguments else '-sick'}"
    environment = os.environ | {"EFPROF_HOME": str(home.absolute())}
    command = [str(EFPROF), "record", "--name", case.name, "--", sys.executable, str(case.path), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise click.ClickException(f"{case.name} could not be recorded:\n{done.stderr}")
    (folder,) = (home / "runs").iterdir()
    return analyse(folder, case.budget_bytes)


def score(case: Case, sick: Report, healthy: Report) -> Score:
    """Compare what was found with what was planted."""
    relative = str(case.path.relative_to(Path.cwd())) if case.path.is_relative_to(Path.cwd()) else str(case.path)
    wanted = {(audit, f"{relative}:{line}") for audit, line in case.faults}
    found = [(audit, str(finding.blame)) for audit, finding in _findings(sick)]
    audits = {audit for audit, _ in wanted}
    return Score(
        case=case,
        sick=sick,
        healthy=healthy,
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
    return "; ".join([f"{entry.case.name}: {verdict}", *details, *errors])


def _row(entries: list[Score]) -> str:
    wanted = sum(len(entry.case.faults) for entry in entries)
    cells = [
        entries[0].case.name,
        f"{sum(entry.found for entry in entries)}/{wanted}",
        f"{sum(entry.on_line for entry in entries)}/{wanted}",
        "; ".join(text for entry in entries for text in entry.extra) or "none",
        "; ".join(text for entry in entries for text in entry.false_alarms) or "silent",
        _said([_predicted(entry) for entry in entries]),
        _said([_measured(entry) for entry in entries]),
    ]
    return f"| {' | '.join(cells)} |"


def _predicted(entry: Score) -> tuple[float, float]:
    """Milliseconds per step and bytes of peak that the fixes of the expected findings promise together."""
    gains = [finding.gain for audit, finding in _findings(entry.sick) if audit in dict(entry.case.faults)]
    return sum(gain.step_ms or 0.0 for gain in gains), float(sum(gain.peak_bytes or 0 for gain in gains))


def _measured(entry: Score) -> tuple[float, float]:
    step_ms = _median(entry.sick, "step_ms") - _median(entry.healthy, "step_ms")
    return step_ms, _peak(entry.sick) - _peak(entry.healthy)


def _said(gains: list[tuple[float, float]]) -> str:
    """The medians over the pairs of runs."""
    step_ms, peak_bytes = (statistics.median(column) for column in zip(*gains, strict=True))
    if not step_ms and not peak_bytes:
        return "none claimed"
    parts = [f"{format_ms(step_ms)}/step"] if step_ms else []
    return ", ".join([*parts, *([f"{format_bytes(peak_bytes)} of peak"] if peak_bytes else [])])


def _samples(report: Report, name: str) -> tuple[float, ...]:
    return next((metric.samples for metric in report.measurements.metrics if metric.name == name), ())


def _median(report: Report, name: str) -> float:
    samples = _samples(report, name)
    return statistics.median(samples) if samples else 0.0


def _peak(report: Report) -> float:
    """The highest instant known, at a stage's boundary or within a recorded window."""
    return max((*_samples(report, "peak_allocated_bytes"), *_samples(report, "window_peak_bytes")), default=0.0)


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
    }


if __name__ == "__main__":
    main()
