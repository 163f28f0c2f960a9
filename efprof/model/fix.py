"""Typed changes that mend a fault."""

from dataclasses import dataclass
from typing import Literal

Applicability = Literal["safe", "review", "manual"]
"""safe: numbers unchanged; review: numerics or behaviour may change; manual: a person must write it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentVariable:
    """A variable to set before the command; `old` is None where it is unset."""

    name: str
    old: str | None
    new: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigurationValue:
    """A setting to change, by the name it has where the user writes it; `file` where that is known."""

    name: str
    old: str
    new: str
    file: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeEdit:
    """Replace source lines; `old` and `new` keep the indentation of the file."""

    file: str
    line: int
    old: str
    new: str


Change = EnvironmentVariable | ConfigurationValue | CodeEdit


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """One sentence that says what to do, and the changes that do it (none where it is manual)."""

    summary: str
    applicability: Applicability
    changes: tuple[Change, ...] = ()
