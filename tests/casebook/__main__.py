"""Records every case sick and healthy, reports, and scores the audits: `make casebook`.

For each case the expected audit must fire on the line marked `# fault`, one of its faults must lead the report (told
first), nothing else may fire, and the healthy twin must stay silent, but for what may still be filling. Where the
report has an edit, the program is run again with it, and must still run. With `--gains` the gains that were predicted
are compared with those measured without recording: see `_gains.py`.

A case with the constant DEVICE runs on such a device alone: elsewhere it is named, and not counted. With
`--repeat 3 --load 2` each is recorded three times beside two busy loops; the table says how often the verdict was the
same. The name `collection` stands for public reports of NaN and Inf, which are hunted: see `_born.py`.
"""

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import click
import torch

from efprof.commands.report import analyse
from efprof.fixes.files import edited
from efprof.model import CodeEdit, Report
from efprof.report.verdict import describe_verdict
from tests.casebook._born import Tried, born_table, false_alarms, tried
from tests.casebook._cases import Case, all_cases
from tests.casebook._gains import RESOURCES, ScoredGain, gains_table, is_well_predicted, said, scored_gains, variations
from tests.casebook._scores import Score, findings, is_told_first, predicted, until_step
from tests.recorder.recording import EFPROF
from tests.support.busy import busy_loops

COLLECTION = "collection"


@click.command()
@click.argument("names", nargs=-1)
@click.option("--runs", type=click.Path(path_type=Path), default=Path(".efprof-casebook"), help="Where to record.")
@click.option("--repeat", default=1, show_default=True, help="Pairs of runs of each case.")
@click.option("--load", default=0, show_default=True, help="Busy loops beside it.")
@click.option("--gains", "is_gains", is_flag=True, help="Measure the gains without recording too, and score them.")
def main(names: tuple[str, ...], runs: Path, repeat: int, load: int, is_gains: bool) -> None:
    """Run the casebook, or the cases NAMES of it; the name of a folder stands for all in it."""
    shutil.rmtree(runs, ignore_errors=True)
    scores = []
    wanted = [case for case in all_cases() if not names or {case.name, case.path.parent.name} & set(names)]
    cases = [case for case in wanted if case.device is None or torch.cuda.is_available()]
    if missing := ", ".join(case.name for case in wanted if case not in cases):
        click.echo(f"Not run, for want of a CUDA device: {missing}.", err=True)
    with busy_loops(load):
        for pair in range(repeat):
            for case in cases:
                scores.append(record_all(case, runs / str(pair)))
                click.echo(_progress(scores[-1]), err=True)
        click.echo("\n".join(table(scores)))
        has_collection = not names or COLLECTION in names
        born, alarms = list[Tried](), list[str]()
        for one in tried(runs / COLLECTION) if has_collection else ():
            born.append(one)
            click.echo(f"{one.snippet.name}: line {one.after}, advice {one.advice}", err=True)
        if has_collection:
            alarms = false_alarms(runs / COLLECTION)
            click.echo("\n".join(["", *born_table(born, alarms)]))
        began, gains = time.monotonic(), list[ScoredGain]()
        for gain in _all_gains(scores[: len(cases)], runs / "0") if is_gains else ():
            gains.append(gain)
            click.echo(f"gain of {gain.name}: {said(gain.resource, gain.measured)} measured", err=True)
    if is_gains:
        click.echo("\n".join(["", *gains_table(gains), f"This took {(time.monotonic() - began) / 60:.1f} minutes."]))
    is_born = not alarms and all(one.after for one in born)
    sys.exit(
        0 if is_born and all(entry.is_right for entry in scores) and (not is_gains or is_well_predicted(gains)) else 1
    )


def _all_gains(scores: list[Score], runs: Path) -> Iterator[ScoredGain]:
    """Of each case with a fault, and of its program at other sizes, whose verdict is not scored."""
    for entry in scores:
        if entry.case.faults:
            yield from scored_gains(entry, runs)
    for case in variations([entry.case for entry in scores], runs):
        yield from scored_gains(record_all(case, runs), runs)


def record_all(case: Case, runs: Path) -> Score:
    """Record the case sick, healthy and, where there are edits, with those; one without a fault healthy alone."""
    healthy = record(case, runs, "healthy")
    if not case.faults:
        return score(case, healthy, healthy, None)
    sick = record(case, runs, "sick")
    return score(case, sick, healthy, record_fixed(case, runs, sick))


def record(case: Case, runs: Path, twin: Literal["sick", "healthy", "fixed"], program: Path | None = None) -> Report:
    """Record one run of the case and report it; `program` is its file where that is not the case's own."""
    home = runs / f"{case.name}-{twin}"
    environment = os.environ | {"EFPROF_HOME": str(home.absolute())}
    program_command = [sys.executable, str(program or case.path), *(["--healthy"] if twin == "healthy" else [])]
    command = [*EFPROF, "record", "--name", case.name, *case.options, "--", *program_command]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise click.ClickException(f"{case.name} could not be recorded:\n{done.stderr}")
    (folder,) = (home / "runs").iterdir()
    return analyse(folder, case.budget_bytes)


