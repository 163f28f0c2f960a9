"""What changed from a base run to a head run."""

from dataclasses import dataclass
from typing import Literal

from efprof.model.report import RunIdentity

Verdict = Literal["better", "worse", "same", "unclear"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricChange:
    """One metric on both sides: medians and spreads (interquartile ranges) in its base unit.

    Where `label` names another statistic (a percentile, the mean, the highest), the medians are that statistic of
    each run instead. `effect` is head over base minus one; `interval` bounds it where there is one; `reason` says
    what the verdict rests on. `budget` is None for a metric that never gates. NaN is what a run did not measure.
    """

    name: str
    label: str
    unit: str
    base_median: float
    base_spread: float
    head_median: float
    head_spread: float
    effect: float | None
    interval: tuple[float, float] | None
    verdict: Verdict
    budget: float | None
    is_over_budget: bool
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingChange:
    """A finding by its key, and which side has it; `unchecked` where the other side could not be looked at."""

    key: str
    change: Literal["added", "gone", "kept", "unchecked"]
    audit_id: str
    headline: str
    location: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Metrics side by side, and findings added, gone and kept.

    `differences` names what differs in machine or configuration where the comparison was forced.
    """

    base: RunIdentity
    head: RunIdentity
    metrics: tuple[MetricChange, ...]
    findings: tuple[FindingChange, ...]
    differences: tuple[str, ...] = ()
    schema_version: int = 1

    @property
    def is_failed(self) -> bool:
        """Whether a gated metric got worse by more than its budget."""
        return any(metric.is_over_budget for metric in self.metrics)
