"""Trees of git: each side has exactly its files, and nothing of the user's is changed or left behind."""

import hashlib
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from efprof.compare.sides.trees import MAX_UNTRACKED_BYTES, Tree, source_trees
from efprof.model import EfprofError

ODD = b"one\r\ntwo\x0cthree\n\xff\x00no newline at the end"


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    done = subprocess.run(["git", *identity, "-C", str(folder), *words], capture_output=True, check=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits: on `main` train.py says 1, on `feature` 2, with a file that the other lacks."""
    root = tmp_path / "project"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    (root / "train.py").write_text("print(1)\n")
    (root / "odd.bin").write_bytes(ODD)
    (root / ".gitignore").write_text(".efprof\ndata\n")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "one")
    git(root, "checkout", "-q", "-b", "feature")
    (root / "train.py").write_text("print(2)\n")
    (root / "new.py").write_text("")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "two")
    return root


def state_of(root: Path) -> dict[str, str]:
    """Every file of the repository, git's own included, by a hash of its bytes."""
    files = [path for path in root.rglob("*") if path.is_file() and ".efprof" not in path.parts]
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def made(root: Path, *refs: str, links: tuple[Path, ...] = ()) -> AbstractContextManager[list[Tree]]:
    return source_trees(refs, work=root / ".efprof" / "work", here=root, links=links)


def test_each_side_has_the_files_of_its_ref_and_nothing_of_the_users_changes(repository: Path) -> None:
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {repository}/hooked\n")
    hook.chmod(0o755)
    before = state_of(repository)
    with made(repository, "main", "feature") as (base, head):
        assert (base.folder / "train.py").read_text() == "print(1)\n"
        assert (head.folder / "train.py").read_text() == "print(2)\n"
        assert not (base.folder / "new.py").exists()
        assert git(base.folder, "rev-parse", "HEAD") == base.commit == git(repository, "rev-parse", "main")
        assert base.folder.name == head.folder.name == "project"
        assert base.moved(repository / "train.py") == base.folder / "train.py"
        assert base.moved(Path("/usr/bin/python")) == Path("/usr/bin/python")
    assert state_of(repository) == before
    assert not list((repository / ".efprof" / "work").iterdir())


def test_the_working_tree_is_copied_byte_for_byte_with_what_git_does_not_track(repository: Path) -> None:
    (repository / "odd.bin").write_bytes(ODD.replace(b"two", b"2\r\n"))
    (repository / "train.py").chmod(0o755)
    (repository / "new.py").unlink()
    (repository / "sub").mkdir()
    (repository / "sub" / "untracked").write_bytes(ODD)
    (repository / "link").symlink_to("train.py")
    (repository / "staged.py").write_text("x\x0c\r\n")
    git(repository, "add", "staged.py")
    (repository / "data").mkdir()
    (repository / "data" / "ignored").write_text("")
    before, objects = state_of(repository), len(list((repository / ".git" / "objects").rglob("*")))
    with made(repository, "HEAD", ".") as (base, head):
        assert (base.folder / "odd.bin").read_bytes() == ODD
        assert (head.folder / "odd.bin").read_bytes() == ODD.replace(b"two", b"2\r\n")
        assert os.access(head.folder / "train.py", os.X_OK)
        assert not (head.folder / "new.py").exists()
        assert (head.folder / "sub" / "untracked").read_bytes() == ODD
        assert (head.folder / "link").readlink() == Path("train.py")
        assert (head.folder / "staged.py").read_bytes() == b"x\x0c\r\n"
        assert not (head.folder / "data").exists()
    assert state_of(repository) == before
    assert len(list((repository / ".git" / "objects").rglob("*"))) == objects


@pytest.mark.parametrize("option", ["--assume-unchanged", "--skip-worktree"])
def test_what_git_was_told_not_to_look_at_is_as_it_is(repository: Path, option: str) -> None:
    git(repository, "update-index", option, "train.py")
    (repository / "train.py").write_text("print(3)\n")
    with made(repository, "HEAD", ".") as (_, head):
        assert (head.folder / "train.py").read_text() == "print(3)\n"


def test_no_run_finds_what_another_one_wrote(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    with made(repository, "main", ".", links=(tmp_path / "shared",)) as (base, _):
        for _ in range(2):
            with base.fresh() as run:
                assert run.folder.name == "project"
                assert git(run.folder, "rev-parse", "HEAD") == base.commit
                assert not (run.folder / "last.ckpt").exists()
                assert (run.folder / ".." / "shared").is_dir()
                (run.folder / "last.ckpt").write_text("")
            assert not run.folder.exists()


def test_what_git_ignores_is_linked_where_it_is_named_from_within_or_beside_the_tree(
    repository: Path, tmp_path: Path
) -> None:
    for place in (repository / "data", tmp_path / "shared"):
        place.mkdir()
        (place / "file").write_text("here")
    links = (repository / "data", tmp_path / "shared")
    with made(repository, "main", "feature", links=links) as sides:
        for side in sides:
            assert (side.folder / "data" / "file").read_text() == "here"
            assert (side.folder / ".." / "shared" / "file").read_text() == "here"
    assert (repository / "data" / "file").read_text() == "here"


@pytest.mark.parametrize(
    ("refs", "link", "message"),
    [
        (("main", "nothing"), None, "'nothing' is no branch, tag or commit of "),
        (("main", "--help"), None, "'--help' is no branch, tag or commit of "),
        (("main", "feature"), "missing", "missing: there is no such file or folder"),
        (("main", "feature"), "train.py", "train.py: 'main' has it already"),
        (("main", "feature"), "../../..", "it lies too far from "),
    ],
)
def test_what_cannot_be_had_is_said_in_a_sentence_and_leaves_nothing(
    repository: Path, refs: tuple[str, str], link: str | None, message: str
) -> None:
    before = state_of(repository)
    with (
        pytest.raises(EfprofError, match=message) as raised,
        made(repository, *refs, links=(Path(os.path.normpath(repository / link)),) if link else ()),
    ):
        pytest.fail("it was made")
    assert "\n" not in str(raised.value)
    assert state_of(repository) == before


def test_a_folder_without_a_repository_or_a_commit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EfprofError, match="lies in no repository of git"), made(tmp_path, "main", "."):
        pass
    git(tmp_path, "init", "-q")
    with pytest.raises(EfprofError, match=r"'\.' is no branch, tag or commit of "), made(tmp_path, ".", "."):
        pass


def test_large_files_that_git_does_not_track_are_named_and_not_copied(repository: Path) -> None:
    with (repository / "weights.bin").open("wb") as file:
        file.truncate(MAX_UNTRACKED_BYTES + 1)
    with (
        pytest.raises(EfprofError, match=r"weights\.bin \(100 MiB\) is too large to copy"),
        made(repository, "main", "."),
    ):
        pass


def test_a_submodule_is_the_users_own_where_it_is_at_the_commit_that_the_side_wants(
    repository: Path, tmp_path: Path
) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q")
    (library / "code.py").write_text("here")
    git(library, "add", ".")
    git(library, "commit", "-q", "-m", "first")
    git(repository, "submodule", "add", "-q", str(library), "library")
    git(repository, "commit", "-q", "-m", "with a library")
    with made(repository, "main", "feature") as (base, head):
        assert not (base.folder / "library").exists()
        assert (head.folder / "library" / "code.py").read_text() == "here"
    assert (repository / "library" / "code.py").read_text() == "here"
    (repository / "library" / "code.py").write_text("changed")
    with pytest.raises(EfprofError, match="has changes that are not committed"), made(repository, "main", "feature"):
        pass
    with made(repository, "main", ".") as (_, head):
        assert (head.folder / "library" / "code.py").read_text() == "changed"
    git(repository / "library", "checkout", "-q", "code.py")
    git(repository / "library", "commit", "-q", "--allow-empty", "-m", "second")
    with pytest.raises(EfprofError, match="wants the submodule library at "), made(repository, "main", "feature"):
        pass


KILLED = """
import os, signal, sys
from pathlib import Path
from efprof.compare.sides.trees import source_trees
root = Path(sys.argv[1])
with source_trees(("main", "feature"), work=root / ".efprof" / "work", here=root, links=()):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_trees_of_a_comparison_that_was_killed_are_removed_by_the_next_and_those_of_a_living_one_stay(
    repository: Path,
) -> None:
    before = state_of(repository)
    done = subprocess.run([sys.executable, "-c", KILLED, str(repository)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list((repository / ".efprof" / "work").iterdir())) == 1
    with made(repository, "main", "feature") as (living, _):
        assert len(list((repository / ".efprof" / "work").iterdir())) == 1
        with made(repository, "main", "."):
            assert living.folder.exists()
        assert (living.folder / "train.py").exists()
    assert state_of(repository) == before


def test_what_git_sets_for_its_hooks_leads_to_no_other_index_and_other_folders_are_left_alone(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = repository / ".efprof" / "work"
    (work / "mine").mkdir(parents=True)
    (work / "mine" / "lock").write_text("")
    (repository / "train.py").write_text("print(3)\n")
    before = state_of(repository)
    monkeypatch.setenv("GIT_INDEX_FILE", str(repository / ".git" / "index"))
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(repository))
    with made(repository, "main", ".") as (_, head):
        assert (head.folder / "train.py").read_text() == "print(3)\n"
    assert state_of(repository) == before
    assert [path.name for path in work.iterdir()] == ["mine"]


def test_a_worktree_of_the_users_own_is_left_alone(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "-q", "--detach", str(tmp_path / "mine"), "main")
    with made(repository, "main", "feature"):
        pass
    assert git(tmp_path / "mine", "status", "--porcelain") == ""
