"""Reports of two sides -> what changed; what must be equal for that, a branch may change everything else."""

import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath
from typing import get_args

from efprof.compare.blame import SideChanges, slower_at, slower_stage
from efprof.compare.losses import compare_losses, loss_picture
from efprof.compare.times import SideTimes, compare_times, time_picture
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
    bases: Sequence[Report],
    heads: Sequence[Report],
    *,
    forced: bool,
    budgets: Mapping[str, float] | None = None,
    across: Collection[str] = (),
    times: SideTimes | None = None,
    changes: SideChanges | None = None,
) -> Comparison:
    """Metrics, losses and findings of head's runs against those of base's, as many a side.

    `budgets` replace those of the metrics they name; what may differ is in `across`, as `torch`, `env` of all recorded
    variables; `times` are of the same sides by turns, `changes` of their source
    trees. Raises NotComparable where machine, versions, configuration or
    command differ and it is not `forced`, and always where neither side holds a step, or one that did not fail;
    EfprofError where a budget names no metric.
    """
    base, head = bases[0], heads[0]
    differences = find_differences(base, head)
    names = {difference: difference.partition(":")[0] for difference in differences}
    refused = [one for one, name in names.items() if name not in across and not (name.isupper() and "env" in across)]
    if refused and not forced:
        raise NotComparable(
            f"base and head differ in {'; '.join(refused)}: record both alike, or compare them as they are "
            "with --force."
        )
    has_either = base.run.num_steps or head.run.num_steps
    for side, report in (("base", base), ("head", head)):
        if not report.run.num_steps and not (has_either and has_failed(report)):
            raise NotComparable(
                f"{side} ({report.run.run_id}) holds no finished step: record a run that gets through one."
            )
    of_runs = (*compare_metrics(bases, heads, budgets or {}), *compare_losses(bases, heads, budgets or {}))
    untimed = {name for name in budgets or () if name not in {metric.name for metric in of_runs}}
    given = times or SideTimes(pairs=(), why="Give a command, without --no-time.")
    by_turns = tuple(row for row in compare_times(given, budgets or {}) if times or row.name in untimed)
    metrics = (*by_turns, *(metric for metric in of_runs if metric.name not in {one.name for one in by_turns}))
    known = [metric.name for metric in metrics]
    for name in budgets or ():
        if name not in known:
            raise EfprofError(f"--budget: there is no metric '{name}'; {nearest_to(name, known)}")
    longer = [row.head_median - row.base_median for row in by_turns if row.verdict == "worse"]
    lines = slower_at(bases, heads, changes.hunks, longer[0]) if longer and changes else ()
    pictures = (time_picture(times) if times else None, loss_picture(bases, heads))
    return Comparison(
        base=base.run,
        head=head.run,
        metrics=metrics,
        findings=compare_findings(bases, heads),
        differences=differences,
        num_runs=len(bases),
        slower_at=lines,
        slower_stage=slower_stage(of_runs, longer[0]) if longer and not lines else "",
        pictures=tuple(filter(None, pictures)),
        diff=changes.diff if changes else (),
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


def compare_findings(bases: Sequence[Report], heads: Sequence[Report]) -> tuple[FindingChange, ...]:
    """Added, unchecked, kept and gone, in this order, the most severe first.

    A finding is `unchecked` where the other side lacks what its audit needs, or where only some runs of a side have it.
    """
    of_base, of_head = [list(map(_by_key, side)) for side in (bases, heads)]
    all_found = {key: found for run in (*of_base, *of_head) for key, found in run.items()}
    found = sorted(all_found.items(), key=lambda item: get_args(Severity).index(item[1][1].severity))
    changes = []
    for key, (audit, finding) in found:
        num_base, num_head = (sum(key in run for run in side) for side in (of_base, of_head))
        change: Presence = "kept" if num_base and num_head else "gone" if num_base else "added"
        message = finding.message
        if change != "kept":
            side, others, num_seen = ("base", bases, num_head) if change == "added" else ("head", heads, num_base)
            why = next(filter(None, (_not_looked_for(audit.audit_id, other) for other in others)), "")
            if why:
                change, message = "unchecked", f"{message} Not looked for in {side}: {why}"
            elif num_seen < len(others):
                change, message = "unchecked", f"{message} Found in {num_seen} of {len(others)} runs of the other side."
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


def _not_looked_for(audit_id: str, report: Report) -> str:
    """Why this audit did not look; empty where it did."""
    there = next((result for result in report.audits if result.audit_id == audit_id), None)
    if there is None:
        return "its report has no such check."
    return "" if there.status in ("passed", "failed") else there.reason


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
