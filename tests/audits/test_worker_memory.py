"""worker_memory: fires where forked workers copy a data set's Python objects, on the line that fills the container."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from efprof.artifacts.readings import WORKER_MEMORY_FILE, DataSetObjects, HeldContainer, ProcessesSample, ProcessMemory
from efprof.audits.worker_memory import worker_memory
from efprof.commands.report import analyse, render
from efprof.facts.run.run import Run
from efprof.model import Finding, NothingToLookAt, Series, ThinEvidence
from efprof.units import MIB
from tests.support.builders import make_steps, write_run

DATA = """\
class TextData(Dataset):
    def __init__(self, lines):
        self.lines = lines
"""
LINES = HeldContainer(
    path="TextData.lines",
    type="list",
    element_type="str",
    length=400_000,
    object_bytes=60 * MIB,
    site="data.py:3:TextData.__init__",
)


def process(worker: int | None, private: int, *, copied: int = 0, pid: int | None = None) -> ProcessMemory:
    """A worker that has so many private bytes and no longer shares `copied` of 200 MiB."""
    return ProcessMemory(
        pid=pid or (900 if worker is None else 1000 + worker),
        pss_bytes=100 * MIB + private,
        private_bytes=private,
        private_dirty_bytes=private,
        anonymous_bytes=200 * MIB + private - copied,
        loader=None if worker is None else 1,
        worker=worker,
        is_training=worker is None,
    )


def copying(*copied: int, num_workers: int = 2) -> list[ProcessesSample]:
    """Samples at which each worker had copied so much, with 10 MiB of its own."""
    return [
        ProcessesSample(
            step=100 * place,
            processes=[
                *(process(worker, 10 * MIB + num_bytes, copied=num_bytes) for worker in range(num_workers)),
                process(None, 100 * MIB),
            ],
        )
        for place, num_bytes in enumerate(copied)
    ]


def run_of(folder: Path, samples: list[ProcessesSample], *held: HeldContainer, **fields: Any) -> Run:
    of_data = {"loader": 1, "site": "data.py:2:TextData.__init__"}
    data_set = DataSetObjects(**{**of_data, "start_method": "fork", "containers": list(held), **fields})
    run = write_run(folder, steps=make_steps(10), sources={"data.py": DATA})
    lines = b"".join(msgspec.json.encode(record) + b"\n" for record in [data_set, *samples])
    (run.rank_folder / WORKER_MEMORY_FILE).write_bytes(lines)
    return run


def only_finding(run: Run) -> Finding:
    (finding,) = worker_memory(run).findings
    return finding


def test_a_run_without_workers_has_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(NothingToLookAt, match=r"^Needs data workers \(on Linux\)\.$"):
        worker_memory(write_run(tmp_path, steps=make_steps(10)))


def test_it_tells_what_all_workers_copied_and_shows_each_over_time(tmp_path: Path) -> None:
    finding = only_finding(run_of(tmp_path, copying(0, 40 * MIB, 55 * MIB), LINES))
    assert finding.message == "2 data workers have copied 110 MiB of the data set by step 200, 55.0 MiB each."
    assert finding.why.startswith("Reading an object writes its reference count, which copies its page: ")
    assert "TextData.lines" in finding.why
    assert finding.gain.peak_bytes is None
    assert finding.gain.explanation.startswith("110 MiB of host memory")
    (series,) = [one for one in finding.evidence if isinstance(one, Series)]
    assert series.lines[1].y == (10.0 * MIB, 50.0 * MIB, 65.0 * MIB)


def test_their_own_growth_and_small_or_unread_data_and_one_worker_s_own_writing_are_left_alone(tmp_path: Path) -> None:
    """What they asked for themselves takes nothing from what they share."""
    samples = copying(0, 0, 0)
    samples[-1].processes[:2] = [process(worker, 300 * MIB) for worker in range(2)]
    assert worker_memory(run_of(tmp_path, samples, LINES)).findings == ()
    small = msgspec.structs.replace(LINES, object_bytes=10 * MIB)
    assert worker_memory(run_of(tmp_path / "second", copying(0, 12 * MIB), small)).findings == ()
    assert worker_memory(run_of(tmp_path / "third", copying(0, 3 * MIB), LINES)).findings == ()
    assert worker_memory(run_of(tmp_path / "fourth", copying(0, 180 * MIB, num_workers=1))).findings == ()


def test_much_that_no_container_explains_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(ThinEvidence, match="as a global list"):
        worker_memory(run_of(tmp_path, copying(0, 180 * MIB)))


def test_spawned_workers_and_those_that_were_read_once_tell_nothing(tmp_path: Path) -> None:
    with pytest.raises(ThinEvidence, match="started by 'spawn'"):
        worker_memory(run_of(tmp_path, copying(0, 0), LINES, start_method="spawn"))
    with pytest.raises(ThinEvidence, match="read twice"):
        worker_memory(run_of(tmp_path / "second", copying(0), LINES))


def test_new_workers_are_not_taken_for_the_first_and_an_unknown_line_falls_back_on_the_loop(tmp_path: Path) -> None:
    """They begin with all shared again: the epoch in which most was copied counts."""
    samples = copying(0, 50 * MIB, 0)
    samples[-1].processes[:2] = [process(worker, 10 * MIB, pid=2000 + worker) for worker in range(2)]
    assert "by step 100, 50.0 MiB each" in only_finding(run_of(tmp_path, samples, LINES)).message
    unknown = msgspec.structs.replace(LINES, site=None)
    assert str(only_finding(run_of(tmp_path / "class", copying(0, 55 * MIB), unknown)).blame) == "data.py:2"
    with pytest.raises(ThinEvidence, match="of no known line"):
        worker_memory(run_of(tmp_path / "none", copying(0, 55 * MIB), unknown, site=None))


def test_every_page_shows_all_processes_when_they_held_most_and_none_where_there_are_no_workers(tmp_path: Path) -> None:
    run = run_of(tmp_path, copying(0, 55 * MIB, 5 * MIB), LINES)
    table = analyse(run.folder).measurements.processes
    assert table.title == "All processes at step 100, when they held most: 530 MiB"
    assert [row[0] for row in table.rows] == ["training", "worker 0 of loader 1", "worker 1 of loader 1"]
    assert table.title in render(analyse(run.folder), "html")
    assert analyse(write_run(tmp_path / "second", steps=make_steps(5)).folder).measurements.processes is None
