"""How severe a finding is: one rule for all, by what it costs this run."""

from dataclasses import replace
from typing import get_args

from efprof.model.finding import Finding, Gain, Severity

HIGH_SHARE = 0.2
MEDIUM_SHARE = 0.05
"""Gains as shares of the step or of the peak: a fifth is felt in every run; under a twentieth is within
what two runs of the same code differ by on a shared machine."""
DAY_S = 86_400.0
MONTH_S = 30 * DAY_S
"""How soon memory is full: most trainings take longer than a day, few longer than a month."""


def severity_by_gain(gain: Gain, step_ms: float | None, peak_bytes: int | None) -> Severity:
    """By the share of the step (of a late one where steps grow) or of the peak; high only where it is sure to win."""
    step_ms = gain.late_step_ms or step_ms
    time = _by_share(gain.step_ms, gain.step_ms_interval, step_ms)
    memory = _by_share(gain.peak_bytes, gain.peak_bytes_interval, gain.of_bytes or peak_bytes)
    return most_severe(time, memory)


def severity_by_time_left(seconds: float) -> Severity:
    """By how soon memory is full."""
    return "high" if seconds < DAY_S else "medium" if seconds < MONTH_S else "low"


def severity_by_share(share: float) -> Severity:
    """By the share of a resource that it costs."""
    return "high" if share >= HIGH_SHARE else "medium" if share >= MEDIUM_SHARE else "low"


def rated(finding: Finding, step_ms: float | None, peak_bytes: int | None) -> Finding:
    """The finding with the severity of its harm or of its gain, whichever is more; low where the run is too short."""
    if finding.may_be_filling:
        return replace(finding, severity="low")
    by_gain = severity_by_gain(finding.gain, step_ms, peak_bytes)
    return replace(finding, severity=most_severe(finding.severity, by_gain))


def most_severe(*severities: Severity) -> Severity:
    """The worst of several."""
    return min(severities, key=get_args(Severity).index)


def _by_share(gain: float | None, interval: tuple[float, float] | None, of: float | None) -> Severity:
    if not gain or not of:
        return "low"
    severity = severity_by_share(gain / of)
    return "medium" if severity == "high" and interval is not None and interval[0] <= 0 else severity
