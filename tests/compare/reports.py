"""Small reports for the tests of comparing: a run of one metric, or of a few findings."""

from dataclasses import replace
from typing import Any

from efprof.model import (
    AuditResult,
    Finding,
    Fix,
    Gain,
    Measurements,
    Metric,
    Report,
    RunIdentity,
    SourceLine,
    Timeline,
)

RUN = RunIdentity(
    run_id="20260101T120000Z-train-abc123",
    path="/home/user/project/.efprof/runs/20260101T120000Z-train-abc123",
    name="train",
    command=("python", "train.py", "--epochs", "1"),
    started="2026-01-01T12:00:00.000+00:00",
    duration_s=12.5,
    ended="finished",
    exit_code=0,
    branch="main",
    commit="3f2c1abd0e9f8a7b6c5d4e3f2a1b0c9d8e7f6a5b",
    is_dirty=False,
    devices=("NVIDIA H200",),
    num_ranks=1,
    num_steps=100,
    environment=(("torch", "2.13.0"), ("cpu", "AMD EPYC, 8 cores"), ("working folder", "/home/user/project")),
    configuration=(("batch_size", "64"),),
)


def make_report(
    *metrics: Metric, audits: tuple[AuditResult, ...] = (), memory_source: str = "the CUDA allocator", **run_fields: Any
) -> Report:
    """A report of these metrics; `run_fields` replace those of RUN."""
    measurements = Measurements(
        metrics=metrics,
        timeline=Timeline(steps=(), memory=()),
        stage_deltas=(),
        overhead=None,
        memory_source=memory_source,
    )
    return Report(run=replace(RUN, **run_fields), measurements=measurements, audits=audits)


def make_metric(name: str, unit: str, *samples: float, budget: float | None = None) -> Metric:
    """A metric whose label is its name in words."""
    return Metric(name=name, label=name.replace("_", " "), unit=unit, samples=samples, budget=budget)


def step_metric(*samples: float) -> Metric:
    """The time of every step, gated as the real one is."""
    return make_metric("step_ms", "ms", *samples, budget=0.03)


def failed_audit(audit_id: str, *findings: Finding) -> AuditResult:
    """An audit that found something."""
    return AuditResult(audit_id=audit_id, status="failed", reason="100 steps", findings=findings)


def make_finding(text: str, *, line: int = 10, **fields: Any) -> Finding:
    """A finding that blames the line with this text."""
    defaults: dict[str, Any] = {
        "blame": SourceLine(file="train.py", line=line, function="train", text=text),
        "category": "time",
        "headline": "A scalar is read in the step",
        "message": "Each step waits for the device.",
        "fix": Fix(summary="Read it once per epoch.", applicability="manual"),
        "gain": Gain(basis="model", explanation="The wait goes away."),
        "evidence": (),
        "severity": "medium",
    }
    return Finding(**{**defaults, **fields})
