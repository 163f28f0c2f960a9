"""A fault that was found, and the result of looking for it."""

from dataclasses import dataclass
from typing import Literal

from efprof.model.evidence import Evidence
from efprof.model.fix import Fix
from efprof.model.gain import Gain
from efprof.model.source import SourceLine

Severity = Literal["high", "medium", "low"]
AuditStatus = Literal["passed", "failed", "not_applicable", "errored"]
Category = Literal["memory", "time", "numbers"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Blame, message, fix, predicted gain and evidence: all of them, always.

    `headline` is a few words naming the fault (a card's title); `message` is one sentence about this run:
    what happens, where, how much.
    """

    blame: SourceLine
    category: Category
    headline: str
    message: str
    fix: Fix
    gain: Gain
    evidence: tuple[Evidence, ...]
    severity: Severity


@dataclass(frozen=True, kw_only=True, slots=True)
class Examination:
    """What an audit returns: its findings, and in a few words what it looked at (`78 steps, 3 lines that read`)."""

    looked_at: str
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditResult:
    """What one audit says of one run.

    `reason` says what was looked at where it passed, which file is missing and how to record it where it is
    not applicable, and which error it met where it broke.
    """

    audit_id: str
    status: AuditStatus
    reason: str
    findings: tuple[Finding, ...] = ()

    def key_of(self, finding: Finding) -> str:
        """The identity of a finding from one report of the same code to the next."""
        return f"{self.audit_id}:{finding.blame.key}"
