"""Runs the collection of public NaN and Inf: record, report, hunt, report again, and the edit tried: `make casebook`.

Right is a line that makes the first one, and advice with which the losses before it stay the same to the bit and all
is finite to the end; advice without an edit is compared with what is known of the cause.
"""

import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from efprof.artifacts.hunts import read_hunt
from efprof.artifacts.steps import StepRecord, read_steps
from efprof.commands.report import analyse
from efprof.fixes.files import edited
from efprof.model import CodeEdit, Finding
from tests.casebook.born._collection import HARMLESS, SICK, Snippet
from tests.recorder.recording import EFPROF

AUDIT, MARK = "nonfinite_loss", "# born"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """A snippet; whether its line was named `before` the hunt and after, and whether the advice was right."""

    snippet: Snippet
    before: bool
    after: bool
    advice: bool


def tried(runs: Path) -> Iterator[Tried]:
    for snippet in SICK:
        folder = runs / snippet.name
        run = _record(folder, snippet.code.encode())
        line = next(number for number, text in enumerate(snippet.code.splitlines(), 1) if text.endswith(MARK))
        before = _finding(run)
        _run(folder, "hunt", str(run))
        after = _finding(run)
        yield Tried(
            snippet=snippet,
            before=before is not None and before.blame.line == line,
            after=after is not None and _is_at(after, line, run),
            advice=after is not None and _is_right(after, snippet, folder, run),
        )


def false_alarms(runs: Path) -> list[str]:
    """The harmless ones that are not called that."""
    return [one.name for one in HARMLESS if _finding(_record(runs / one.name, one.code.encode())) is not None]


def born_table(found: Sequence[Tried], alarms: Sequence[str]) -> list[str]:
    mark = {True: "yes", False: "no"}
    rows = [
        f"| {one.snippet.name} | {mark[one.before]} | {mark[one.after]} | {mark[one.advice]} "
        f"| {one.snippet.first_try} |"
        for one in found
    ]
    counts = [sum(getattr(one, name) for one in found) for name in ("before", "after", "advice")]
    return [
        "| public report | its line without a hunt | with one | advice | first try |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        f"Of {len(found)} public reports: line {counts[0]} without a hunt, {counts[1]} with one, advice {counts[2]}; "
        f"alarms on {len(HARMLESS)} harmless programs: {len(alarms)}{''.join(f', {name}' for name in alarms)}.",
    ]


def _is_at(found: Finding, line: int, run: Path) -> bool:
    """Where gradients exploded or an update is at fault, another line is blamed than that which made the first."""
    hunt = read_hunt(run)
    site = hunt.origin.site if hunt is not None and hunt.origin is not None else None
    return line in (found.blame.line, int((site or "::").split(":")[1] or 0))


def _is_right(found: Finding, snippet: Snippet, folder: Path, run: Path) -> bool:
    edits = [change for change in found.fix.changes if isinstance(change, CodeEdit)]
    if not edits:
        return bool(snippet.told) and re.search(snippet.told, found.fix.summary) is not None
    mended = _record(folder / "mended", edited(snippet.code.encode(), edits))
    old, new = _steps(run), _steps(mended)
    first = next((at for at, one in enumerate(old) if not _is_finite(one)), len(old))
    return all(map(_is_finite, new)) and [one.loss for one in old[:first]] == [one.loss for one in new[:first]]


def _is_finite(record: StepRecord) -> bool:
    return math.isfinite(float(record.loss or 0)) and math.isfinite(float(record.gradient_norm or 0))


def _steps(run: Path) -> list[StepRecord]:
    return read_steps(run / "rank0")[0]


def _record(folder: Path, code: bytes) -> Path:
    """A run of a script of this text, every step of it in full."""
    folder.mkdir(parents=True)
    (folder / "snippet.py").write_bytes(code)
    _run(folder, "record", "--overhead", "100%", "--", sys.executable, "snippet.py")
    (run,) = (folder / ".efprof" / "runs").iterdir()
    return run


def _run(folder: Path, *words: str) -> None:
    environment = os.environ | {"EFPROF_HOME": str(folder.absolute() / ".efprof")}
    subprocess.run([*EFPROF, *words], cwd=folder, env=environment, capture_output=True, check=False)


def _finding(run: Path) -> Finding | None:
    return next((one for audit in analyse(run).audits if audit.audit_id == AUDIT for one in audit.findings), None)
