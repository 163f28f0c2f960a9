"""What a run tells of the repository that its command was started in."""

import subprocess
from pathlib import Path

from efprof.artifacts.run_file import Git
from efprof.recorder.launch.machine import read_git


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, "-C", str(folder), *arguments], capture_output=True, check=True)


def test_branch_commit_and_changes_are_told(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "train.py").write_text("x = 1\n")
    git(tmp_path, "add", ".")
    assert read_git(tmp_path) == Git(root=str(tmp_path), branch="main", is_dirty=True)
    git(tmp_path, "commit", "-qm", "first")
    found = read_git(tmp_path)
    assert found is not None
    assert (found.is_dirty, len(found.commit or "")) == (False, 40)
    (tmp_path / "new.py").write_text("x = 1\n")
    found = read_git(tmp_path)
    assert found is not None
    assert (found.is_dirty, found.num_untracked) == (True, 1)
