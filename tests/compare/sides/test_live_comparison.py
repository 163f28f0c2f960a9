"""`efprof compare BASE HEAD -- COMMAND` on a repository: each side's own code, and nothing of the user's is changed."""

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.compare.sides.test_trees import git, state_of
from tests.support.waiting import MAX_WAIT_S, wait_until

DOCS = Path(__file__).parents[3] / "docs/comparing.md"
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
SLOW = MODEL.replace(
    "        return self.layers(x)",
    "        for _ in range(40): x = x.sin().asin()\n        return self.layers(x)",
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

SECONDS_OF_ALL = 40.0
"""Four whole runs and some pairs of processes by turns, on a quiet machine."""


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


@pytest.mark.long
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


def train_for_long(root: Path) -> None:
    (root / "train.py").write_text(TRAIN.replace("range(60)", "range(1_000_000)"))
    git(root, "commit", "-q", "-m", "longer", "train.py")


@pytest.mark.long
def test_a_slower_line_is_worse_with_that_line(repository: Path) -> None:
    (repository / "src" / "package" / "model.py").write_text(SLOW)
    train_for_long(repository)
    code, found, said = compare(repository, "main", ".", "--steps", "60", "--max-minutes", "30")
    assert code == 1, said
    rows = {row["name"]: row for row in found["metrics"]}
    assert [rows[name]["verdict"] for name in ("step_ms", "step_ms_mean")] == ["worse", "worse"]
    assert [one["blame"]["line"] for one in found["slower_at"]] == [11]
    assert "at src/package/model.py:11, which head changed" in found["headline"]
    assert "+        for _ in range(40): x = x.sin().asin()" in found["diff"]
    assert len(found["pictures"]) == 2


def processes_in(folder: Path) -> list[str]:
    """The commands of processes that run below it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink().is_relative_to(folder):
                found.append((process / "cmdline").read_text())
    return found


class Ended:
    """A comparison of a training in the repository that was told to end by a signal; nothing of it may be left."""

    def __init__(self, repository: Path) -> None:
        self._root, self._work = repository, repository / ".efprof" / "work"
        self._before = state_of(repository)
        self.process = subprocess.Popen(
            command_of("main", ".", "--steps", "60"),
            cwd=repository,
            env=environment_of(repository),
            stderr=subprocess.DEVNULL,
        )

    @property
    def has_trained(self) -> bool:
        return any("train.py" in command for command in processes_in(self._work))

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        assert self.process.wait(MAX_WAIT_S) != 0
        wait_until(lambda: not processes_in(self._work))
        if number == signal.SIGKILL:
            compare(self._root, "main", "nothing")  # the next one removes what is left
        assert not list(self._work.glob("*"))
        assert state_of(self._root) == self._before


def test_a_comparison_that_is_ended_leaves_no_process_and_no_change(repository: Path) -> None:
    (repository / "train.py").write_text("import time, package.model\ntime.sleep(600)\n")
    ended = Ended(repository)
    wait_until(lambda: ended.has_trained)
    ended.end(signal.SIGTERM)


@pytest.mark.long
def test_at_whatever_instant_a_comparison_is_ended_nothing_of_it_is_left(repository: Path) -> None:
    """While trees are made, in whole runs, in turns, while one of both stands still."""
    train_for_long(repository)
    dice = random.Random(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL) * 7:
        ended = Ended(repository)
        with suppress(subprocess.TimeoutExpired):
            ended.process.wait(dice.uniform(0.5, SECONDS_OF_ALL))
        ended.end(number)


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


@pytest.mark.long
def test_one_tree_is_run_by_two_pythons(repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(other)], check=True)
    (site,) = other.glob("lib/*/site-packages")
    (site / "ours.pth").write_text(sysconfig.get_path("purelib"))
    (repository / "train.py").write_text(f"{TRAIN}print(sys.executable)\n")
    code, found, said = compare(repository, ".", ".", "--no-time", "--head-python", str(other / "bin" / "python"))
    assert code == 0, said
    logs = {log.parent.name: log.read_text() for log in (repository / ".efprof" / "compare").glob("*/*/output.txt")}
    assert {name: str(other) in text for name, text in logs.items()} == {
        "base-1": False, "base-2": False, "head-1": True, "head-2": True,
    }  # fmt: skip
    assert {row["verdict"] for row in found["metrics"] if row["name"] == "loss"} == {"same"}


@pytest.mark.long
def test_git_bisect_finds_the_commit_that_leaks_as_the_docs_say(repository: Path) -> None:
    git(repository, "stash", "-q")
    git(repository, "checkout", "-q", "refactored")
    for text in (LEAKS, LEAKS + "\n"):
        (repository / "src" / "package" / "model.py").write_text(text)
        git(repository, "commit", "-q", "-m", f"of {len(text)} letters", "src")
    (start, run) = re.findall(r"^    (git bisect .*)$", DOCS.read_text(), re.MULTILINE)
    bin_folder = f"{Path(sys.executable).parent}{os.pathsep}"
    environment = environment_of(repository)
    environment["PATH"] = bin_folder + environment["PATH"]
    for command in (start, run.replace("--strict", "--strict --no-time")):
        done = subprocess.run(
            shlex.split(command), cwd=repository, env=environment, capture_output=True, text=True, check=False
        )
    assert f"of {len(LEAKS)} letters" in done.stdout.partition("is the first bad commit")[2], done.stdout + done.stderr
