"""Where a walk from a variable stands, and what was found to be held by each of the places that it came through."""

from collections import deque
from typing import Any, NamedTuple

from efprof.recorder.held import Held
from efprof.recorder.variables import COLLECTIONS

_MAXLEN: Any = vars(deque)["maxlen"]
"""Read past the attributes of the user's own subclasses, which may run his code."""

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
        limit = (_MAXLEN.__get__(value) or 0) if issubclass(type(value), deque) else 0
        if held is not None:
            held.max_length = held.max_length + limit if held.max_length and limit else 0
        else:
            held = self.held[key] = Held(
                path=place.path,
                scope=place.scope,
                owner=place.owner,
                name=place.name,
                file=place.file,
                type=type(value).__name__,
                max_length=limit,
            )
        held.length += len(value) if issubclass(type(value), (*COLLECTIONS, dict)) else 1
        return held
