"""The programs of the casebook, and what is expected of each."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from efprof.model import Severity
from efprof.units import parse_bytes

FOLDER = Path(__file__).parent
MARK = "# fault"
CONSTANTS = ("EXPECTED", "BUDGET", "OPTIONS", "DEVICE", "SEVERITY")


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


@cache
def all_cases() -> tuple[Case, ...]:
    """Every file of this folder and those below that names what is expected of it; read once."""
    return tuple(case for path in sorted(FOLDER.rglob("[!_]*.py")) if (case := _case_in(path)) is not None)


def _case_in(path: Path) -> Case | None:
    constants = _constants(path)
    expected, budget = constants.get("EXPECTED"), constants.get("BUDGET")
    if expected is None:
        return None
    audits = (expected,) if isinstance(expected, str) else tuple(expected)
    return Case(
        name=path.stem,
        path=path,
        faults=tuple(_faults(path, audits)),
        budget_bytes=parse_bytes(budget) if budget else None,
        options=constants.get("OPTIONS") or (),
        device=constants.get("DEVICE"),
        severity=constants.get("SEVERITY") or "medium",
    )


def _constants(path: Path) -> dict[str, Any]:
    """Those of the module that say what a case is, read without running the file."""
    assigned = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign)]
    named = {getattr(node.targets[0], "id", None): node.value for node in reversed(assigned)}
    return {name: ast.literal_eval(value) for name, value in named.items() if name in CONSTANTS}


def _faults(path: Path, expected: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """The marked lines; where a case has several faults, each mark names its audits."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        code, mark, named = line.partition(MARK)
        if mark and code.strip():
            for audit in named.removeprefix(":").split(","):
                yield audit.strip() or expected[0], number
