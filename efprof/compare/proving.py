"""Whether a finding's fix does what it promised: judged by runs with it and without it."""

from collections.abc import Sequence
from dataclasses import replace

from efprof.model import CodeEdit, Comparison, Finding, MetricChange, Proof, Report, lines_of

MIN_TIME_SHARE = 0.01
"""Of the median step: a smaller promise cannot be seen."""
PEAK, STEP = "peak_allocated_bytes", "step_ms"


def promise(finding: Finding, median_step_ms: float | None) -> tuple[str, float] | None:
    """The metric that the fix promises to make smaller, and by how much; None where it is nothing that can be seen."""
    gain = finding.gain
    if gain.peak_bytes is not None:
        return PEAK, gain.peak_bytes
    is_seen = gain.step_ms is not None and median_step_ms and gain.step_ms >= MIN_TIME_SHARE * median_step_ms
    return (STEP, gain.step_ms) if is_seen and gain.step_ms is not None else None


def prove(
    key: str, finding: Finding, bases: Sequence[Report], heads: Sequence[Report], comparison: Comparison,
    *, is_own_fix: bool,
) -> Proof:  # fmt: skip
    """Proved is what every run of base shows and none of head's, without another fault at the lines that changed, with
    the saving that was promised, and with losses equal to the bit where the fix is safe.

    `is_own_fix` says that head has the finding's edits, and not what a person wrote. `comparison` is of these runs.
    """
    audit_id = key.partition(":")[0]
    edits = [one for one in finding.fix.changes if isinstance(one, CodeEdit)] if is_own_fix else []
    known = {name for base in bases for name in _by_key(base)}
    failed, unclear = list[str](), list[str]()
    if not all(key in _by_key(base) for base in bases):
        unclear.append("not every run without the fix shows the fault")
    for head in heads:
        audit = next((one for one in head.audits if one.audit_id == audit_id), None)
        if audit is None or audit.status in ("not_applicable", "errored"):
            unclear.append(f"with the fix its check cannot look: {audit.reason if audit else 'there is none'}")
        for name, found in _by_key(head).items():
            other = name.partition(":")[0]
            if name == key:
                failed.append("the fault is still there")
            elif name not in known and (any(_is_of(found, one) for one in edits) if is_own_fix else other == audit_id):
                failed.append(f"{other} is found at {found.blame}")
    rows = {row.name: row for row in comparison.metrics}
    loss = rows.get("loss")
    if is_own_fix and finding.fix.applicability == "safe" and loss is not None and loss.verdict != "same":
        failed.append(loss.reason.rstrip("."))
    proof = Proof(key=key, audit_id=audit_id, headline=finding.headline, verdict="proved")
    if promised := promise(finding, bases[0].measurements.median_step_ms):
        name, predicted = promised
        row = rows.get(name)
        proof = replace(proof, unit="ms" if name == STEP else "bytes", predicted=predicted)
        if row is None or row.verdict == "unclear":
            unclear.append(row.reason.rstrip(".") if row else "what it saves was not measured")
        elif row.verdict != "better":
            failed.append(f"the {row.label} is {row.verdict}")
        proof = replace(proof, measured=row.base_median - row.head_median, interval=_saved(row)) if row else proof
    reasons = tuple(dict.fromkeys(failed or unclear))
    return replace(proof, verdict="not proved" if failed else "unclear" if unclear else "proved", reasons=reasons)


def _saved(row: MetricChange) -> tuple[float, float] | None:
    if row.interval is None:
        return None
    low, high = row.interval
    return -high * row.base_median, -low * row.base_median


def _by_key(report: Report) -> dict[str, Finding]:
    return {audit.key_of(finding): finding for audit in report.audits for finding in audit.findings}


def _is_of(finding: Finding, edit: CodeEdit) -> bool:
    """Whether it blames a line that the edit has written."""
    num_lines = max(1, len(lines_of(edit.new)))
    return finding.blame.file == edit.file and edit.line <= finding.blame.line < edit.line + num_lines
