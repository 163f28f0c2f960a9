"""Whether a finding's fix does what it promised: judged by runs with it and without it."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from efprof.compare.times import MIN_EFFECT
from efprof.compare.verdicts import MINIMUM_PEAK_BYTES, MINIMUM_PEAK_SHARE
from efprof.model import ENDED_WELL, CodeEdit, Comparison, Finding, MetricChange, Proof, Report, lines_of

MIN_TIME_SHARE = 0.01
"""Of the median step: a smaller promise cannot be seen."""
STEP, PEAKS, RESERVED = "step_ms", ("peak_allocated_bytes", "window_peak_bytes"), "reserved_bytes"
Place = tuple[str, str, str, str]
"""Audit, file, function, text of the line: without the number among equal lines, which a fix of one of them changes."""


def promise(finding: Finding, median_step_ms: float | None) -> tuple[tuple[str, ...], float] | None:
    """The metrics of which a fix promises to make one smaller, and by how much; None where nothing can be seen of it.

    What is promised of late steps alone cannot be: turns see early ones.
    """
    gain = finding.gain
    if gain.peak_bytes is not None:
        return ((RESERVED,) if gain.of_bytes else PEAKS), gain.peak_bytes
    if gain.step_ms is None or gain.late_step_ms is not None or not median_step_ms:
        return None
    return ((STEP,), gain.step_ms) if gain.step_ms >= MIN_TIME_SHARE * median_step_ms else None


def prove(
    audit_id: str, finding: Finding, proof: Proof, bases: Sequence[Report], heads: Sequence[Report],
    comparison: Comparison,
) -> Proof:  # fmt: skip
    """Proved is what every run of base shows and none of head's, without a fault in its place, with the saving that was
    promised, and with losses equal to the bit where the fix is safe and base's own are.

    `proof` says which finding it is, and whether head has what a person wrote, not the finding's edits; `comparison`
    is of these runs.
    """
    failed, unclear = _of_findings(audit_id, finding, bases, heads, is_own_fix=not proof.head)
    rows = {row.name: row for row in comparison.metrics}
    failed += [f"{rows[name].label}: more" for name in ("failed_runs", "nonfinite_steps") if _is_worse(rows.get(name))]
    loss = rows.get("loss")
    if not proof.head and finding.fix.applicability == "safe":
        if loss is None and bases[0].run.ended in ENDED_WELL:
            unclear.append("no step has a loss that both sides know")
        elif loss is not None and loss.verdict != "same":
            (unclear if loss.base_median > 0 else failed).append(loss.reason.rstrip("."))
    if promised := promise(finding, bases[0].measurements.median_step_ms):
        names, predicted = promised
        proof = replace(proof, unit="ms" if names == (STEP,) else "bytes", predicted=predicted)
        found = [rows[name] for name in names if name in rows and math.isfinite(rows[name].head_median)]
        if not found:
            is_time = names == (STEP,) and STEP in rows
            unclear.append(rows[STEP].reason.rstrip(".") if is_time else "what it saves was not measured")
        else:
            row = max(found, key=lambda row: row.base_median - row.head_median)
            proof = replace(proof, measured=row.base_median - row.head_median, interval=_saved(row))
            is_small = predicted < _least(row)
            is_seen = is_small and proof.interval is not None and proof.interval[0] > 0
            if row.verdict != "better" and not is_seen:
                why = f"the {row.label} is {row.verdict}" + (", and so little is not seen" if is_small else "")
                (unclear if row.verdict == "unclear" or (is_small and row.verdict == "same") else failed).append(why)
    reasons = tuple(dict.fromkeys(failed or unclear))
    return replace(proof, verdict="not proved" if failed else "unclear" if unclear else "proved", reasons=reasons)


def _of_findings(
    audit_id: str, finding: Finding, bases: Sequence[Report], heads: Sequence[Report], *, is_own_fix: bool
) -> tuple[list[str], list[str]]:
    """What fails, and what cannot be told."""
    failed, unclear = list[str](), list[str]()
    place = _place(audit_id, finding)
    of_bases = [Counter(_place(audit, found) for audit, found in _found(base)) for base in bases]
    if not all(places[place] for places in of_bases):
        unclear.append("not every run without the fix shows the fault")
    ran_out = all(base.run.ended == "out_of_memory" for base in bases)
    for head in heads:
        audit = next((one for one in head.audits if one.audit_id == audit_id), None)
        is_cured = ran_out and head.run.ended in ENDED_WELL  # what speaks of that end alone has nothing to look at
        if (audit is None or audit.status in ("not_applicable", "errored")) and not is_cured:
            unclear.append(f"with the fix its check cannot look: {audit.reason if audit else 'there is none'}")
        places = Counter(_place(one, found) for one, found in _found(head))
        if places[place] and places[place] >= min(one[place] for one in of_bases):
            failed.append("the fault is still there")
        for other, found in _found(head):
            name = _place(other, found)
            if name == place or places[name] <= max(one[name] for one in of_bases):
                continue
            if is_own_fix and _is_written(found, finding):
                failed.append(f"{other} is found at {found.blame}")
            elif other == audit_id:
                unclear.append(f"{other} is found at {found.blame} instead")
    return failed, unclear


def _least(row: MetricChange) -> float:
    """What can be seen of it at best."""
    if row.unit == "ms":
        return MIN_EFFECT * row.base_median
    return max(MINIMUM_PEAK_BYTES, MINIMUM_PEAK_SHARE * row.head_median)


def _is_worse(row: MetricChange | None) -> bool:
    return row is not None and row.verdict == "worse"


def _saved(row: MetricChange) -> tuple[float, float] | None:
    if row.interval is None:
        return None
    low, high = row.interval
    return -high * row.base_median, -low * row.base_median


def _found(report: Report) -> list[tuple[str, Finding]]:
    return [(audit.audit_id, finding) for audit in report.audits for finding in audit.findings]


def _place(audit_id: str, finding: Finding) -> Place:
    return audit_id, finding.blame.file, finding.blame.function, finding.blame.text


def _is_written(finding: Finding, fixed: Finding) -> bool:
    """Whether it blames a line that an edit of the other one's fix has written."""
    edits = [one for one in fixed.fix.changes if isinstance(one, CodeEdit) and one.file == finding.blame.file]
    shift = 0
    for edit in sorted(edits, key=lambda one: one.line):
        num_new = len(lines_of(edit.new))
        if edit.line + shift <= finding.blame.line < edit.line + shift + max(1, num_new):
            return True
        shift += num_new - len(lines_of(edit.old))
    return False
