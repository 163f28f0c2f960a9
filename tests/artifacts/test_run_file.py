"""run.json: changed by the launcher and by each rank of a run."""

import threading
import time
from pathlib import Path

import msgspec

from efprof.artifacts.run_file import RunFile, change_run_file, read_run_file, write_run_file
from tests.support.builders import make_run_file


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
