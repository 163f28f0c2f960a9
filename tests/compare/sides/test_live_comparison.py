"""`efprof compare BASE HEAD -- COMMAND` on a repository: each side's own code, and nothing of the user's is changed."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.compare.sides.test_trees import git, state_of
from tests.support.waiting import wait_until

MODEL = """\
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
        self.kept = []

    def forward(self, x):
        return self.layers(x)
"""
LEAKS = MODEL.replace(
    "        return self.layers(x)", "        self.kept.append(x.repeat(64, 4))\n        return self.layers(x)"
)
REFACTORED = MODEL.replace("        return self.layers(x)", "        out = self.layers(x)\n        return out")
TRAIN = """\
import sys, pathlib, torch
from package.model import Model

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(60):
    x = torch.randn(32, 64)
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """In a src layout: `main`, and `refactored`, which does the same in other words; the working tree leaks."""
    root = tmp_path / "project"
    package = root / "src" / "package"
    package.mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    (root / "train.py").write_text(TRAIN)
    (root / ".gitignore").write_text("__pycache__\n")
    for branch, text in (("main", MODEL), ("refactored", REFACTORED)):
        if branch != "main":
            git(root, "checkout", "-q", "-b", branch)
        (package / "model.py").write_text(text)
        git(root, "add", ".")
        git(root, "commit", "-q", "-m", branch)
    git(root, "checkout", "-q", "main")
    (package / "model.py").write_text(LEAKS)
    return root


def command_of(*words: str) -> list[str]:
    return [sys.executable, "-m", "efprof", "compare", *words, "--json", "--", sys.executable, "train.py"]


def environment_of(root: Path) -> dict[str, str]:
    paths = os.pathsep.join([str(root / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def compare(root: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    """Its exit code, its JSON and what it says on the way."""
    done = subprocess.run(
        command_of(*words), cwd=root, env=environment_of(root), capture_output=True, text=True, check=False
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def test_a_leak_that_is_not_committed_is_worse_with_its_line_and_nothing_of_the_users_is_changed(
    repository: Path,
) -> None:
    before = state_of(repository)
    code, found, said = compare(repository, "main", ".", "--no-time")
    assert code == 1, said
    rows = {row["name"]: row for row in found["metrics"]}
    assert rows["memory_growth_bytes_per_step"]["verdict"] == "worse"
    assert rows["loss"]["verdict"] == "same"
    assert "equal to the bit" in rows["loss"]["reason"]
    assert {(one["change"], one["location"]) for one in found["findings"]} == {("added", "src/package/model.py:11")}
    assert state_of(repository) == before
    assert not list((repository / ".efprof" / "work").iterdir())
    assert len(list((repository / ".efprof" / "compare").glob("*/*/runs/*/run.json"))) == 4


def processes_in(folder: Path) -> list[str]:
    """The commands of processes that run below it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink().is_relative_to(folder):
                found.append((process / "cmdline").read_text())
    return found


LONG = [pytest.param(number, marks=pytest.mark.long) for number in (signal.SIGINT, signal.SIGKILL)]


@pytest.mark.parametrize("number", [signal.SIGTERM, *LONG])
def test_a_comparison_that_is_ended_leaves_no_process_and_no_change(repository: Path, number: signal.Signals) -> None:
    (repository / "train.py").write_text("import time, package.model\ntime.sleep(600)\n")
    before, work = state_of(repository), repository / ".efprof" / "work"
    process = subprocess.Popen(command_of("main", "."), cwd=repository, env=environment_of(repository))
    wait_until(lambda: any("train.py" in command for command in processes_in(work)))
    process.send_signal(number)
    assert process.wait(120) != 0
    wait_until(lambda: not processes_in(work))
    if number == signal.SIGKILL:
        compare(repository, "main", "nothing")  # the next one removes what is left
    assert not list(work.glob("*"))
    assert state_of(repository) == before


@pytest.mark.long
def test_the_same_in_other_words_is_the_same(repository: Path) -> None:
    code, found, said = compare(repository, "main", "refactored", "--no-time")
    assert code == 0, said
    gated = [row for row in found["metrics"] if row["budget"] is not None and row["unit"] != "ms"]
    assert len(gated) >= 3
    assert {row["verdict"] for row in gated} == {"same"}
    assert found["findings"] == []


def test_a_side_that_trains_nothing_is_refused_with_what_it_said_and_the_option_that_helps(repository: Path) -> None:
    (repository / "data").mkdir()
    (repository / "data" / "texts.txt").write_text("")
    (repository / ".gitignore").write_text("__pycache__\ndata\n")
    (repository / "train.py").write_text("open('data/texts.txt')\n")
    code, _, said = compare(repository, ".", "main")
    assert code == 4
    (line,) = [line for line in said.splitlines() if "trained nothing" in line]
    assert "No such file or directory: 'data/texts.txt''; your tree has it, so give '--link data'" in line
