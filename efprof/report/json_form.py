"""The stable JSON form of a report and of a comparison; what is not a finite number becomes null."""

import dataclasses
import math
import re
import statistics
from typing import Any

import msgspec

from efprof.model import Change, Comparison, Evidence, Metric, Report
from efprof.report.comparison_form import comparison_verdict
from efprof.report.proof_form import newest_proofs
from efprof.report.verdict import describe_verdict, rank_findings

SHOWN_ABOVE = ("metrics", "overhead", "device")
"""Measurements that have a key of their own at the top, or that audits and `efprof allocator --json` tell."""


def render_json(report: Report) -> str:
    """The report as indented JSON, ending in a newline; findings carry the rank that the page shows."""
    proofs = {key: _plain(proof) for key, proof in newest_proofs(report).items()}
    ranks = {id(item.finding): item.rank for item in rank_findings(report)}
    verdict = describe_verdict(report)
    measurements = _plain(report.measurements)
    return _encode(
        {
            "schema_version": report.schema_version,
            "run": _plain(report.run),
            "verdict": {"verdict": verdict.verdict, "why": verdict.why, "next": verdict.next},
            "metrics": {metric.name: _metric(metric) for metric in report.measurements.metrics},
            "overhead": measurements["overhead"],
            "audits": [
                {
                    "id": audit.audit_id,
                    "status": audit.status,
                    "reason": audit.reason,
                    "findings": [
                        {
                            "key": audit.key_of(finding),
                            "rank": ranks[id(finding)],
                            **_plain(finding),
                            "proof": proofs.get(audit.key_of(finding)),
                        }
                        for finding in audit.findings
                    ],
                }
                for audit in report.audits
            ],
            "warnings": report.warnings,
            "measurements": {name: value for name, value in measurements.items() if name not in SHOWN_ABOVE},
        }
    )


def render_comparison_json(comparison: Comparison) -> str:
    """The comparison as indented JSON, ending in a newline."""
    word, headline = comparison_verdict(comparison)
    return _encode({**_plain(comparison), "verdict": word, "headline": headline, "is_failed": comparison.is_failed})


def _metric(metric: Metric) -> dict[str, Any]:
    seen = [sample for sample in metric.samples if math.isfinite(sample)]
    return {
        "label": metric.label,
        "unit": metric.unit,
        "median": statistics.median(seen) if seen else None,
        "budget": metric.budget,
        "samples": metric.samples,
    }


def _plain(item: Any) -> Any:
    """Dataclasses as dicts; a member of a union has a `kind`, its class name in snake_case."""
    if isinstance(item, tuple):
        return [_plain(one) for one in item]
    if not dataclasses.is_dataclass(item):
        return item
    form = {field.name: _plain(getattr(item, field.name)) for field in dataclasses.fields(item)}
    if isinstance(item, Change | Evidence):
        return {"kind": re.sub(r"(?<!^)(?=[A-Z])", "_", type(item).__name__).lower(), **form}
    return form


def _encode(form: dict[str, Any]) -> str:
    """msgspec writes nan and inf as null, which is what valid JSON needs."""
    return msgspec.json.format(msgspec.json.encode(form), indent=2).decode() + "\n"
