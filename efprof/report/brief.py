"""The answer in one screen of at most 4 kB, as text or JSON: for a terminal, and for a coding agent."""

from typing import Any

import msgspec

from efprof.model import NEEDS, Report
from efprof.report.verdict import RankedFinding, describe_verdict, needs_phrase, rank_findings
from efprof.report.wording import change_diff, change_name, one_line, shorten

MAX_BYTES = 4000
MAX_EDITS = 3
"""Findings whose edit is shown: whoever has made these records again."""
MAX_SENTENCE = 240
MAX_EDIT = 600


def brief_form(report: Report) -> dict[str, Any]:
    """The verdict, each finding with its line, the edits of the first three, what was not looked at, what to run."""
    verdict, ranked = describe_verdict(report), rank_findings(report)
    findings = [_finding(item) for item in ranked]
    form: dict[str, Any] = {
        "run": report.run.run_id,
        "verdict": shorten(verdict.verdict, 2 * MAX_SENTENCE),
        "why": shorten(verdict.why, 2 * MAX_SENTENCE),
        "next": shorten(verdict.next, 2 * MAX_SENTENCE),
        "findings": findings,
        "not_looked_at": shorten(_not_looked_at(report), 2 * MAX_SENTENCE),
        "commands": [shorten(command, MAX_SENTENCE) for command in verdict.commands],
    }
    while max(len(_encoded(form)), len(_text(form).encode())) > MAX_BYTES and findings:
        findings.pop()
        form["more_findings"] = len(ranked) - len(findings)
    return form


def render_brief_json(report: Report) -> str:
    """As indented JSON, ending in a newline."""
    return _encoded(brief_form(report)).decode() + "\n"


def render_brief_text(report: Report) -> str:
    """As plain text, whose edits are unified diffs without context."""
    return _text(brief_form(report))


def _text(form: dict[str, Any]) -> str:
    # The lead's sentence and fix stand in the lines above it; those of another one with the same fix do not.
    lead = next((one for one in form["findings"] if one["fix"].removesuffix("...") in form["next"]), None)
    lines = [f"Verdict  {form['verdict']}", f"Why      {form['why']}", f"Next     {form['next']}"]
    for number, one in enumerate(form["findings"], start=1):
        lines += ["", f"{number}. {one['severity']} {one['id']} at {one['line']}"]
        if one is not lead:
            lines += [f"   {one['sentence']}", f"   Fix: {one['fix']}"]
        lines.append(f"   Gain: {one['gain']}")
        lines += [f"   {line}" for line in one.get("diff", "").splitlines()]
    if "more_findings" in form:
        lines += ["", f"and {form['more_findings']} more: `efprof report {form['run']}`"]
    if form["not_looked_at"]:
        lines += ["", f"Not looked at: {form['not_looked_at']}"]
    return "\n".join([*lines, *(f"$ {command}" for command in form["commands"])]) + "\n"


def _finding(item: RankedFinding) -> dict[str, str]:
    finding = item.finding
    form = {
        "id": item.audit_id,
        "severity": finding.severity,
        "line": one_line(str(finding.blame)),
        "sentence": shorten(finding.message, MAX_SENTENCE),
        "fix": shorten(finding.fix.summary, MAX_SENTENCE),
        "gain": item.gain,
    }
    lines = []
    for change in finding.fix.changes:
        lines += [f"@@ {change_name(change)} @@", *change_diff(change)]
    diff = "\n".join(lines)
    if item.rank <= MAX_EDITS and 0 < len(diff) <= MAX_EDIT:  # half an edit is none
        form["diff"] = diff
    return form


def _not_looked_at(report: Report) -> str:
    """What checks would need; and which of them could not look for another reason."""
    could_not = (audit for audit in report.audits if audit.status in ("not_applicable", "errored"))
    others = ", ".join(audit.audit_id for audit in could_not if not audit.reason.startswith(NEEDS))
    little = f"too little, or nothing to look at, for {others}" if others else ""
    return "; ".join(filter(None, (needs_phrase(report), little)))


def _encoded(form: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(form), indent=1)
