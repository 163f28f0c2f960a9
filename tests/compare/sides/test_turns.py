"""Two sides that take turns at the ends of steps, each in a process of its own, as `efprof compare` runs them."""

import json
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from efprof.artifacts.run_file import read_run_file
from efprof.artifacts.steps import read_steps
from efprof.compare.sides import turns
from efprof.compare.sides.gates import Gate, SideEnded, TimeIsUp
from efprof.compare.sides.starting import Training
from efprof.compare.sides.trees import Tree
from efprof.compare.sides.turns import Side
from efprof.compare.times import LOOKS
from efprof.model import NotComparable
from efprof.processes import Command
from tests.support.waiting import MAX_WAIT_S

A_DAY_S = 86_400.0
"""Turns are planned by the time that is left."""

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
TWO = TRAIN.replace("    optimizer.step()\n", "    optimizer.step()\n    other.step()\n").replace(
    "for step", "other = torch.optim.SGD(torch.nn.Linear(4, 4).parameters(), lr=0.01)\nfor step"
)
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
def gate(tmp_path: Path) -> Iterator[Gate]:
    folder = tmp_path / ("a folder whose name is too long for the path of a socket" * 3)
    folder.mkdir()
    made = Gate(folder)
    yield made
    made.close()
    assert list(folder.iterdir()) == []


def started(tree: Tree, home: Path, gate: Gate) -> AbstractContextManager[Command]:
    return training(tree).started_in(tree, home, turns.OPTIONS, gate.variables)


def numbers_in(run: Path) -> list[int]:
    lines = [json.loads(line) for line in (run / "rank0" / "steps.jsonl").read_text().splitlines()]
    return sorted({row[0] for line in lines for row in line.get("light", [[line.get("step")]])})


def test_a_training_waits_at_the_update_that_it_is_told_and_ends_there_in_good_order(
    trees: tuple[Tree, Tree], tmp_path: Path, gate: Gate
) -> None:
    tree, home, end = trees[0], tmp_path / "home", time.monotonic() + MAX_WAIT_S
    write(tree, TRAIN, seconds=0.01)
    with started(tree, home, gate) as command:
        (first,) = gate.wait(command, end)
        assert (first["update"], first["updates"], first["ranks"]) == (0, 0, 1)
        for until, length in ((40, 39), (44, 3)):  # the first one of a turn is not measured
            gate.go_on(until)
            (said,) = gate.wait(command, end)
            assert (said["update"], said["updates"]) == (until, length)
            assert said["seconds"] > 0.01 * length
            assert (tree.folder / "steps").read_text() == str(until)
        with pytest.raises(TimeIsUp):
            gate.wait(command, time.monotonic())
        gate.go_on(None)
        assert command.wait(MAX_WAIT_S)
    (run,) = (home / "runs").glob("*")
    assert read_run_file(run).ended == "stopped"
    assert numbers_in(run) == [*range(45)]
    full = [step for step in read_steps(run / "rank0")[0] if step.is_full]
    assert len(full) == 20  # what comes after the first ones is recorded alike, however long it has waited


def test_two_optimizers_that_step_in_turn_make_one_update(trees: tuple[Tree, Tree], tmp_path: Path, gate: Gate) -> None:
    write(trees[0], TWO)
    end = time.monotonic() + MAX_WAIT_S
    with started(trees[0], tmp_path / "home", gate) as command:
        gate.wait(command, end)
        gate.go_on(30)
        gate.wait(command, end)
        assert (trees[0].folder / "steps").read_text() == "30"
        gate.go_on(None)
        assert command.wait(MAX_WAIT_S)


def test_a_side_knows_whether_another_like_it_fits_on_the_device() -> None:
    side = Side.__new__(Side)
    side.said = ({"free_share": 0.6, "held_share": 0.3}, {"free_share": 0.9, "held_share": 0.1})
    assert (side.leaves_free(1), side.leaves_free(2)) == (0.6, pytest.approx(0.3))
    side.said = ({},)
    assert side.leaves_free(2) == 1.0


def test_whoever_waits_at_a_gate_that_is_closed_ends_in_good_order(
    trees: tuple[Tree, Tree], tmp_path: Path, gate: Gate
) -> None:
    write(trees[0], TRAIN)
    with started(trees[0], tmp_path / "home", gate) as command:
        gate.wait(command, time.monotonic() + MAX_WAIT_S)
        command.pause()
        gate.close()
    (run,) = (tmp_path / "home" / "runs").glob("*")
    assert numbers_in(run) == [0]
    assert read_run_file(run).ended == "stopped"


