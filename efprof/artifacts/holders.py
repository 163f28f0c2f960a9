"""holders-<n>.json: which Python objects keep surviving tensors alive, counted twice some steps apart."""

from pathlib import Path

import msgspec

from efprof.model import NotRecorded, UnreadableInput


class Holder(msgspec.Struct, kw_only=True):
    """One container or variable whose tensors, or whose graph, grew between two counts.

    `path` is code the user knows (`train.history`, `Trainer.losses`); `scope` is `local`, `attribute` or
    `global`; `owner` the function, class or module that the last name of `path` belongs to, `file` where that
    is written. `tensor_bytes` counts each storage once; `graph_nodes` counts autograd nodes reachable.
    `max_length` is the `maxlen` of a deque, of several of that path together; 0 where there is no such limit, or
    another one than at the first count, and None where none was recorded.
    """

    path: str
    scope: str
    owner: str
    name: str
    file: str | None
    type: str
    tensors_before: int
    tensors_after: int
    tensor_bytes_before: int
    tensor_bytes_after: int
    graph_nodes_before: int
    graph_nodes_after: int
    graph_bytes_before: int
    graph_bytes_after: int
    length_before: int
    length_after: int
    max_length: int | None = None


class HolderCensus(msgspec.Struct, kw_only=True):
    """Two counts and what grew between them, most bytes first; behind it, where all were asked for, what did not.

    `is_partial` where a count ran out of time: a variable that was not counted to its end has the same numbers before
    and after, the least there are; where only its graphs were not, the numbers of its graphs are so; and what was not
    reached is missing.
    """

    step_before: int
    step_after: int
    holders: list[Holder]
    is_partial: bool = False


def read_censuses(rank_folder: Path) -> list[HolderCensus]:
    """Every holders-<n>.json of a rank in order; raises NotRecorded where there is none."""
    paths = sorted(rank_folder.glob("holders-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    if not paths:
        raise NotRecorded(
            "holders-<n>.json is missing; it is written when memory grows, or with 'efprof record --holders'."
        )
    try:
        return [msgspec.json.decode(path.read_bytes(), type=HolderCensus) for path in paths]
    except msgspec.DecodeError as error:
        raise UnreadableInput(f"{rank_folder / 'holders-<n>.json'} is not what efprof writes ({error}).") from None
