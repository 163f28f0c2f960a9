"""Small reports for the tests of comparing: a run of one metric, or of a few findings."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from efprof.model import (
    AuditResult,
    Finding,
    Measurements,
    Metric,
    Report,
    SourceLine,
    Timeline,
)
from tests.report.report_sample import make_measurements, make_run, numbers_finding

RUN = make_run(
    command=("python", "train.py", "--epochs", "1"),
    environment=(("torch", "2.13.0"), ("cpu", "AMD EPYC, 8 cores"), ("working folder", "/home/user/project")),
    configuration=(("batch_size", "64"),),
    num_steps=100,
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


def with_losses(report: Report, losses: Sequence[float | None]) -> Report:
    """The same on steps with these losses."""
    sample = make_measurements().timeline.steps[0]
    steps = tuple(replace(sample, step=step, loss=loss) for step, loss in enumerate(losses))
    return replace(report, measurements=replace(report.measurements, timeline=Timeline(steps=steps, memory=())))


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
    blame = SourceLine(file="train.py", line=line, function="train", text=text)
    return replace(numbers_finding(), blame=blame, **fields)
