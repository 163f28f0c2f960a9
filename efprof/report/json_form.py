"""The stable JSON form of a report and of a comparison; what is not a finite number becomes null."""

import dataclasses
import math
import re
import statistics
from typing import Any

import msgspec

from efprof.model import AuditResult, Change, Comparison, Evidence, Finding, Gain, Metric, Report
from efprof.report.comparison_words import comparison_verdict
from efprof.report.ranking import rank_findings
from efprof.report.verdict import describe_verdict


def render_json(report: Report) -> str:
    """The report as indented JSON, ending in a newline; findings carry the rank that the page shows."""
    ranks = {id(item.finding): item.rank for item in rank_findings(report)}
    verdict = describe_verdict(report)
    return _encode(
        {
            "schema_version": report.schema_version,
            "run": _plain(report.run),
            "verdict": {"verdict": verdict.verdict, "why": verdict.why, "next": verdict.next},
            "metrics": {metric.name: _metric(metric) for metric in report.measurements.metrics},
            "overhead": _plain(report.measurements.overhead) if report.measurements.overhead else None,
            "audits": [_audit(audit, ranks) for audit in report.audits],
            "warnings": list(report.warnings),
            "measurements": {
                "memory_source": report.measurements.memory_source,
                "num_skipped_steps": report.measurements.num_skipped_steps,
                "recommendations": list(report.measurements.recommendations),
                "stalls": [_plain(stall) for stall in report.measurements.stalls],
                "stage_deltas": [_plain(delta) for delta in report.measurements.stage_deltas],
                "processes": _plain(report.measurements.processes) if report.measurements.processes else None,
                "evaluations": [_plain(evaluation) for evaluation in report.measurements.evaluations],
                "evaluation_notes": list(report.measurements.evaluation_notes),
                "timeline": _plain(report.measurements.timeline),
                "window_memory": _plain(report.measurements.window_memory)
                if report.measurements.window_memory
                else None,
            },
        }
    )


def render_comparison_json(comparison: Comparison) -> str:
    """The comparison as indented JSON, ending in a newline."""
    verdict = comparison_verdict(comparison)
    form = _plain(comparison)
    return _encode({**form, "verdict": verdict.word, "headline": verdict.headline, "is_failed": comparison.is_failed})


def _metric(metric: Metric) -> dict[str, Any]:
    seen = [sample for sample in metric.samples if math.isfinite(sample)]
    return {
        "label": metric.label,
        "unit": metric.unit,
        "median": statistics.median(seen) if seen else None,
        "budget": metric.budget,
        "samples": list(metric.samples),
    }


def _audit(audit: AuditResult, ranks: dict[int, int]) -> dict[str, Any]:
    return {
        "id": audit.audit_id,
        "status": audit.status,
        "reason": audit.reason,
        "findings": [
            {"key": audit.key_of(finding), "rank": ranks[id(finding)], **_finding(finding)}
            for finding in audit.findings
        ],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "severity": finding.severity,
        "category": finding.category,
        "headline": finding.headline,
        "message": finding.message,
        "blame": _plain(finding.blame),
        "fix": {
            "summary": finding.fix.summary,
            "applicability": finding.fix.applicability,
            "changes": [_tagged(change) for change in finding.fix.changes],
        },
        "gain": _gain(finding.gain),
        "evidence": [_tagged(evidence) for evidence in finding.evidence],
    }


def _gain(gain: Gain) -> dict[str, Any]:
    return _plain(gain)


def _tagged(item: Change | Evidence) -> dict[str, Any]:
    """A member of a union as a dict whose `kind` is its class name in snake_case."""
    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(item).__name__).lower()
    return {"kind": kind, **_plain(item)}


def _plain(item: Any) -> dict[str, Any]:
    return dataclasses.asdict(item)


def _encode(form: dict[str, Any]) -> str:
    """msgspec writes nan and inf as null, which is what valid JSON needs."""
    return msgspec.json.format(msgspec.json.encode(form), indent=2).decode() + "\n"
