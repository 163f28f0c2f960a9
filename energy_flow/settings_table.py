"""Every setting with its meaning, its allowed values and what the named configurations give it."""

from __future__ import annotations

import dataclasses
import inspect
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from energy_flow.config_parsing import field_types
from energy_flow.energy_config import NAMED_CONFIGS, EnergyConfig, Range

_FIELD_LINE = re.compile(r"^    (?P<name>\w+): .*?  # (?P<meaning>.+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One setting as a person reads of it."""

    path: str  # section.field
    meaning: str
    allowed: str
    values: dict[str, str]  # by the name of the configuration

    def __str__(self) -> str:
        """Tell the setting in three lines."""
        values = ", ".join(f"{name} {value}" for name, value in self.values.items())
        return f"{self.path}  ({self.allowed})\n    {self.meaning}\n    {values}"


def list_settings() -> list[Setting]:
    """All settings, in the order of `energy_config.py`, whose comments are their meanings."""
    meanings = _meanings()
    return [
        Setting(path=path, meaning=meanings[path], allowed=_allowed(kind), values=_values(path))
        for path, kind in field_types().items()
    ]


def markdown_table(settings: list[Setting]) -> str:
    """The settings as a Markdown table, a row each."""
    header = ["setting", "what it is", "allowed", *(f"`{name}`" for name in NAMED_CONFIGS)]
    rows = [[f"`{setting.path}`", setting.meaning, setting.allowed, *setting.values.values()] for setting in settings]
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)


def _meanings() -> dict[str, str]:
    return {
        f"{section_name}.{match['name']}": match["meaning"]
        for section_name, section in get_type_hints(EnergyConfig).items()
        if isinstance(section, type) and dataclasses.is_dataclass(section)
        for match in _FIELD_LINE.finditer(inspect.getsource(section))
    }


def _allowed(kind: Any) -> str:
    allowed = Range()
    if get_origin(kind) is Annotated:
        kind, allowed = get_args(kind)
    if get_origin(kind) is Literal:
        return ", ".join(get_args(kind))
    described = {bool: "true, false", str: "text", int: "whole number", float: "number"}[kind]
    if allowed.lowest is not None and allowed.highest is not None:
        return f"{described}, {allowed.lowest:g} to {allowed.highest:g}"
    return described if allowed.lowest is None else f"{described}, {allowed.lowest:g} or more"


def _values(path: str) -> dict[str, str]:
    section, _, field = path.partition(".")
    return {name: _written(getattr(getattr(config, section), field)) for name, config in NAMED_CONFIGS.items()}


def _written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value) or '""'
