"""The diff of what is not committed: whole, applicable, and without secrets."""

import subprocess
from pathlib import Path

import pytest

import efprof
from efprof.artifacts.run_file import DIFF_FILE, Git
from efprof.recorder.launch.machine import keep_diff, read_git
from efprof.recorder.session.redaction import HIDDEN
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


def test_the_diff_makes_the_commit_into_the_tree_that_ran(repository: Path, tmp_path: Path) -> None:
    (repository / "train.py").write_text(TRAIN.replace("line_7 = 7", "line_7 = 70"))
    (repository / "new file.py").write_text("x = 1\ny = 2")
    (repository / "run.sh").write_text("true\n")
    (repository / "run.sh").chmod(0o755)
    (repository / "empty.txt").write_text("")
    (repository / "a.log").write_text("ignored\n")
    git(repository, "config", "diff.noprefix", "true")
    ours = {path.name: path.read_bytes() for path in repository.iterdir() if path.is_file() and path.name != "a.log"}
    diff = diff_of(repository, tmp_path)
    git(tmp_path, "clone", "-q", str(repository), "again")
    git(tmp_path / "again", "apply", text=diff)
    theirs = {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir() if path.is_file()}
    assert theirs == ours
    assert (tmp_path / "again" / "run.sh").stat().st_mode & 0o100
    assert git(repository, "status", "--porcelain").count("??") == 3, "the repository is as it was"


def test_changed_lines_and_new_files_are_counted(repository: Path) -> None:
    (repository / "train.py").write_text(TRAIN.replace("line_7 = 7\n", "") + "a = 1\nb = 2\n")
    (repository / "new.py").write_text("x = 1\n")
    found = describe(repository)
    assert (found.lines_added, found.lines_removed, found.num_untracked, found.is_dirty) == (2, 1, 1, True)


def test_a_repository_without_a_commit_has_a_diff_too(tmp_path: Path) -> None:
    folder = tmp_path / "fresh"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "train.py").write_text("x = 1\n")
    git(folder, "add", ".")
    assert describe(folder).lines_added == 1
    assert "+x = 1" in (diff_of(folder, tmp_path) or "")


def test_no_secret_is_in_it(repository: Path, tmp_path: Path) -> None:
    (repository / "train.py").write_text(TRAIN + 'password = "hunter22"\nlogin("hf_abcdefghijklmnopqrstuvwx")\n')
    (repository / ".env").write_text("WANDB=hunter33\n")
    (repository / "settings.yaml").write_text("api_key: hunter44\nlr: 0.1\n")
    (repository / "id.txt").write_text("-----BEGIN RSA PRIVATE KEY-----\nhunter55\n-----END RSA PRIVATE KEY-----\n")
    diff = diff_of(repository, tmp_path)
    assert diff is not None
    assert "hunter" not in diff
    assert "hf_" not in diff
    assert "Left out (1 files: too long, no text, or a secret as a whole): .env" in diff
    assert f'+password = "{HIDDEN}"' in diff
    assert "+lr: 0.1" in diff


def test_what_does_not_fit_is_left_out_by_name(repository: Path, tmp_path: Path) -> None:
    (repository / "big.csv").write_text("")
    git(repository, "add", "big.csv")
    (repository / "big.csv").write_text("1,2,3\n" * 500_000)
    (repository / "train.py").write_text(TRAIN + "a = 1\n")
    (repository / "new.py").write_text("x = 1\n")
    (repository / "data.bin").write_bytes(b"\0" * 100)
    (repository / "corpus.txt").write_text("word\n" * 20_000)
    (repository / "link.py").symlink_to("/etc/passwd")
    diff = diff_of(repository, tmp_path)
    assert diff is not None
    left_out = diff.splitlines()[1].rpartition(": ")[2]
    assert sorted(left_out.split(", ")) == ["big.csv", "corpus.txt", "data.bin", "link.py"]
    assert "+a = 1" in diff
    assert "+x = 1" in diff
    assert len(diff) < 2000


@pytest.mark.parametrize("flags", [[], ["--no-diff"]])
def test_a_run_keeps_it_unless_told_not_to(flags: list[str], repository: Path, tmp_path: Path) -> None:
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
    (repository / "new.py").write_text("x = 1\n")
    with efprof.record(windows="none", keeps_diff=keeps_diff) as recording:
        pass
    assert (recording.folder / DIFF_FILE).exists() == keeps_diff
    found = Recorded(folder=recording.folder).run.git
    assert found is not None
    assert (found.root, found.is_dirty) == (str(repository), True)
