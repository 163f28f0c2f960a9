import signal
import subprocess
import sys
from pathlib import Path

import pytest

from energy_flow.errors import EnergyFlowError
from energy_flow.training.checkpoint_folder import (
    discard_checkpoints,
    find_checkpoints,
    remove_all_but_newest,
    write_folder,
)

PROJECT = Path(__file__).parents[3]

WRITER = """
import os, signal, sys
from pathlib import Path
from energy_flow.training.checkpoint_folder import remove_all_but_newest, write_folder

out, step, keep, last_operation = Path(sys.argv[1]), *map(int, sys.argv[2:])

def write_files(folder):
    for name in ("one", "two"):
        (folder / name).write_text(f"{step} " * 1000)

num_operations = 0
def count(event, arguments):
    global num_operations
    if event != "os.kill" and (event == "open" or event.startswith("os.")):
        num_operations += 1
        if num_operations > last_operation:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count)
remove_all_but_newest(write_folder(out, step, write_files), keep)
"""


def _write(out: Path, step: int) -> Path:
    def write_files(folder: Path) -> None:
        for name in ("one", "two"):
            (folder / name).write_text(f"{step} " * 1000)

    return write_folder(out, step, write_files)


def _killed_writer(out: Path, step: int, keep: int, last_operation: int) -> bool:
    """Write a checkpoint and be killed after so many operations on files; whether there were more."""
    command = [sys.executable, "-c", WRITER, str(out), *map(str, (step, keep, last_operation))]
    code = subprocess.run(command, cwd=PROJECT, check=False).returncode
    assert code in (0, -signal.SIGKILL)
    return code != 0


def _assert_all_whole(out: Path, *, in_steps: set[int]) -> None:
    for folder in find_checkpoints(out):
        contents = {(folder / name).read_text() for name in ("one", "two")}
        assert contents in [{f"{step} " * 1000} for step in in_steps]


@pytest.mark.parametrize(("step", "keep"), [(6, 1), (6, 2), (3, 1)], ids=["newer", "newer of two", "the same step"])
def test_a_writer_killed_at_any_operation_leaves_whole_checkpoints_only(tmp_path: Path, step: int, keep: int) -> None:
    last_operation = 0
    while True:
        out = tmp_path / str(last_operation)
        _write(out, 3)
        was_killed = _killed_writer(out, step, keep, last_operation)
        assert find_checkpoints(out), last_operation
        _assert_all_whole(out, in_steps={3, step})
        if not was_killed:
            break
        last_operation += 1
    assert last_operation > 10
    for number in range(last_operation):
        out = tmp_path / str(number)
        _write(out, 9)
        names = {folder.name for folder in (out / "checkpoints").iterdir()}
        assert not any(name.startswith(".") for name in names), "leftovers are cleaned at the next save"


def test_the_newest_checkpoints_stay_and_one_from_before_replaces_those_after_it(tmp_path: Path) -> None:
    for step in (9, 10, 100, 1000000, 20000000):
        remove_all_but_newest(_write(tmp_path, step), 3)
    names = [folder.name for folder in find_checkpoints(tmp_path)]
    assert names == ["step-20000000", "step-1000000", "step-000100"]
    assert sorted((tmp_path / "checkpoints").iterdir()) == sorted(find_checkpoints(tmp_path))
    for step in (2, 4, 8):
        _write(tmp_path / "second", step)
    remove_all_but_newest(_write(tmp_path / "second", 5), 2)
    assert [folder.name for folder in find_checkpoints(tmp_path / "second")] == ["step-000005", "step-000004"]


def test_checkpoints_that_cannot_be_discarded_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path, 4)
    monkeypatch.setattr(Path, "rename", lambda self, target: (_ for _ in ()).throw(PermissionError(13, "not yours")))
    with pytest.raises(EnergyFlowError, match=r"checkpoints .*not yours"):
        discard_checkpoints(tmp_path)


def test_a_discarded_run_has_no_checkpoints_and_other_folders_are_none(tmp_path: Path) -> None:
    folder = _write(tmp_path, 4)
    (tmp_path / "checkpoints" / "step-mine").mkdir()
    assert find_checkpoints(tmp_path) == [folder]
    discard_checkpoints(tmp_path / "never made")
    _write(tmp_path, 4)
    discard_checkpoints(tmp_path)
    assert find_checkpoints(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
