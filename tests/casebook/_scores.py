"""How a case came out: what was found, and the gain that was predicted."""

from dataclasses import dataclass

from efprof.model import CodeEdit, Finding, Report
from efprof.model.severity import most_severe
from efprof.report.verdict import describe_verdict, rank_findings
from tests.casebook._cases import Case


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """How one case came out in one pair of runs, recorded one after the other."""

    case: Case
    sick: Report
    healthy: Report
    fixed: Report | None
    found: int
    on_line: int
    is_told_first: bool
    extra: tuple[str, ...]
    false_alarms: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        wanted = len(self.case.faults)
        is_told = self.found == self.on_line == wanted and not self.extra and not self.false_alarms
        return is_told and self.is_told_first and not self.is_broken_by_fix

    @property
    def verdict(self) -> tuple[str, ...]:
        """What both runs were told, place by place: the same, we hope, however often it is recorded."""
        sides = (("sick", self.sick), ("healthy", self.healthy))
        return tuple(f"{side}: {audit} at {finding.blame}" for side, run in sides for audit, finding in findings(run))

    @property
    def mended(self) -> Report:
        """What the sick run is measured against: the run with the report's edits, if those mend every fault."""
        has_edits = all(any(isinstance(one, CodeEdit) for one in found.fix.changes) for found in expected(self))
        return self.fixed if self.fixed is not None and has_edits else self.healthy

    @property
    def is_broken_by_fix(self) -> bool:
        """Whether the program does not run to its end with the report's edit."""
        return self.fixed is not None and self.fixed.run.ended != "finished"


def is_told_first(case: Case, report: Report) -> bool:
    """True if the three lines on top tell of one of the case's faults, by its line, and as severe as it is."""
    if not case.faults:
        return True
    lead = next(iter(rank_findings(report)), None)
    if lead is None or lead.audit_id not in dict(case.faults):
        return False
    is_severe = most_severe(lead.finding.severity, case.severity) == lead.finding.severity
    return is_severe and str(lead.finding.blame) in describe_verdict(report).verdict


def findings(report: Report) -> list[tuple[str, Finding]]:
    """What it told, each with the audit that told it."""
    return [(result.audit_id, finding) for result in report.audits for finding in result.findings]


def expected(entry: Score) -> list[Finding]:
    """The findings of the planted faults."""
    return [finding for audit, finding in findings(entry.sick) if audit in dict(entry.case.faults)]


def predicted(entry: Score) -> tuple[float | None, float | None]:
    """Milliseconds per step and bytes of peak that the fixes of the expected findings promise together, if any does.

    Findings of one line promise the same time: a wait for data that grows is hidden by workers, or grows no more. Of
    those the largest counts.
    """
    steps_ms, peaks = dict[str, float](), dict[str, float]()
    for finding in expected(entry):
        line, gain = str(finding.blame), finding.gain
        for promised, value in ((steps_ms, gain.step_ms), (peaks, gain.peak_bytes)):
            if value is not None:
                promised[line] = max(value, promised.get(line, 0.0))
    return sum(steps_ms.values()) if steps_ms else None, sum(peaks.values()) if peaks else None


def until_step(entry: Score) -> int | None:
    """The last step that the prediction of the peak holds for; None where it is of the whole run."""
    ends = [finding.gain.until_step for finding in expected(entry)]
    return max((end for end in ends if end is not None), default=None)
