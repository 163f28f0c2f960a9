"""Finding runs on disk, and run.json, which the launcher and each rank of a run change."""

import threading
import time
from pathlib import Path

import msgspec
import pytest

from efprof.artifacts.run_file import Git, RunFile, change_run_file, read_run_file, write_run_file
from efprof.artifacts.runs import find_run, list_runs, runs_folder
from efprof.model import UnreadableInput
from tests.support.builders import make_run_file, write_run


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store of runs, with the current folder beside it."""
    monkeypatch.setenv("EFPROF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home/runs").mkdir(parents=True)
    return tmp_path / "home/runs"


def add_run(store: Path, second: int, name: str = "train", branch: str = "main", commit: str = "3f2c1ab0") -> Path:
    """A run that started in this second of a certain minute."""
    run_id = f"20260101T1200{second:02}Z-{name}-{second:06x}"
    write_run(
        store / run_id,
        run_id=run_id,
        name=name,
        started=f"2026-01-01T12:00:{second:02}.500+00:00",
        git=Git(root="/home/user/project", branch=branch, commit=commit),
    )
    return store / run_id


def test_runs_lie_under_the_variable_or_the_nearest_store_or_where_the_first_will_be(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert runs_folder() == store
    monkeypatch.delenv("EFPROF_HOME")
    assert runs_folder() == tmp_path / ".efprof/runs"
    (tmp_path / "project/.efprof").mkdir(parents=True)
    (tmp_path / "project/source/deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project/source/deep")
    assert runs_folder() == tmp_path / "project/.efprof/runs"


def test_lists_the_newest_first_and_leaves_out_what_is_no_run(store: Path) -> None:
    paths = [add_run(store, second) for second in (1, 3, 2)]
    (store / "20250101T000000Z-train-000000").mkdir()
    (store / "notes.txt").write_text("not a run")
    assert [path for path, _ in list_runs()] == [paths[1], paths[2], paths[0]]
    assert find_run("latest") == find_run("main") == paths[1]


def test_finds_the_newest_run_without_a_name_and_one_by_its_id_or_the_beginning_of_it(store: Path) -> None:
    older, newest = add_run(store, 1), add_run(store, 2)
    assert find_run(None) == find_run("latest") == newest
    assert find_run(older.name) == find_run("20260101T120001") == older
    with pytest.raises(UnreadableInput, match=f"'20260101' fits 2 runs, {newest.name} the newest"):
        find_run("20260101")
    with pytest.raises(UnreadableInput, match=f"the newest is {newest.name}"):
        find_run("3f2")  # three letters are no commit


def test_says_how_to_record_where_there_are_no_runs(store: Path) -> None:
    with pytest.raises(UnreadableInput, match="holds no runs; record one with 'efprof record -- COMMAND'"):
        find_run("latest")
    with pytest.raises(UnreadableInput, match=r"no run 'main': .* record one with 'efprof record -- COMMAND'"):
        find_run("main")


def test_finds_a_run_by_its_path(store: Path, tmp_path: Path) -> None:
    add_run(store, 1)
    write_run(tmp_path / "copied")
    assert find_run("copied") == Path("copied")


@pytest.mark.parametrize("name", ["sweep", "feature/fast", "beef0123", "beef"])
def test_finds_the_newest_run_of_a_name_a_branch_and_a_commit(store: Path, name: str) -> None:
    add_run(store, 1, name="sweep", branch="feature/fast", commit="beef0123")
    wanted = add_run(store, 2, name="sweep", branch="feature/fast", commit="beef0123")
    add_run(store, 3)
    assert find_run(name) == wanted


@pytest.mark.parametrize(("wrong", "right"), [("trian", "train"), ("featrue/fast", "feature/fast")])
def test_names_the_nearest_run_or_branch(store: Path, wrong: str, right: str) -> None:
    add_run(store, 1)
    add_run(store, 2, branch="feature/fast")
    with pytest.raises(UnreadableInput, match=f"no run, branch or commit '{wrong}' in .*; did you mean '{right}'"):
        find_run(wrong)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is empty"),
        (b'{"schema_version": 1, "run_id": "2026\xff"}', "is not a complete run file"),
        (b'{"schema_version": 1, "run_id": "2026', "is not a complete run file"),
        (b'{"schema_version": 99}', "schema version 99"),
    ],
)
def test_a_folder_that_cannot_be_read_is_refused_by_name(store: Path, content: bytes | None, message: str) -> None:
    add_run(store, 1)
    broken = store / "20260101T120059Z-train-00003b"
    broken.mkdir()
    if content is not None:
        (broken / "run.json").write_bytes(content)
    for name in (broken.name, str(broken), "latest"):
        with pytest.raises(UnreadableInput, match=rf"(?s){broken.name}.*{message}"):
            find_run(name)


def test_a_folder_that_is_no_run_is_refused_by_name(store: Path, tmp_path: Path) -> None:
    add_run(store, 1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("not a run")
    with pytest.raises(UnreadableInput, match=r"other is no run folder"):
        find_run("other")


def test_changes_of_two_processes_at_once_are_both_kept(tmp_path: Path) -> None:
    write_run_file(tmp_path, make_run_file(ended="running"))
    has_read = threading.Event()

    def end_slowly(run: RunFile) -> RunFile:
        has_read.set()
        time.sleep(0.3)
        return msgspec.structs.replace(run, ended="raised")

    other = threading.Thread(target=change_run_file, args=(tmp_path, end_slowly))  # a lock of its own, as a process has
    other.start()
    has_read.wait()
    change_run_file(tmp_path, lambda run: msgspec.structs.replace(run, versions={"torch": "2.13.0"}))
    other.join()
    run = read_run_file(tmp_path)
    assert (run.ended, run.versions) == ("raised", {"torch": "2.13.0"})
