"""The JSON form, which is a stable interface."""

import json
from typing import Any

import pytest

from efprof.report.json_form import render_comparison_json, render_json
from tests.report.report_sample import make_comparison, make_report


@pytest.fixture(scope="module")
def form() -> Any:
    return json.loads(render_json(make_report()), parse_constant=pytest.fail)


def finding_of(form: Any, audit_id: str) -> Any:
    return next(audit for audit in form["audits"] if audit["id"] == audit_id)["findings"][0]


def test_has_the_promised_keys_and_the_key_names_the_audit_and_the_line(form: Any) -> None:
    assert {"schema_version", "run", "metrics", "overhead", "audits"} <= set(form)
    assert {"id", "status", "reason", "findings"} <= set(form["audits"][0])
    finding = finding_of(form, "memory_growth")
    assert {"key", "severity", "message", "why", "blame", "fix", "gain", "evidence"} <= set(finding)
    assert {"file", "line", "function", "text"} <= set(finding["blame"])
    assert {"summary", "applicability", "changes"} <= set(finding["fix"])
    assert {"step_ms", "peak_bytes", "basis"} <= set(finding["gain"])
    assert finding["key"] == "memory_growth:train.py::train_epoch::history.append(loss)"
    assert finding["rank"] == 1


def test_kinds_are_class_names_in_snake_case(form: Any) -> None:
    findings = [finding for audit in form["audits"] for finding in audit["findings"]]
    assert {change["kind"] for finding in findings for change in finding["fix"]["changes"]} == {
        "code_edit",
        "configuration_value",
        "environment_variable",
    }
    assert {evidence["kind"] for finding in findings for evidence in finding["evidence"]} == {
        "numbers",
        "table",
        "snippet",
        "series",
        "memory_map",
        "alternatives",
        "segment_map",
        "narrative",
    }


def test_metrics_go_by_name_with_median_and_samples_and_not_finite_ones_are_null(form: Any) -> None:
    metric = form["metrics"]["step_ms"]
    assert metric["unit"] == "ms"
    assert metric["median"] == pytest.approx(36.0)
    assert len(metric["samples"]) == 59
    assert form["measurements"]["timeline"]["steps"][-1]["loss"] is None
    assert form["metrics"]["loss_breaks"]["samples"] == [None, 1.0]


def test_an_unmeasured_overhead_is_null_and_a_comparison_carries_its_verdict() -> None:
    report = make_report()
    measurements = type(report.measurements)(
        metrics=(), timeline=report.measurements.timeline, stage_deltas=(), overhead=None, memory_source="x"
    )
    assert json.loads(render_json(make_report(measurements=measurements)))["overhead"] is None
    form = json.loads(render_comparison_json(make_comparison()), parse_constant=pytest.fail)
    assert form["verdict"] == "worse"
    assert form["is_failed"] is True
    assert form["metrics"][0]["interval"] == [0.09, 0.15]
    assert form["metrics"][0]["head_spread"] is None
