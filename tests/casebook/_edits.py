"""A program's text with the edits of a report."""

from collections.abc import Sequence

from efprof.model import CodeEdit


def edited(text: str, edits: Sequence[CodeEdit]) -> str:
    """The text with every edit made; raises ValueError where the lines are not those that an edit was made for."""
    lines = text.splitlines()
    for edit in sorted(edits, key=lambda edit: -edit.line):
        old = edit.old.splitlines()
        if lines[edit.line - 1 : edit.line - 1 + len(old)] != old:
            raise ValueError(f"line {edit.line} is not {edit.old!r}")
        lines[edit.line - 1 : edit.line - 1 + len(old)] = edit.new.splitlines()
    return "\n".join([*lines, ""])
