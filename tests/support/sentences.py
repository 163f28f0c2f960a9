"""How long the sentences are in which a finding is told."""

import re

from efprof.model import Finding

MAX_WORDS = 25
_CODE = re.compile(r"`[^`]*`")
_END = re.compile(r"[.!?](?=\s|$)")


def faulty_lines(finding: Finding) -> list[str]:
    """The sentences of its lines on top that have more words, a piece of code being one; and lines that are empty."""
    lines = {"message": finding.message, "why": finding.why, "fix": finding.fix.summary, "title": finding.headline}
    sentences = [part.strip() for line in lines.values() for part in _END.split(_CODE.sub("`code`", line))]
    empty = [f"no {name} at {finding.blame}" for name, line in lines.items() if not line]
    return empty + [part for part in sentences if len(part.split()) > MAX_WORDS]
