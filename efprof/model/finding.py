"""A fault that was found: the line at fault, the changes that mend it, what they save; and the result of looking."""

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Self

from efprof.model.data import frozen_dataclass
from efprof.model.errors import ThinEvidence
from efprof.model.evidence import Evidence

Severity = Literal["high", "medium", "low"]
AuditStatus = Literal["passed", "failed", "not_applicable", "errored"]
Category = Literal["memory", "time", "numbers"]
Basis = Literal["measured bound", "replay", "model"]
Applicability = Literal["safe", "review", "manual"]
"""safe: numbers unchanged; review: numerics or behaviour may change; manual: a person must write it."""


HIDDEN = "<hidden>"
"""In the place of what looked like a secret."""


@frozen_dataclass
class SourceLine:
    """A line of the user's source code, with an identity that survives lines moving above it.

    `line` counts from 1; `file` is relative to the repository; `text` is stripped of its indentation. Where no line is
    known, `line` is 0 and `file` says what is.

    `ordinal` counts equal texts within one function from 0, so that two such lines keep apart.
    """

    file: str
    line: int = 0
    function: str = ""
    text: str = ""
    ordinal: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file

    @property
    def key(self) -> str:
        """The identity of the line without its number."""
        suffix = f"#{self.ordinal}" if self.ordinal else ""
        return f"{self.file}::{self.function}::{self.text}{suffix}"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the user's as it ran; without lines where it was not recorded."""

    name: str
    lines: Sequence[str] = ()

    @property
    def tree(self) -> ast.Module:
        """Its syntax; empty where it was not recorded, or was written for another Python."""
        return parsed("\n".join(self.lines)) or ast.Module([], [])


def lines_of(text: str) -> list[str]:
    """As Python's parser counts them: `str.splitlines` also ends one at a form feed, and at others."""
    lines = re.split(r"\r\n|\r|\n", text)
    return lines if lines[-1] else lines[:-1]


@lru_cache(maxsize=256)
def parsed(text: str) -> ast.Module | None:
    """None where it was written for another Python."""
    try:
        return ast.parse(text)
    except SyntaxError:
        return None


def called_name(node: ast.AST) -> str:
    """The last name of what is called; empty where the node is no call."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
    return ""


def spans(node: ast.stmt | ast.expr | ast.excepthandler, line: int) -> bool:
    """True if the line is one of the node's."""
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def nodes_on(tree: ast.AST, line: int) -> list[ast.stmt | ast.expr]:
    """The statements and expressions that the line is of, an outer one before its inner ones."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.stmt | ast.expr) and spans(node, line)]


@frozen_dataclass
class EnvironmentVariable:
    """A variable to set before the command; `old` is None where it is unset."""

    name: str
    old: str | None
    new: str


@frozen_dataclass
class ConfigurationValue:
    """A setting to change, by the name it has where the user writes it; `file` where that is known."""

    name: str
    old: str
    new: str
    file: str | None = None


@frozen_dataclass
class CodeEdit:
    """Replace source lines; `old` and `new` keep the indentation of the file."""

    file: str
    line: int
    old: str
    new: str


Change = EnvironmentVariable | ConfigurationValue | CodeEdit


@frozen_dataclass
class Fix:
    """One sentence that says what to do, and the changes that do it (none where it is manual).

    `may_change` says what to look at in a review, where the sentence does not.
    """

    summary: str
    applicability: Applicability
    changes: tuple[Change, ...] = ()
    may_change: str = ""

    @classmethod
    def by_hand(cls, summary: str) -> Self:
        """What a person must write."""
        return cls(summary=summary, applicability="manual")

    @classmethod
    def by(cls, change: Change | None, applicability: Applicability, summary: str, may_change: str = "") -> Self:
        """By a single change; where there is none, by hand."""
        if change is None:
            return cls.by_hand(summary)
        return cls(summary=summary, applicability=applicability, changes=(change,), may_change=may_change)


@frozen_dataclass
class Gain:
    """A predicted saving; None where the fix does not touch that resource or nothing may be claimed.

    `step_ms` is milliseconds per step (where steps grow, of a late one, which takes `late_step_ms`), `peak_bytes` bytes
    off this run's peak, intervals (low, high) of the same. `basis` is how it is known: a measured bound, a replay of
    what was recorded, or a model; `explanation` says it in one sentence. `until_step` is the last step up to which the
    peak was known, where the run went on for long after it: the whole run saves no less than that. `of_bytes` is what
    `peak_bytes` is a share of where that is not the run's peak of allocated memory, such as what was reserved.
    """

    basis: Basis = "measured bound"
    explanation: str
    step_ms: float | None = None
    peak_bytes: int | None = None
    step_ms_interval: tuple[float, float] | None = None
    peak_bytes_interval: tuple[float, float] | None = None
    until_step: int | None = None
    late_step_ms: float | None = None
    of_bytes: int | None = None

    @classmethod
    def none(cls, why: str) -> Self:
        """Nothing is predicted, as `why` explains."""
        return cls(explanation=why)

    @classmethod
    def of_step(cls, explanation: str, step_ms: float, interval: tuple[float, float] | None = None) -> Self:
        """A measured bound of the milliseconds per step that are saved."""
        return cls(explanation=explanation, step_ms=step_ms, step_ms_interval=interval)


@frozen_dataclass
class Finding:
    """`headline` names the fault (a card's title), `message` what happens and how much, `why` what causes it.

    Each is a sentence or two of at most 25 words; the line is not in them, as it is told beside them.
    `within` is the function of a library that does it, where the line only calls the library.
    `severity` is that of the harm alone: high where the run ended by it or its result is wrong. What it costs raises it
    (`model/severity.py`). Where the run is too short to tell a leak from a buffer, it `may_be_filling`.
    """

    blame: SourceLine
    category: Category
    headline: str
    message: str
    why: str
    fix: Fix
    gain: Gain
    evidence: tuple[Evidence, ...] = ()
    severity: Severity = "low"
    may_be_filling: bool = False
    within: str = ""


@frozen_dataclass
class Examination:
    """What an audit returns: its findings, and in a few words what it looked at (`78 steps, 3 lines that read`)."""

    looked_at: str
    findings: tuple[Finding, ...] = ()

    @classmethod
    def of(cls, looked_at: str, makes: Sequence[Callable[[], Finding]]) -> Self:
        """With the findings that can be made, and why others cannot; raises ThinEvidence where none can."""
        findings, reasons = [], []
        for make in makes:
            try:
                findings.append(make())
            except ThinEvidence as thin:
                reasons.append(str(thin).rstrip("."))
        if reasons and not findings:
            raise ThinEvidence(f"{'; '.join(reasons)}.")
        return cls(looked_at="; ".join([looked_at, *reasons]), findings=tuple(findings))


@frozen_dataclass
class AuditResult:
    """`reason` says what was looked at, which file is missing and how to record it, or which error it met."""

    audit_id: str
    status: AuditStatus
    reason: str
    findings: tuple[Finding, ...] = ()

    def key_of(self, finding: Finding) -> str:
        """The identity of a finding from one report of the same code to the next."""
        return ":".join(filter(None, [self.audit_id, finding.blame.key, finding.within]))
