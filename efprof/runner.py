"""Runs audits over a run; a broken audit is a result, not a crash."""

import importlib
import importlib.metadata
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from efprof.model import (
    AuditResult,
    Evidence,
    Examination,
    Measurements,
    NotRecorded,
    Report,
    RunIdentity,
    Snippet,
    SourceLine,
    ThinEvidence,
    UnreadableInput,
    rated,
    with_place,
)

T = TypeVar("T")

Audit = Callable[[Any], Examination]
"""From a run to what was found; the run's type belongs to the layer of facts, which this one does not see."""

AUDITS_PACKAGE = "efprof.audits"
ENTRY_POINT_GROUP = "efprof.audits"
"""By which any package may bring audits of its own."""


def find_audits() -> dict[str, Audit]:
    """Every audit by its id: one function of the file's name in each file of `audits/`, then other packages'."""
    package = importlib.import_module(AUDITS_PACKAGE)
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    audits = {name: getattr(importlib.import_module(f"{AUDITS_PACKAGE}.{name}"), name) for name in names}
    for entry_point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        audits[entry_point.name] = entry_point.load()
    return audits


def make_report(
    run: object,
    *,
    identity: RunIdentity,
    measurements: Measurements,
    audits: Mapping[str, Audit],
    snippet_of: Callable[[SourceLine], Snippet],
    warnings: tuple[str, ...] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """One result per audit, whatever happens in it, beside what holds of any run; `say` is told what is done next.

    Each finding shows the source around its line, by `snippet_of`, and has the severity of what it costs.
    """
    results = []
    step_ms = measurements.whole_ms
    for number, (audit_id, audit) in enumerate(audits.items(), start=1):
        say(f"audit {number} of {len(audits)}, {audit_id}")
        result = _run_audit(run, audit_id, audit, snippet_of)
        findings = (rated(one, step_ms, measurements.peak_bytes) for one in result.findings)
        results.append(replace(result, findings=tuple(findings)))
    return Report(run=identity, measurements=measurements, audits=tuple(results), warnings=warnings)


def first_overview(*makes: Callable[[], tuple[Evidence, ...]]) -> tuple[tuple[Evidence, ...], tuple[str, ...]]:
    """What is shown though nothing is wrong with it, by the first that has any; and a warning for each that broke."""
    warnings = []
    for make in makes:
        match _tried(make):
            case NotRecorded() | ThinEvidence() | UnreadableInput():  # the audits of the same data say why
                continue
            case Exception() as error:
                warnings.append(f"An overview is missing, since making it failed: {with_place(error)}.")
            case made if made:
                return made, tuple(warnings)
    return (), tuple(warnings)


def _run_audit(run: object, audit_id: str, audit: Audit, snippet_of: Callable[[SourceLine], Snippet]) -> AuditResult:
    match _tried(lambda: audit(run)):
        case NotRecorded() | ThinEvidence() as absent:
            return AuditResult(audit_id=audit_id, status="not_applicable", reason=str(absent))
        case UnreadableInput() as error:
            return AuditResult(audit_id=audit_id, status="errored", reason=str(error))
        case Exception() as error:
            return AuditResult(audit_id=audit_id, status="errored", reason=with_place(error))
        case examination:
            return AuditResult(
                audit_id=audit_id,
                status="failed" if examination.findings else "passed",
                reason=examination.looked_at,
                findings=tuple(
                    replace(one, evidence=(snippet_of(one.blame), *one.evidence)) if one.blame.text else one
                    for one in examination.findings
                ),
            )


def _tried(function: Callable[[], T]) -> T | Exception:
    """What it gives, or the error that it raised."""
    try:
        return function()
    except Exception as error:
        return error
