"""A tree of call paths: each with the time that was spent in it alone, from a stage down to an operator."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from efprof.facts.source.sources import place_of

Kind = Literal["root", "stage", "line", "function", "module", "operator", "label"]

Parts = tuple[tuple[Kind, str], ...]
"""Kind and text of what leads to a path, from the outermost."""
Line = tuple[Kind, str]
"""A line or a function of the user's, by `file:line`; of a function that is where it begins."""


@dataclass(slots=True, eq=False)
class CallPath:
    """One path with its own time, in nanoseconds over all steps; `text` says what it adds to the path above it."""

    kind: Kind
    text: str
    stage: str
    above: "CallPath | None"
    own_ns: int = 0
    device_ns: int = 0
    count: int = 0
    below: dict[tuple[Kind, str], "CallPath"] = field(default_factory=dict)

    def step_into(self, kind: Kind, text: str) -> "CallPath":
        """The path that goes on with this, made where there is none; its stage is the same, or begins."""
        found = self.below.get((kind, text))
        if found is None:
            found = self.below[kind, text] = CallPath(kind, text, text if kind == "stage" else self.stage, self)
        return found

    def walk(self) -> Iterator["CallPath"]:
        """This one and all below, an outer one before its inner ones."""
        todo = [self]
        while todo:
            path = todo.pop()
            yield path
            todo.extend(reversed(path.below.values()))

    def nearest(self, *kinds: Kind) -> "CallPath | None":
        """This one or the first above it of these kinds."""
        path: CallPath | None = self
        while path is not None and path.kind not in kinds:
            path = path.above
        return path

    @property
    def owner(self) -> "CallPath | None":
        """The innermost line or function of the user's that it is of."""
        return self.nearest("line", "function")

    def parts(self) -> list["CallPath"]:
        """From the outermost, without the root."""
        found, path = [], self
        while path.above is not None:
            found.append(path)
            path = path.above
        return found[::-1]


def totals(root: CallPath, weight: Callable[[CallPath], int]) -> dict[CallPath, int]:
    """What is spent under each path, itself included."""
    found: dict[CallPath, int] = {}
    for path in reversed(list(root.walk())):
        found[path] = max(0, weight(path)) + sum(found[below] for below in path.below.values())
    return found


def paths_by_line(root: CallPath) -> dict[Line, list[CallPath]]:
    """The paths of each line, and of each function outside of its lines: what each path's innermost one is.

    The first one's `text` is the whole `file:line:function`.
    """
    found: dict[Line, list[CallPath]] = {}
    for path in root.walk():
        if (owner := path.owner) is not None:
            found.setdefault((owner.kind, place_of(owner.text)), []).append(path)
    return found
