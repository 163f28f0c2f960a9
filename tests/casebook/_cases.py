"""The programs of the casebook, and what is expected of each."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efprof.model import Severity
from efprof.units import parse_bytes

FOLDER = Path(__file__).parent
MARK = "# fault"


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One program; `faults` are (audit id, marked line): none where EXPECTED is empty, and it has no sick side.

    `budget_bytes`, `options` of `efprof record`, `device` and the least `severity` that one of its faults must lead the
    report with are the constants BUDGET, OPTIONS, DEVICE and SEVERITY, if it has them.
    """

    name: str
    path: Path
    faults: tuple[tuple[str, int], ...]
    budget_bytes: int | None = None
    options: tuple[str, ...] = ()
    device: str | None = None
    severity: Severity = "medium"


def find_cases() -> Iterator[Case]:
    """Those of this folder itself that any machine runs to their end: tests/runs/ holds recordings of them."""
    for case in all_cases():
        if case.path.parent == FOLDER and case.device is None and "out_of_memory" not in dict(case.faults):
            yield case


def all_cases() -> Iterator[Case]:
    """Every file of this folder and those below that names what is expected of it."""
    for path in sorted(FOLDER.rglob("[!_]*.py")):
        expected, budget = _constant(path, "EXPECTED"), _constant(path, "BUDGET")
        if expected is not None:
            audits = (expected,) if isinstance(expected, str) else tuple(expected)
            yield Case(
                name=path.stem,
                path=path,
                faults=tuple(_faults(path, audits)),
                budget_bytes=parse_bytes(budget) if budget else None,
                options=_constant(path, "OPTIONS") or (),
                device=_constant(path, "DEVICE"),
                severity=_constant(path, "SEVERITY") or "medium",
            )


def _constant(path: Path, name: str) -> Any:
    """A constant of the module, read without running the file; None where it has none."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == name:
            return ast.literal_eval(node.value)
    return None


def _faults(path: Path, expected: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """The marked lines; where a case has several faults, each mark names its audits."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        code, mark, named = line.partition(MARK)
        if mark and code.strip():
            for audit in named.removeprefix(":").split(","):
                yield audit.strip() or expected[0], number
