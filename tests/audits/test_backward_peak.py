"""backward_peak: fires on the line whose gradient makes the peak, is silent on ordinary layers."""

from pathlib import Path
from typing import Any

import pytest

from efprof.artifacts.allocations import AllocationEvent
from efprof.audits.backward_peak import backward_peak
from efprof.facts.run.run import Run
from efprof.model import NotRecorded
from efprof.units import MIB
from tests.facts.allocations import allocation
from tests.support.builders import START_NS, make_steps, write_run

TRAIN = """\
def train(model, optimizer):
    for x, y in loader:
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        loss.backward()
        optimizer.step()
"""
MODEL, LOSS = "train.py:3:train", "train.py:4:train"


class Window:
    """Events of step 0, a microsecond apart: forward begins at 1 ms of the step, backward at 5 ms."""

    def __init__(self) -> None:
        self.events: list[AllocationEvent] = []

    def forward(self, address: int, mebibytes: int, site: str, module: str = "") -> None:
        """Allocate in forward."""
        self._add(1.0, address, mebibytes, site, modules=(module,) if module else ())

    def backward(self, address: int, mebibytes: int, site: str, module: str = "") -> None:
        """Allocate, or release with negative mebibytes, in the backward of a forward line."""
        modules = (module,) if module else ()
        self._add(5.0, address, mebibytes, forward_stack=(site,), modules=modules, is_backward=True)

    def run(self, folder: Path, **run_fields: Any) -> Run:
        """The run that holds them."""
        files = {"train.py": TRAIN}
        return write_run(folder, steps=make_steps(10), sources=files, allocations=[self.events], **run_fields)

    def _add(self, at_ms: float, address: int, mebibytes: int, *stack: str, **fields: Any) -> None:
        at_ns = START_NS + round(at_ms * 1e6) + 1000 * (len(self.events) + 1)
        operation = "aten::nll_loss_backward"
        self.events.append(allocation(at_ns, address, mebibytes * MIB, *stack, operation=operation, **fields))


def large_vocabulary() -> Window:
    """Activations 20, logits 60, their log-softmax 60; backward holds two gradients of 60 at once."""
    window = Window()
    window.forward(1, 20, MODEL, "Embedding")
    window.forward(2, 60, MODEL, "Linear")
    window.forward(3, 60, LOSS)
    window.backward(4, 60, LOSS)
    window.backward(5, 60, LOSS)
    window.backward(4, -60, LOSS)
    window.backward(3, -60, LOSS)
    window.backward(6, 5, MODEL, "Linear")  # a parameter's gradient: it outlives backward
    window.backward(5, -60, MODEL, "Linear")
    return window


def test_blames_the_loss_over_a_large_vocabulary_and_predicts_by_replay_what_splitting_it_saves(tmp_path: Path) -> None:
    (finding,) = backward_peak(large_vocabulary().run(tmp_path)).findings
    assert str(finding.blame) == "train.py:4"
    assert "120 MiB" in finding.message
    assert "`aten::nll_loss_backward`" in finding.why
    # Of the peak of 260 MiB, 180 are this line's and 60 its logits; without all of them 25 would be next, 5 more than
    # the rest of the peak: that would take 48 parts, and 16 is the most that is worth its calls.
    assert "16 checkpointed parts" in finding.fix.summary
    assert finding.fix.summary.count("chunk(16)") == 2
    assert finding.gain.basis == "replay"
    assert finding.gain.peak_bytes == pytest.approx(240 * (1 - 1 / 16) * MIB, rel=0.01)
    assert finding.gain.peak_bytes is not None
    low, high = finding.gain.peak_bytes_interval
    assert low == pytest.approx(180 * (1 - 1 / 16) * MIB, rel=0.02)
    assert low < finding.gain.peak_bytes < high


# What a window sees: (stage, address, MiB, line, module); negative MiB are given back.
F, B = Window.forward, Window.backward
SILENT = {
    "an ordinary layer, whose gradient its neighbour needs": [
        (F, 1, 60, MODEL, "Linear"), (F, 2, 60, MODEL, "ReLU"), (B, 3, 60, MODEL, "Linear"), (B, 4, 60, MODEL, "ReLU"),
        (B, 3, -60, MODEL, "ReLU"), (B, 4, -60, MODEL, "Linear"),
    ],
    "a layer that gets a large gradient": [
        (F, 1, 60, MODEL, "Conv2d"), (B, 2, 30, MODEL, "ReLU"), (B, 3, 60, MODEL, "Conv2d"),
        (B, 4, 60, MODEL, "Conv2d"), (B, 3, -60, MODEL, "Conv2d"), (B, 2, -30, MODEL, "Conv2d"),
        (B, 4, -60, MODEL, "Embedding"),
    ],
    "gradients of parameters": [
        (F, 1, 20, MODEL, "Linear"), (B, 2, 200, MODEL, "Linear"), (B, 1, -20, MODEL, "Linear"),
    ],
    "a peak in forward": [(F, 1, 100, MODEL), (F, 1, -100, MODEL), (B, 2, 50, LOSS)],
}  # fmt: skip


@pytest.mark.parametrize("moves", SILENT.values(), ids=SILENT)
def test_what_backward_needs_is_silent(moves: list[Any], tmp_path: Path) -> None:
    window = Window()
    for make, *move in moves:
        make(window, *move)
    assert backward_peak(window.run(tmp_path)).findings == ()


def test_without_allocations_it_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match="parquet"):
        backward_peak(write_run(tmp_path, steps=make_steps(10)))
