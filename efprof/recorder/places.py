"""Where a walk from a variable stands, and what was found to be held by each of the places that it came through."""

from typing import Any, NamedTuple

from efprof.recorder.held import Held
from efprof.recorder.variables import COLLECTIONS

Key = tuple[str, str]
"""Scope and path."""


class Place(NamedTuple):
    """Where a walk stands: the names that led there."""

    path: str
    scope: str
    owner: str
    name: str
    file: str | None
    depth: int = 0

    def deeper(self) -> "Place":
        """One layer below, of the same name; `_replace` takes four times as long."""
        path, scope, owner, name, file, depth = self
        return Place(path, scope, owner, name, file, depth + 1)

    def entry(self, key: str) -> "Place":
        """Of a dictionary."""
        path, scope, owner, name, file, depth = self
        return Place(f"{path}[{key!r}]", scope, owner, name, file, depth + 1)


class Holders:
    """What was found, by scope and path; `here` are those that the last variable led to."""

    def __init__(self) -> None:
        self.held: dict[Key, Held] = {}
        self.here: set[Key] = set()

    def of(self, place: Place, value: Any) -> Held:
        """What a tensor, or a container, at this place is counted in, which has so many elements more."""
        key = (place.scope, place.path)
        self.here.add(key)
        held = self.held.get(key)
        if held is None:
            held = self.held[key] = Held(
                path=place.path,
                scope=place.scope,
                owner=place.owner,
                name=place.name,
                file=place.file,
                type=type(value).__name__,
            )
        held.length += len(value) if issubclass(type(value), (*COLLECTIONS, dict)) else 1
        return held
