"""uncollected_cycle: fires on the statement that closes the cycle, is silent where nothing piles up."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from efprof.artifacts.holders import CYCLES_FILE, CollectedGarbage, Cycle, CycleLink, LargeCollection
from efprof.audits.uncollected_cycle import uncollected_cycle
from efprof.facts.growth.reference_cycles import CycleSawtooth
from efprof.facts.run.run import Run
from efprof.model import Finding, NotRecorded, ThinEvidence
from efprof.units import MIB
from tests.audits.growing_runs import counts_of, graphs, leaking_steps
from tests.support.builders import START_NS, make_step, write_run

TRAIN = """\
import torch


class Noise:
    def __init__(self, step):
        self.step = step


class Step:
    step = None

    def __init__(self, images):
        self.images = images
        self.noise = Noise(self)


def train(loader, model):
    for images in loader:
        step = Step(images)
        model(step).backward()
"""
BACKWARD = "train.py:20:train"


def link(owner: str, name: str, **fields: Any) -> CycleLink:
    """One attribute of a class of the user's."""
    defaults: dict[str, Any] = {"kind": "attribute", "file": "train.py", "can_be_weak": True}
    return CycleLink(owner=owner, name=name, **{**defaults, **fields})


CIRCLE = (link("Step", "noise"), link("Noise", "step"))


def cycle_of(*links: CycleLink) -> Cycle:
    return Cycle(links=list(links), count=12, tensors=3, tensor_bytes=4 * MIB, graph_nodes=0, graph_bytes=0)


def sawtooth_run(
    folder: Path,
    *,
    text: str = TRAIN,
    links: Sequence[CycleLink] = CIRCLE,
    per_step: int = 4 * MIB,
    every: int = 10,
    num_steps: int = 60,
    kept_per_step: int = 0,
    **fields: Any,
) -> Run:
    """Each step leaves so much garbage, and each so many steps all of it is freed; 100 MiB and what is kept stay."""
    steps, collections = [], []
    for number in range(num_steps):
        garbage = (number % every + 1) * per_step
        left = 100 * MIB + number * kept_per_step + garbage
        steps.append(make_step(number, allocated_bytes=[left] * 5, backward_site=BACKWARD))
        if number % every == every - 1:
            collections.append(
                LargeCollection(
                    at_ns=START_NS + number * 1_000_000_000 + 500_000_000,
                    before_bytes=left,
                    freed_bytes=garbage,
                )
            )
    run = write_run(folder, steps=steps, sources={"train.py": text}, **fields)
    found = CollectedGarbage(
        num_read=2 * len(collections),
        num_large=len(collections),
        collections=collections,
        cycles=[cycle_of(*links)] if links else [],
    )
    (folder / "rank0" / CYCLES_FILE).write_bytes(msgspec.json.encode(found))
    return run


def finding_of(run: Run) -> Finding:
    (finding,) = uncollected_cycle(run).findings
    return finding


def test_blames_the_line_that_refers_back_and_predicts_what_piles_up(tmp_path: Path) -> None:
    finding = finding_of(sawtooth_run(tmp_path / "run"))
    assert str(finding.blame) == "train.py:6"
    assert "or make it a `weakref.proxy`" in finding.fix.summary
    assert "the cycle `Step.noise -> Noise.step -> Step`" in finding.why
    assert "40.0 MiB" in finding.message
    assert "every 10 steps" in finding.message
    assert (finding.gain.basis, finding.gain.peak_bytes) == ("measured bound", 40 * MIB)
    assert finding.gain.peak_bytes_interval == (36.0 * MIB, 44.0 * MIB)  # a step's garbage more or less


