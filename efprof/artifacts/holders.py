"""holders-<n>.json: who keeps tensors alive; watch-<n>.json: which lines feed it; cycles-1.json: garbage in circles."""

from pathlib import Path
from typing import Any, Literal

import msgspec

from efprof.artifacts.files import numbered_files, read_json
from efprof.model import NotRecorded, UnreadableInput

Moment = Literal["step", "loader_ended", "loader_began", "end"]

CYCLES_FILE = "cycles-1.json"


class Counted(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one variable, attribute or container held at one count.

    `path` is code the user knows (`train.history`, `Trainer.losses`, `load.cache_info` of an `lru_cache`: the name of
    its function); `scope` is `local`, `attribute` or `global`; `owner` the function, class or module that the last name
    of `path` belongs to, `file` where that is written. `tensor_bytes` counts each storage once, whole; `value_bytes` is
    what the tensors themselves take of it: far less where a detached scalar keeps a large storage. `graph_nodes` are
    the autograd nodes reachable, `graph_bytes` what they saved, `graph_span` the numbers of the first one that was made
    and of the last: they tell a graph that is built anew in each step from one that goes on. `max_length` is the
    `maxlen` of a deque or of an `lru_cache`, of several of that path together; 0 where there is none. `entry` is the
    type of the last entries and, of a tuple, list or dict of few, the types of its parts (`tuple`, `int`, `Tensor`);
    empty where they are not alike. `is_cut` where the count ran out of time in it: the numbers are the least there are.
    `number` tells the object apart from others as long as it lives, where it is one container; None for several objects
    of one path.
    """

    path: str
    scope: str
    owner: str
    name: str
    file: str | None
    type: str
    length: int = 0
    max_length: int = 0
    tensors: int = 0
    tensor_bytes: int = 0
    value_bytes: int = 0
    graph_nodes: int = 0
    graph_bytes: int = 0
    graph_span: tuple[int, int] | None = None
    entry: list[str] = []
    is_cut: bool = False
    number: int | None = None


class Container(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A list, dict, set or deque (whatever it contains) that is longer than at an earlier count of the same object.

    `number` is that of a `Counted` where it is one of those. `path`, `scope`, `owner` and `file` as there, or those of
    the holder that it lies in; None where nobody knows a name for it. `entry_bytes` is what an entry takes of the
    host's memory, by a sample of the last ones. Once listed it is listed again at every count while it lives, shorter
    or not: `length_before` is what it was at the last one.
    """

    number: int
    type: str
    length: int
    length_before: int
    max_length: int = 0
    holds_tensors: bool
    entry_bytes: int
    path: str | None = None
    scope: str | None = None
    owner: str | None = None
    file: str | None = None


class Count(msgspec.Struct, kw_only=True, omit_defaults=True):
    """All holders of tensors at the end of step `step`, most bytes first, and the containers that grew since the last
    count. `moment` tells a count around the restart of a loader, and the one at the program's end. `is_partial` where
    time ran out: what was not reached is missing.
    """

    step: int
    moment: Moment
    holders: list[Counted]
    containers: list[Container] = []
    is_partial: bool = False


class Change(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A line of the user's after which a watched thing had changed: `file:line:function`.

    `grew` and `shrank` by `entries` in all (of a container), or `bound` anew (an attribute, a variable, an entry);
    `times` seen. `is_within_call` where the line called a library that did it. `candidates` are other lines that could
    have done it, where it was seen only once per step (a local variable before Python 3.13).
    """

    site: str
    how: Literal["grew", "shrank", "bound"]
    times: int
    entries: int = 0
    is_within_call: bool = False
    candidates: list[str] = []


class Watched(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One thing that was watched: a holder by its scope, path and file, or a container by its number; or both."""

    path: str | None = None
    scope: str | None = None
    file: str | None = None
    number: int | None = None
    changes: list[Change] = []


class Watch(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The lines that were seen; `why_not` where nothing could be watched (a debugger)."""

    watched: list[Watched]
    why_not: str | None = None


def read_counts(rank_folder: Path) -> list[Count]:
    """What every holders-<n>.json of a rank counted, in order; raises NotRecorded where there is none."""
    how = ": holders are counted after 3, 6, 10 and more steps, and never with 'record --no-holders'."
    return [count for path in numbered_files(rank_folder, "holders", ".json", how) for count in _counts_in(path)]


def read_watches(rank_folder: Path) -> list[Watch]:
    """What every watch-<n>.json of a rank saw, in order; empty where there is none."""
    return [read_json(path, Watch) for path in numbered_files(rank_folder, "watch", ".json")]


class LargeCollection(msgspec.Struct, kw_only=True):
    """One that freed much and ended at `at_ns`, on the clock of the steps; `before_bytes` were allocated before it."""

    at_ns: int
    before_bytes: int
    freed_bytes: int


class CycleLink(msgspec.Struct, kw_only=True):
    """How one object of a cycle keeps the next one.

    `owner` is the class or function that `name`, its attribute or variable, belongs to; `file` is where that is
    written, None where it is a library's. `kind` is `class` where it is a class that keeps itself, with no name.
    `through` is `method` where a bound method lies between the two; older runs tell of other things too. `can_be_weak`
    tells whether Python can refer weakly to the next one.
    """

    kind: Literal["attribute", "variable", "closure", "class"]
    owner: str
    name: str
    file: str | None
    through: str = ""
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


def _counts_in(path: Path) -> list[Count]:
    """One; of an older recording two, in which each number of a holder is there twice, and what views take is not."""
    old = read_json(path, dict[str, Any])
    if "step_before" not in old:
        return [read_json(path, Count)]
    counts = []
    try:
        for when in ("before", "after"):
            holders = []
            for one in old["holders"]:
                fields = {name.removesuffix(f"_{when}"): value for name, value in one.items() if value is not None}
                if fields["tensors"]:
                    holders.append({"file": None, **fields, "value_bytes": fields["tensor_bytes"]})
            count = {**old, "step": old[f"step_{when}"], "moment": "step", "holders": holders}
            counts.append(msgspec.convert(count, Count))
    except (LookupError, TypeError, AttributeError, msgspec.ValidationError) as error:
        raise UnreadableInput(f"{path} is not what efprof writes ({error}).") from None
    return counts
