import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from energy_flow.errors import EnergyFlowError
from energy_flow.folder_lock import claimed, claimed_to_resume
from energy_flow.processes import ALONE, Processes
from tests.support.waiting import FOR_EVER_S

PROJECT = Path(__file__).parents[2]
CLAIM = f"""
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
from energy_flow.folder_lock import claimed

with claimed(Path(sys.argv[1]), SimpleNamespace(is_first=True)):  # to import the true one takes seconds
    if sys.argv[2] == "and forks" and os.fork() == 0:
        time.sleep({FOR_EVER_S})
    print(os.getpid(), flush=True)
    time.sleep({FOR_EVER_S})
"""


@contextmanager
def _held_elsewhere(out: Path, how: str = "alone") -> Iterator[subprocess.Popen[str]]:
    """Another process, in a group of its own with its children, that has claimed `out`."""
    command = [sys.executable, "-c", CLAIM, str(out), how]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, start_new_session=True) as holder:
        assert holder.stdout.readline() == f"{holder.pid}\n"
        try:
            yield holder
        finally:
            os.killpg(holder.pid, 9)


def test_a_folder_where_another_run_is_at_work_is_refused_by_name_and_process(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with _held_elsewhere(out) as holder, pytest.raises(EnergyFlowError) as caught, claimed(out, ALONE):
        pass
    assert str(caught.value) == (
        f"another run (process {holder.pid}) is at work in {out}; wait for its end, or name another --out"
    )


def test_a_run_that_was_killed_does_not_block_though_its_loader_workers_live_on(tmp_path: Path) -> None:
    with _held_elsewhere(tmp_path, "and forks") as holder:
        holder.kill()
        holder.wait()
        with claimed(tmp_path, ALONE):
            assert (tmp_path / "in-use").read_text() == f"{os.getpid()}\n"


def test_a_folder_is_free_after_the_run_and_a_run_that_goes_on_claims_it(tmp_path: Path) -> None:
    with claimed(tmp_path, ALONE):
        pass
    with _held_elsewhere(tmp_path):
        pass
    with claimed_to_resume(tmp_path, ALONE):
        assert (tmp_path / "in-use").read_text() == f"{os.getpid()}\n"


def test_only_the_first_of_several_processes_claims_the_folder(tmp_path: Path) -> None:
    second = Processes(rank=1, world_size=2, local_rank=1)
    with _held_elsewhere(tmp_path), claimed(tmp_path, second):
        pass
