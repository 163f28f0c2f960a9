"""cycles-1.json: what Python's garbage collector freed during training, and the reference cycle that held it."""

from pathlib import Path
from typing import Literal

import msgspec

from efprof.artifacts.lines import read_json
from efprof.model import NotRecorded

CYCLES_FILE = "cycles-1.json"


class LargeCollection(msgspec.Struct, kw_only=True):
    """One that freed much and ended at `at_ns`, on the clock of the steps; `before_bytes` were allocated before it."""

    at_ns: int
    generation: int
    before_bytes: int
    freed_bytes: int
    seconds: float


class CycleLink(msgspec.Struct, kw_only=True):
    """How one object of a cycle keeps the next one.

    `owner` is the class or function that `name`, its attribute or variable, belongs to; `file` is where that is
    written, None where it is a library's. `kind` is `class` where it is a class that keeps itself, with no name.
    `through` is what lies between the two: a bound `method`, an exception's `traceback`, else a `container` or nothing.
    `can_be_weak` tells whether Python can refer weakly to the next one.
    """

    kind: Literal["attribute", "variable", "closure", "class"]
    owner: str
    name: str
    file: str | None
    through: Literal["", "method", "traceback", "container"] = ""
    can_be_weak: bool = False


class Cycle(msgspec.Struct, kw_only=True):
    """A cycle, the object of its first link as the start and the end; `count` such objects were found as garbage.

    The bytes are those that one of them holds, itself and all behind it, each storage once.
    """

    links: list[CycleLink]
    count: int
    tensors: int
    tensor_bytes: int
    graph_nodes: int
    graph_bytes: int

    @property
    def path(self) -> str:
        """The cycle as code a user knows: `Step.trainer -> Trainer.last_step -> Step`."""
        names = [f"{link.owner}.{link.name}" if link.name else link.owner for link in self.links]
        return " -> ".join([*names, self.links[0].owner])


class CollectedGarbage(msgspec.Struct, kw_only=True):
    """`num_read` collections were looked at, `num_large` freed much, the first of which are listed.

    `cycles` were found when the garbage of a moment was looked at, most bytes first; none where it was not.
    """

    num_read: int
    num_large: int
    collections: list[LargeCollection]
    cycles: list[Cycle]


def read_cycles(rank_folder: Path) -> CollectedGarbage:
    """cycles-1.json of a rank; raises NotRecorded where there is none."""
    path = rank_folder / CYCLES_FILE
    if not path.exists():
        raise NotRecorded(f"{CYCLES_FILE} is missing; record the run with 'efprof record -- COMMAND'.")
    return read_json(path, CollectedGarbage)
