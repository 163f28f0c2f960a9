"""A line of the user's source code, with an identity that survives lines moving above it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceLine:
    """`line` counts from 1; `file` is relative to the repository; `text` is stripped of its indentation.

    `ordinal` counts equal texts within one function from 0, so that two such lines keep apart.
    """

    file: str
    line: int
    function: str
    text: str
    ordinal: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def key(self) -> str:
        """The identity of the line without its number."""
        suffix = f"#{self.ordinal}" if self.ordinal else ""
        return f"{self.file}::{self.function}::{self.text}{suffix}"