def test_what_collections_leave_of_a_known_cycle_piles_up_too_but_not_beside_a_leak_of_another_kind(
    tmp_path: Path,
) -> None:
    """As with an autograd function that keeps its output: each collection frees 17 MiB of 40."""

    def rising(folder: str, **fields: Any) -> Run:
        sizes = {"per_step": 17 * MIB // 10, "kept_per_step": 23 * MIB // 10}
        return sawtooth_run(tmp_path / folder, num_steps=120, **sizes, **fields)

    (finding,) = uncollected_cycle(rising("known")).findings
    assert str(finding.blame) == "train.py:6"
    assert uncollected_cycle(rising("unknown", links=())).findings == ()
    assert uncollected_cycle(rising("beside a leak", counts=counts_of(graphs))).findings == ()


def test_the_line_that_stores_the_reference_last_is_blamed(tmp_path: Path) -> None:
    text = TRAIN.replace("        self.step = step", "        self.step = None\n        self.step = step")
    assert str(finding_of(sawtooth_run(tmp_path / "run", text=text)).blame) == "train.py:7"


FUNCTION = """\
import torch


class Swash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.sigmoid(x)
        ctx.y = y
        return y

    @staticmethod
    def backward(ctx, grad):
        y = ctx.y
        return grad * y * (1 - y)


def train(loader):
    for images in loader:
        out = Swash.apply(images)
        loss = out.sum()
        loss.backward()
"""
TENSOR_LINKS = (link("SwashBackward", "y", file=None), link("Tensor", "", file=None))


def test_an_output_on_the_context_of_an_autograd_function_is_to_be_saved_for_backward(tmp_path: Path) -> None:
    finding = finding_of(sawtooth_run(tmp_path / "run", text=FUNCTION, links=TENSOR_LINKS))
    assert (str(finding.blame), finding.fix.applicability) == ("train.py:8", "manual")
    assert "ctx.save_for_backward(y)" in finding.fix.summary


def test_tensors_and_what_has_no_weak_reference_are_left_to_a_person(tmp_path: Path) -> None:
    links = (link("Noise", "step"), link("Tensor", "noise", file=None))
    finding = finding_of(sawtooth_run(tmp_path / "run", links=links))
    assert (str(finding.blame), finding.fix.applicability) == ("train.py:6", "manual")
    assert "weak" not in finding.fix.summary
    links = (CIRCLE[0], link("Noise", "step", can_be_weak=False))
    assert finding_of(sawtooth_run(tmp_path / "second", links=links)).fix.applicability == "manual"


def test_a_method_is_told_how_to_be_kept(tmp_path: Path) -> None:
    text = "class Step:\n    def __init__(self):\n        self.callback = self.listen\n"
    finding = finding_of(sawtooth_run(tmp_path / "run", text=text, links=[link("Step", "callback", through="method")]))
    assert str(finding.blame) == "train.py:3"
    assert "WeakMethod" in finding.fix.summary


def test_what_refers_to_its_owner_is_blamed_before_the_owner_s_container(tmp_path: Path) -> None:
    """The children are what the owner has; a weak reference to them would let them go at once."""
    text = (
        "class Parent:\n    def add(self, child):\n        child.parent = self\n        self.children.append(child)\n"
    )
    links = (link("Parent", "children"), link("Child", "parent"))
    assert str(finding_of(sawtooth_run(tmp_path / "run", text=text, links=links)).blame) == "train.py:3"


def test_without_a_cycle_it_is_told_where_backward_runs(tmp_path: Path) -> None:
    finding = finding_of(sawtooth_run(tmp_path / "run", links=()))
    assert str(finding.blame) == "train.py:20"
    assert finding.why.startswith("Only the garbage collector frees a reference cycle; ")


def test_small_garbage_and_what_is_collected_every_few_steps_and_what_nothing_collects_are_silent(
    tmp_path: Path,
) -> None:
    assert uncollected_cycle(sawtooth_run(tmp_path / "few", per_step=MIB)).findings == ()  # 10 of 110 MiB
    assert uncollected_cycle(sawtooth_run(tmp_path / "more", per_step=2 * MIB)).findings != ()
    run = sawtooth_run(tmp_path / "second", every=2, per_step=20 * MIB)
    assert run.get(CycleSawtooth).height_bytes == 40 * MIB
    assert uncollected_cycle(run).findings == ()
    run = write_run(tmp_path / "third", steps=leaking_steps(), sources={"train.py": TRAIN})
    empty = CollectedGarbage(num_read=12, num_large=0, collections=[], cycles=[])
    (run.rank_folder / CYCLES_FILE).write_bytes(msgspec.json.encode(empty))
    assert uncollected_cycle(run).findings == ()


def test_a_run_or_a_recording_without_collections_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(ThinEvidence, match="no collection of garbage was seen"):
        uncollected_cycle(sawtooth_run(tmp_path / "run", every=100))
    with pytest.raises(NotRecorded, match=r"cycles-1\.json"):
        uncollected_cycle(write_run(tmp_path / "second", steps=[make_step(0)]))
