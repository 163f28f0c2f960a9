"""How data is written here: as frozen dataclasses with slots, whose fields are given by their names."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen_dataclass(kind: type[T]) -> type[T]:
    """A dataclass whose objects do not change, take their fields by name only, and have no others."""
    return dataclass(frozen=True, kw_only=True, slots=True)(kind)
