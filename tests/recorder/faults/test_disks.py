"""Disks that are full, fill up or may not be written."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from efprof.artifacts.events import WHOLE_RECORDING, CollectorStopped
from efprof.facts.overview.run_warnings import warnings_of
from efprof.facts.run.run import open_run
from tests.recorder.conftest import Begin
from tests.recorder.faults.fork_server import Child
from tests.recorder.faults.programs import training
from tests.recorder.recording import EFPROF, Recorded, environment_of


@contextmanager
def mounted(place: Path, *options: str) -> Iterator[Path]:
    """A small file system in memory, where this machine lets us mount one."""
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join(options), "none", str(place)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"needs to mount a file system: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def check_that_training_went_on(child: Child) -> None:
    assert child.wait() == 0
    (line,) = [line for line in child.errors.splitlines() if line.startswith("efprof:")]
    assert (
        line == f"efprof: {child.folder} cannot be written (No space left on device): recording stops, training goes on"
    )
    recorded = Recorded(folder=child.folder)
    assert [step.step for step in recorded.steps] == list(range(len(recorded.steps)))
    assert 3 <= len(recorded.steps) < 400
    assert [path.name for path in recorded.rank.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("trace_steps", [(), ((5, 7),)], ids=["by the steps", "by a window"])
def test_a_file_that_may_not_grow_stops_the_recording_and_not_the_training(
    trace_steps: tuple[tuple[int, int], ...], begin: Begin
) -> None:
    limit = "__import__('resource').setrlimit(1, (30_000, 30_000)) if step == 0 else None"
    child = begin(training(limit, num_steps=400), trace_steps=trace_steps)
    check_that_training_went_on(child)
    assert child.output.count("\n") == 400
    if trace_steps:
        (stop,) = Recorded(folder=child.folder).events(CollectorStopped)
        assert stop.collector == WHOLE_RECORDING
        assert [warning for warning in warnings_of(open_run(child.folder)) if warning.startswith("Recording stopped")]


def test_a_disk_that_fills_up_stops_the_recording_and_not_the_training(begin: Begin, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=80k") as disk:
        child = begin(training(num_steps=400), folder=disk / "run")
        check_that_training_went_on(child)
    assert child.output.count("\n") == 400


def test_a_folder_on_a_disk_that_may_not_be_written_is_an_error_before_training(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "ro") as disk:
        done = subprocess.run(
            [EFPROF, "record", "--", sys.executable, "-c", "open('started', 'w')"],
            env=environment_of(disk / "home", {}),
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "cannot be made: Read-only file system; set EFPROF_HOME" in line
    assert not (tmp_path / "started").exists()
