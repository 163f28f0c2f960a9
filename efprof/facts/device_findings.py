"""The findings of several devices, one of which may lack the line that a finding blames."""

from collections.abc import Callable, Sequence

from efprof.model import Examination, Finding, ThinEvidence


def examination_of(looked_at: str, makes: Sequence[Callable[[], Finding]]) -> Examination:
    """Every finding that can be made, and why others cannot; raises ThinEvidence where for that reason none can."""
    findings, reasons = [], []
    for make in makes:
        try:
            findings.append(make())
        except ThinEvidence as thin:
            reasons.append(str(thin).rstrip("."))
    if reasons and not findings:
        raise ThinEvidence(f"{'; '.join(reasons)}.")
    return Examination(looked_at="; ".join([looked_at, *reasons]), findings=tuple(findings))
