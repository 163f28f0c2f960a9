"""Two sides that take turns at the ends of steps, each in a process of its own, as `efprof compare` runs them."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from efprof.artifacts.run_file import read_run_file
from efprof.compare.sides import turns
from efprof.compare.sides.gates import Gate, SideEnded, TimeIsUp
from efprof.compare.sides.starting import Training
from efprof.compare.sides.trees import Tree
from efprof.compare.times import LOOKS
from tests.support.waiting import MAX_WAIT_S

TRAIN = """\
import time, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range({steps}):
    open("steps", "w").write(str(step))
    time.sleep({seconds})
    optimizer.zero_grad()
    model(torch.ones(4, 4)).sum().backward()
    optimizer.step()
"""
RANKS = """\
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
""" + TRAIN.replace("torch.nn.Linear(4, 4)", "DistributedDataParallel(torch.nn.Linear(4, 4))")


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Tree, Tree]:
    """Of base and head; their programs are written by the test."""
    root = tmp_path / "project"
    root.mkdir()
    made = []
    for side in ("base", "head"):
        folder = tmp_path / "work" / side / "clean" / "project"
        folder.mkdir(parents=True)
        made.append(Tree(ref=side, commit=side, root=root, place=tmp_path / "work", folder=folder))
    return made[0], made[1]


def training(tree: Tree, *words: str) -> Training:
    return Training(command=(sys.executable, *words, "train.py"), here=tree.root)


def write(tree: Tree, text: str, *, seconds: float = 0.0, steps: int = 100_000) -> None:
    (tree.folder / "train.py").write_text(text.format(seconds=seconds, steps=steps))


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.close()


def test_a_training_waits_at_the_step_that_it_is_told_and_ends_there_in_good_order(
    trees: tuple[Tree, Tree], tmp_path: Path, gate: Gate
) -> None:
    tree, home, end = trees[0], tmp_path / "home", time.monotonic() + MAX_WAIT_S
    write(tree, TRAIN, seconds=0.01)
    with training(tree).started_in(tree, home, turns.OPTIONS, gate.variables) as command:
        (first,) = gate.wait(command, end)
        assert (first["step"], first["steps"], first["ranks"]) == (0, 0, 1)
        for until, length in ((40, 39), (44, 3)):  # the first step of a turn is not measured
            gate.go_on(until)
            (said,) = gate.wait(command, end)
            assert (said["step"], said["steps"]) == (until, length)
            assert said["seconds"] > 0.01 * length
            assert (tree.folder / "steps").read_text() == str(until)
        with pytest.raises(TimeIsUp):
            gate.wait(command, time.monotonic())
        gate.go_on(None)
        assert command.wait(MAX_WAIT_S)
    (run,) = (home / "runs").glob("*")
    assert read_run_file(run).ended == "stopped"
    lines = [json.loads(line) for line in (run / "rank0" / "steps.jsonl").read_text().splitlines()]
    numbers = [row[0] for line in lines for row in line.get("light", [[line.get("step")]])]
    assert sorted(set(numbers)) == list(range(45))


def test_a_side_that_ends_before_its_gate_is_noticed(trees: tuple[Tree, Tree], tmp_path: Path, gate: Gate) -> None:
    (trees[0].folder / "train.py").write_text("raise SystemExit(3)")
    with (
        training(trees[0]).started_in(trees[0], tmp_path / "home", turns.OPTIONS, gate.variables) as command,
        pytest.raises(SideEnded, match="it ended"),
    ):
        gate.wait(command, time.monotonic() + MAX_WAIT_S)


@pytest.mark.long
def test_a_slower_side_is_seen_whichever_starts_first_and_a_short_training_is_not_timed(
    trees: tuple[Tree, Tree], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    for tree, seconds in zip(trees, (0.01, 0.02), strict=True):
        write(tree, TRAIN, seconds=seconds)
    end = time.monotonic() + MAX_WAIT_S
    times = turns.take_turns(trees, training(trees[0]), home=tmp_path / "home", end=end, say=said.append)
    assert times.why == ""
    assert len(times.pairs) in LOOKS
    assert all(0.3 < one.typical < 1.0 for one in times.pairs)
    assert "pair 2 of at most 8" in said[1]
    write(trees[1], TRAIN, steps=40)
    times = turns.take_turns(trees, training(trees[0]), home=tmp_path / "short", end=end, say=said.append)
    assert times.pairs == ()
    assert "fewer than 53 steps" in times.why


@pytest.mark.long
def test_two_ranks_of_each_side_take_turns(
    trees: tuple[Tree, Tree], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("LOOKS", (1,)), ("MAX_TURNS", 12)):
        monkeypatch.setattr(turns, name, value)
    for tree in trees:
        write(tree, RANKS, seconds=0.005)
    words = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint")
    end = time.monotonic() + MAX_WAIT_S
    home = tmp_path / "home"
    times = turns.take_turns(trees, training(trees[0], *words, "localhost:0"), home=home, end=end, say=lambda _: None)
    assert times.why == ""
    (one,) = times.pairs
    assert len(one.pairs) == 12
    assert len(list(home.glob("*/*/runs/*/rank*"))) == 4