def test_where_nobody_listens_any_more_a_training_ends_at_its_gate(
    trees: tuple[Tree, Tree], tmp_path: Path, gate: Gate
) -> None:
    write(trees[0], TRAIN)
    with started(trees[0], tmp_path / "home", gate) as command:
        gate.wait(command, time.monotonic() + MAX_WAIT_S)
        gate.go_on(30)
        gate.close()
        assert command.wait(MAX_WAIT_S)
    (run,) = (tmp_path / "home" / "runs").glob("*")
    assert numbers_in(run) == [*range(31)]


def test_a_side_that_ends_before_its_gate_is_noticed_and_what_it_ran_of_the_users_is_known(
    trees: tuple[Tree, Tree], tmp_path: Path, gate: Gate
) -> None:
    tree, home, end = trees[0], tmp_path / "home", time.monotonic() + MAX_WAIT_S
    (tree.root / "users.py").write_text("")
    imports = f"import os, sys\nsys.path.insert(0, {str(tree.root)!r})\nimport users\n"
    write(tree, f"{imports}{TRAIN}    if step == 5:\n        os._exit(0)\n")
    with started(tree, home, gate) as command:
        gate.wait(command, end)
        gate.go_on(20)
        with pytest.raises(SideEnded):
            gate.wait(command, end)
    with pytest.raises(NotComparable, match=r"ran .*users\.py of your own tree instead of its own"):
        training(tree).check(tree, home)


@pytest.mark.long
def test_a_slower_side_is_seen_whichever_starts_first_and_a_short_training_is_not_timed(
    trees: tuple[Tree, Tree], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    for tree, seconds in zip(trees, (0.01, 0.02), strict=True):
        write(tree, TRAIN, seconds=seconds)
    end = time.monotonic() + A_DAY_S
    times = turns.take_turns(trees, training(trees[0]), home=tmp_path / "home", end=end, say=said.append)
    assert times.why == ""
    assert len(times.pairs) in LOOKS
    assert all(0.1 < one.typical < 1.0 for one in times.pairs)
    assert "pair 2 of at most 8" in said[1]
    write(trees[1], TRAIN, steps=40)
    times = turns.take_turns(trees, training(trees[0]), home=tmp_path / "short", end=end, say=said.append)
    assert times.pairs == ()
    assert "Of at least 8 pairs of turns" in times.why
    assert "'head' ended, it said" in times.why


@pytest.mark.long
def test_two_ranks_of_each_side_take_turns(
    trees: tuple[Tree, Tree], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("LOOKS", (1,)), ("MAX_TURNS", 12)):
        monkeypatch.setattr(turns, name, value)
    for tree in trees:
        write(tree, RANKS, seconds=0.005)
    words = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint")
    end = time.monotonic() + A_DAY_S
    home = tmp_path / "home"
    times = turns.take_turns(trees, training(trees[0], *words, "localhost:0"), home=home, end=end, say=lambda _: None)
    assert times.why == ""
    (one,) = times.pairs
    assert len(one.pairs) == 12
    assert len(list(home.glob("*/*/runs/*/rank*"))) == 4


@pytest.mark.long
def test_sides_that_want_the_same_port_run_one_by_one_at_the_same_updates(
    trees: tuple[Tree, Tree], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("LOOKS", (2,)), ("MAX_TURNS", 12)):
        monkeypatch.setattr(turns, name, value)
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    for tree, seconds in zip(trees, (0.01, 0.02), strict=True):
        write(tree, f"import socket\ntaken = socket.create_server(('localhost', {port}))\n{TRAIN}", seconds=seconds)
    said: list[str] = []
    end = time.monotonic() + A_DAY_S
    times = turns.take_turns(trees, training(trees[0]), home=tmp_path / "home", end=end, say=said.append)
    assert times.why == ""
    assert re.fullmatch(r"ran one by one \('head' ended, it said.*Address already in use.* before it .*\)", times.how)
    assert [(len(one.pairs), one.is_base_first) for one in times.pairs] == [(12, True), (12, False)]
    assert all(0.1 < one.typical < 1.0 for one in times.pairs)
