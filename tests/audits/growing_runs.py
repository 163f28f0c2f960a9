"""Runs whose memory grows, for the three audits that tell of it."""

from efprof.artifacts.holders import Holder, HolderCensus
from efprof.artifacts.steps import StepRecord
from efprof.units import MIB
from tests.builders import make_step

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
SITE = "train.py:6:train"


def leaking_steps(num_steps: int = 60, bytes_per_step: int = MIB) -> list[StepRecord]:
    """Steps that leave so many bytes behind each."""
    return [
        make_step(step, allocated_bytes=[100 * MIB + bytes_per_step * step] * 5, backward_site=SITE)
        for step in range(num_steps)
    ]


def census(**fields: object) -> HolderCensus:
    """A list that grew by one loss with its graph per step, a mebibyte each."""
    defaults: dict[str, object] = {
        "path": "train.history",
        "scope": "local",
        "owner": "train",
        "name": "history",
        "file": "train.py",
        "type": "list",
        "tensors_before": 10,
        "tensors_after": 14,
        "tensor_bytes_before": 40,
        "tensor_bytes_after": 56,
        "graph_nodes_before": 100,
        "graph_nodes_after": 140,
        "graph_bytes_before": 10 * MIB,
        "graph_bytes_after": 14 * MIB,
        "length_before": 10,
        "length_after": 14,
    }
    return HolderCensus(step_before=10, step_after=14, holders=[Holder(**{**defaults, **fields})])  # type: ignore[arg-type]
