"""The diff of what is not committed: whole, applicable, and without secrets."""

import subprocess
from pathlib import Path

import pytest

import efprof
from efprof.artifacts.run_file import DIFF_FILE, Git
from efprof.model import HIDDEN
from efprof.recorder.launch.machine import keep_diff, read_git
from tests.recorder.recording import Recorded, record_command

TRAIN = "".join(f"line_{number} = {number}\n" for number in range(40))


def git(folder: Path, *arguments: str, text: str | None = None) -> str:
    identity = ("-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false")
    command = ["git", *identity, "-C", str(folder), *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "train.py").write_text(TRAIN)
    (folder / ".gitignore").write_text("*.log\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def describe(folder: Path) -> Git:
    found = read_git(folder)
    assert found is not None
    return found


def diff_of(repository: Path, tmp_path: Path) -> str | None:
    keep_diff(tmp_path, describe(repository))
    file = tmp_path / DIFF_FILE
    return file.read_bytes().decode(errors="surrogateescape") if file.exists() else None


def test_a_clean_tree_leaves_no_diff(repository: Path, tmp_path: Path) -> None:
    assert diff_of(repository, tmp_path) is None
    assert not describe(repository).is_dirty


def test_the_diff_makes_the_files_of_the_commit_those_that_ran(repository: Path, tmp_path: Path) -> None:
    changed = TRAIN.replace("line_7 = 7", "line_7 = 70")
    (repository / "train.py").write_text(changed)
    (repository / "new.py").write_text("x = 1\n")
    git(repository, "config", "diff.noprefix", "true")
    diff = diff_of(repository, tmp_path)
    git(tmp_path, "clone", "-q", str(repository), "again")
    git(tmp_path / "again", "apply", text=diff)
    assert (tmp_path / "again" / "train.py").read_text() == changed
    assert (describe(repository).num_untracked, describe(repository).is_dirty) == (1, True)


def test_a_repository_without_a_commit_has_a_diff_too(tmp_path: Path) -> None:
    folder = tmp_path / "fresh"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "train.py").write_text("x = 1\n")
    git(folder, "add", ".")
    assert "+x = 1" in (diff_of(folder, tmp_path) or "")


def test_no_secret_is_in_it_and_what_does_not_fit_is_left_out(repository: Path, tmp_path: Path) -> None:
    for name in (".env", "settings.yaml", "id.txt", "big.csv"):
        (repository / name).write_text("")
    git(repository, "add", "-f", ".")
    (repository / "train.py").write_text(TRAIN + 'password = "hunter22"\nlogin("hf_abcdefghijklmnopqrstuvwx")\n')
    (repository / ".env").write_text("WANDB=hunter33\n")
    (repository / "settings.yaml").write_text("api_key: hunter44\nlr: 0.1\n")
    (repository / "id.txt").write_text("-----BEGIN RSA PRIVATE KEY-----\nhunter55\n-----END RSA PRIVATE KEY-----\n")
    (repository / "big.csv").write_text("1,2,3\n" * 500_000)
    diff = diff_of(repository, tmp_path)
    assert diff is not None
    assert "hunter" not in diff
    assert "hf_" not in diff
    assert "Left out: 2 files" in diff
    assert f'+password = "{HIDDEN}"' in diff
    assert "+lr: 0.1" in diff


@pytest.mark.parametrize("flags", [[], ["--no-diff"]])
def test_a_run_keeps_it_unless_told_not_to(flags: list[str], repository: Path, tmp_path: Path) -> None:
    (repository / "train.py").write_text("x = 1\n")
    (repository / "new.py").write_text("x = 1\n")
    recorded = record_command(tmp_path / "home", ["true"], options=flags, working_folder=repository)
    assert (recorded.folder / DIFF_FILE).exists() == (not flags)
    assert recorded.run.git is not None
    assert recorded.run.git.num_untracked == 1


@pytest.mark.parametrize("keeps_diff", [True, False])
def test_so_does_a_recording_in_code(
    keeps_diff: bool, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EFPROF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(repository)
    (repository / "train.py").write_text("x = 1\n")
    with efprof.record(windows="none", keeps_diff=keeps_diff) as recording:
        pass
    assert (recording.folder / DIFF_FILE).exists() == keeps_diff
    found = Recorded(folder=recording.folder).run.git
    assert found is not None
    assert (found.root, found.is_dirty) == (str(repository), True)
