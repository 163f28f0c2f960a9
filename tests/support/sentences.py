"""How long the sentences are that a finding and the lines on top of a report are told in."""

import re

from efprof.model import Finding
from efprof.report.verdict import VerdictLines

MAX_WORDS = 25
_CODE = re.compile(r"`[^`]*`")
_END = re.compile(r"[.!?](?=\s|$)")


def faulty_sentences(told: Finding | VerdictLines) -> list[str]:
    """Those that have more words, a piece of code being one; and what is empty."""
    if isinstance(told, Finding):
        lines = {"headline": told.headline, "message": told.message, "why": told.why, "fix": told.fix.summary}
    else:
        lines = {"verdict": told.verdict, "why": told.why, "next": told.next}
    sentences = [part.strip() for line in lines.values() for part in _END.split(_CODE.sub("`code`", line))]
    empty = [f"no {name} at {told.blame}" for name, line in lines.items() if not line]
    return empty + [part for part in sentences if len(part.split()) > MAX_WORDS]
