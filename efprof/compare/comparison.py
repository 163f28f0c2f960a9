"""Two reports -> what changed between their runs; what must be equal for that, a branch may change everything else."""

import shlex
from collections.abc import Mapping
from pathlib import PurePath
from typing import get_args

from efprof.compare.verdicts import compare_metrics, has_failed
from efprof.model import (
    AuditResult,
    Comparison,
    EfprofError,
    Finding,
    FindingChange,
    NotComparable,
    Presence,
    Report,
    RunIdentity,
    Severity,
    nearest_to,
)

EQUAL_ENVIRONMENT = ("cpu", "python", "torch", "cuda")
"""The machine and the versions that set its pace, by their names in a run's environment."""


def compare_reports(
    base: Report, head: Report, *, forced: bool, budgets: Mapping[str, float] | None = None
) -> Comparison:
    """Metrics and findings of `head` against those of `base`; `budgets` replace those of the metrics they name.

    Raises NotComparable where machine, versions, configuration or command differ and it is not `forced`, and
    always where neither run holds a step, or one that did not fail; EfprofError where a budget names no metric.
    """
    differences = find_differences(base, head)
    if differences and not forced:
        raise NotComparable(
            f"base and head differ in {'; '.join(differences)}: record both alike, or compare them as they are "
            "with --force."
        )
    has_either = base.run.num_steps or head.run.num_steps
    for side, report in (("base", base), ("head", head)):
        if not report.run.num_steps and not (has_either and has_failed(report)):
            raise NotComparable(
                f"{side} ({report.run.run_id}) holds no finished step: record a run that gets through one."
            )
    known = dict.fromkeys(metric.name for side in (base, head) for metric in side.measurements.metrics)
    for name in budgets or ():
        if name not in known:
            raise EfprofError(f"--budget: there is no metric '{name}'; {nearest_to(name, known)}")
    return Comparison(
        base=base.run,
        head=head.run,
        metrics=compare_metrics(base, head, budgets or {}),
        findings=compare_findings(base, head),
        differences=differences,
    )


def find_differences(base: Report, head: Report) -> tuple[str, ...]:
    """Each thing that differs and must not, as `name: value in base, value in head`; empty where all is equal.

    What only a training process writes is left out for a run that ended before its first step.
    """
    pairs = _entries(base.run), _entries(head.run)
    if base.run.num_steps and head.run.num_steps:
        for entries, report in zip(pairs, (base, head), strict=True):
            entries |= _entries_of_training(report)
    names = dict.fromkeys([*pairs[0], *pairs[1]])
    differing = [(name, *(entries.get(name, "none") for entries in pairs)) for name in names]
    return tuple(f"{name}: {old} in base, {new} in head" for name, old, new in differing if old != new)


def compare_findings(base: Report, head: Report) -> tuple[FindingChange, ...]:
    """Added, unchecked, kept and gone, in this order, the most severe first.

    A finding is `unchecked` where the other run lacks what its audit needs: nobody knows whether it is there.
    """
    of_base, of_head = _by_key(base), _by_key(head)
    found = sorted((of_base | of_head).items(), key=lambda item: get_args(Severity).index(item[1][1].severity))
    changes = []
    for key, (audit, finding) in found:
        change: Presence = "kept" if key in of_base and key in of_head else "gone" if key in of_base else "added"
        message = finding.message
        if change != "kept":
            side, other = ("base", base) if change == "added" else ("head", head)
            there = next((result for result in other.audits if result.audit_id == audit.audit_id), None)
            if there is None or there.status not in ("passed", "failed"):
                why = there.reason if there is not None else "its report has no such check."
                change, message = "unchecked", f"{message} Not looked for in {side}: {why}"
        changes.append(
            FindingChange(
                key=key,
                change=change,
                audit_id=audit.audit_id,
                headline=finding.headline,
                location=str(finding.blame),
                message=message,
            )
        )
    return tuple(sorted(changes, key=lambda one: get_args(Presence).index(one.change)))


def _entries(run: RunIdentity) -> dict[str, str]:
    """What is known of a run before its program starts."""
    environment = dict(run.environment)
    place = environment.get("working folder", "")
    words = [_without_place(word, place) for word in run.command]
    variables = {name: _without_place(value, place) for name, value in environment.items() if name.isupper()}
    configuration = {f"configuration {name}": value for name, value in run.configuration}
    return {"command": shlex.join(words), **variables, **configuration}


def _entries_of_training(report: Report) -> dict[str, str]:
    environment = dict(report.run.environment)
    return {
        "devices": ", ".join(report.run.devices) or "none",
        "ranks": str(report.run.num_ranks),
        "memory read from": report.measurements.memory_source,
        **{name: environment[name] for name in EQUAL_ENVIRONMENT if name in environment},
    }


def _without_place(word: str, working_folder: str) -> str:
    """A path as seen from the working folder: two checkouts of one repository run the same command."""
    path = PurePath(word)
    if not path.is_absolute():
        return word
    is_inside = working_folder and path.is_relative_to(working_folder)
    return str(path.relative_to(working_folder)) if is_inside else path.name


def _by_key(report: Report) -> dict[str, tuple[AuditResult, Finding]]:
    return {audit.key_of(finding): (audit, finding) for audit in report.audits for finding in audit.findings}
