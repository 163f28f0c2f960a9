"""How severe a finding is in its run, by the rule that a report applies."""

from efprof.facts.overview.measurements import measurements_of
from efprof.facts.run.run import Run
from efprof.model import Finding, Severity, rated


def severity_in(run: Run, finding: Finding) -> Severity:
    """By what it costs of the run's own step and peak."""
    measured = measurements_of(run)
    return rated(finding, measured.whole_ms, measured.peak_bytes).severity
