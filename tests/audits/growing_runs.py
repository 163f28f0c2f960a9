"""Runs in which something grows: steps that leave memory behind, counts of holders and containers, lines seen."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from efprof.artifacts.holders import Change, Container, Count, Counted, Watch, Watched
from efprof.artifacts.steps import StepRecord
from efprof.facts.run.run import Run
from efprof.units import MIB
from tests.support.builders import make_step, write_run

TRAIN = """\
def train(model, loader, optimizer):
    history = []
    for x, y in loader:
        loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss)
    print(sum(float(loss) for loss in history))
"""
BACKWARD = "train.py:6:train"
FED = "train.py:8:train"
STEPS = (19, 39, 59)


def leaking_steps(num_steps: int = 60, bytes_per_step: int = MIB) -> list[StepRecord]:
    """Steps that leave so many bytes behind each."""
    return [
        make_step(step, allocated_bytes=[100 * MIB + bytes_per_step * step] * 5, backward_site=BACKWARD)
        for step in range(num_steps)
    ]


def counted(**fields: Any) -> Counted:
    """A list with ten losses and their graphs."""
    defaults: dict[str, Any] = {
        "path": "train.history",
        "scope": "local",
        "owner": "train",
        "name": "history",
        "file": "train.py",
        "type": "list",
        "length": 10,
        "tensors": 10,
        "tensor_bytes": 40,
        "value_bytes": 40,
        "graph_nodes": 100,
        "graph_bytes": 10 * MIB,
        "entry": ["Tensor"],
        "number": 1,
    }
    return Counted(**{**defaults, **fields})


def graphs(entries: int, **fields: Any) -> Counted:
    """A list of so many losses with graphs, a mebibyte each."""
    sizes = {"tensor_bytes": 4 * entries, "value_bytes": 4 * entries, "graph_bytes": MIB * entries}
    return counted(**{"length": entries, "tensors": entries, "graph_nodes": 10 * entries, **sizes, **fields})


def plain(entries: int, **fields: Any) -> Counted:
    """A list of so many tensors without graphs, a mebibyte each."""
    sizes = {"tensor_bytes": MIB * entries, "value_bytes": MIB * entries, "graph_bytes": 0, "graph_nodes": 0}
    return counted(**{"length": entries, "tensors": entries, **sizes, **fields})


def summed(entries: int, *, epoch: int = 0, **fields: Any) -> Counted:
    """A sum of so many losses of an epoch, of which backward has left the nodes: ten each."""
    first = 1_000_000 * epoch
    sizes = {"tensors": 1, "tensor_bytes": 4, "value_bytes": 4, "graph_bytes": 0, "graph_nodes": 10 * entries}
    return counted(**{"length": 1, "graph_span": (first, first + 100 * entries), **sizes, **fields})


def counts_of(
    holder: Callable[[int], Counted | None], *, steps: Sequence[int] = STEPS, is_partial: bool = False
) -> list[Count]:
    """A count after each of these steps, of what was held by then; None is nothing."""
    found = [(step, holder(step + 1)) for step in steps]
    return [Count(step=step, moment="step", holders=[one] if one else [], is_partial=is_partial) for step, one in found]


def epochs(holder: Callable[..., Counted], length: int) -> list[Count]:
    """Counts of what is let go after each of two epochs of that length."""
    steps = [end - 1 for end in (length // 4, length // 2, length)]
    began = Count(step=length - 1, moment="loader_began", holders=[])
    again = [Count(step=length + step, moment="step", holders=[holder(step + 1, epoch=1)]) for step in steps]
    return [*counts_of(holder, steps=steps), began, *again]


def containers_of(steps: Sequence[int] = STEPS, *, per_step: int = 1, **fields: Any) -> list[Count]:
    """Counts of a list of rows that grows by so many a step; the first finds it too short to have grown."""
    defaults: dict[str, Any] = {
        "number": 7,
        "type": "list",
        "holds_tensors": False,
        "entry_bytes": MIB,
        "path": "train.log",
        "scope": "local",
        "owner": "train",
        "file": "train.py",
    }
    found = [Count(step=steps[0], moment="step", holders=[])]
    for before, step in pairwise(steps):
        lengths = {"length": per_step * (step + 1), "length_before": per_step * (before + 1)}
        one = Container(**{**defaults, **lengths, **fields})
        found.append(Count(step=step, moment="step", holders=[], containers=[one]))
    return found


def seen(site: str = FED, how: Literal["grew", "shrank", "bound"] = "grew", *, times: int = 6, **fields: Any) -> Change:
    """A line that was seen to change something so often."""
    return Change(**{"site": site, "how": how, "times": times, "entries": times, **fields})


def watch_of(*changes: Change, **fields: Any) -> Watch:
    """What was seen of the list with the losses; of something else with other `fields`."""
    named = {"path": "train.history", "scope": "local", "file": "train.py", "number": 1, **fields}
    return Watch(watched=[Watched(**named, changes=list(changes))])


def leaking_run(folder: Path, holder: Callable[[int], Counted | None] = graphs, **fields: Any) -> Run:
    """60 steps that leave a mebibyte each, three counts and the line that was seen."""
    defaults: dict[str, Any] = {
        "steps": leaking_steps(),
        "sources": {"train.py": TRAIN},
        "counts": counts_of(holder),
        "watches": [watch_of(seen())],
    }
    return write_run(folder, **{**defaults, **fields})