def record_fixed(case: Case, runs: Path, sick: Report) -> Report | None:
    """The sick program with the edits of its own report; None where there are none, or some are of other files."""
    fixes = [finding.fix for audit, finding in findings(sick) if audit in dict(case.faults)]
    edits = [change for fix in fixes for change in fix.changes if isinstance(change, CodeEdit)]
    if not edits or any(edit.file != _relative(case) for edit in edits):
        return None
    program = runs / f"{case.name}-fixed" / case.path.name
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_bytes(edited(case.path.read_bytes(), edits))
    return record(case, runs, "fixed", program)


def score(case: Case, sick: Report, healthy: Report, fixed: Report | None) -> Score:
    """Compare what was found with what was planted."""
    wanted = {(audit, f"{_relative(case)}:{line}") for audit, line in case.faults}
    found = [(audit, str(finding.blame)) for audit, finding in findings(sick)]
    audits = {audit for audit, _ in wanted}
    return Score(
        case=case,
        sick=sick,
        healthy=healthy,
        fixed=fixed,
        found=len(audits & {audit for audit, _ in found}),
        on_line=len(wanted & set(found)),
        extra=tuple(f"{audit} at {place}" for audit, place in found if wanted and (audit, place) not in wanted),
        is_told_first=is_told_first(case, sick),
        false_alarms=tuple(
            f"{audit} at {finding.blame}" for audit, finding in findings(healthy) if not finding.may_be_filling
        ),
    )


def table(scores: list[Score]) -> list[str]:
    """The table that goes into reports/casebook.md, and the totals under it."""
    rows = [
        "| case | found | on the line | told first | other findings | healthy twin | alike | predicted gain |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    names = dict.fromkeys(entry.case.name for entry in scores)
    rows += [_row([entry for entry in scores if entry.case.name == name]) for name in names]
    wanted = sum(len(entry.case.faults) for entry in scores)
    found, on_line = sum(entry.found for entry in scores), sum(entry.on_line for entry in scores)
    sick = [entry for entry in scores if entry.case.faults]
    told = sum(entry.is_told_first for entry in sick)
    raised = found + sum(len(entry.extra) + len(entry.false_alarms) for entry in scores)
    rows.append("")
    rows.append(
        f"Recall {found}/{wanted}, precision {found}/{raised}, exact line {on_line}/{wanted}, "
        f"told first {told}/{len(sick)}, "
        f"healthy twins silent {sum(not entry.false_alarms for entry in scores)}/{len(scores)}."
    )
    return rows


def _progress(entry: Score) -> str:
    verdict = "right" if entry.is_right else "WRONG"
    first = [] if entry.is_told_first else [f"told first: {describe_verdict(entry.sick).verdict}"]
    details = [f"extra: {text}" for text in entry.extra] + [f"false alarm: {text}" for text in entry.false_alarms]
    errors = [
        f"{r.audit_id} errored: {r.reason}" for r in entry.sick.audits + entry.healthy.audits if r.status == "errored"
    ]
    broken = ["the program does not run with the edit"] if entry.is_broken_by_fix else []
    return "; ".join([f"{entry.case.name}: {verdict}", *first, *details, *broken, *errors])


def _row(entries: list[Score]) -> str:
    wanted = sum(len(entry.case.faults) for entry in entries)
    cells = [
        entries[0].case.name,
        f"{sum(entry.found for entry in entries)}/{wanted}",
        f"{sum(entry.on_line for entry in entries)}/{wanted}",
        f"{sum(entry.is_told_first for entry in entries)} of {len(entries)}",
        "; ".join(text for entry in entries for text in entry.extra) or "none",
        "; ".join(text for entry in entries for text in entry.false_alarms) or "silent",
        f"{max(Counter(entry.verdict for entry in entries).values())} of {len(entries)}",
        _promised(entries[0]),
    ]
    return f"| {' | '.join(cells)} |"


def _relative(case: Case) -> str:
    """The case's file as reports name it."""
    return str(case.path.relative_to(Path.cwd())) if case.path.is_relative_to(Path.cwd()) else str(case.path)


def _promised(entry: Score) -> str:
    """Of the first pair of runs."""
    end = until_step(entry)
    parts = [said(what, gain) for what, gain in zip(RESOURCES, predicted(entry), strict=True) if gain is not None]
    return (", ".join(parts) or "none claimed") + ("" if end is None else f" up to step {end:,}")


if __name__ == "__main__":
    main()
