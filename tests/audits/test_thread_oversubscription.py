"""thread_oversubscription: fires where ranks and workers have more threads ready than cores, by setting and count."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from efprof.artifacts.events import EVENTS_FILE, ThreadsReady
from efprof.audits.thread_oversubscription import thread_oversubscription
from efprof.facts.run.run import Run, open_run
from efprof.model import CodeEdit, EnvironmentVariable, NotRecorded
from tests.support.builders import START_NS, make_steps, write_run

TRAIN = "import torch\n\ntorch.set_num_threads(4)\n" + "loss.backward()\n" * 7


TO_ALL = "0f3a [0, 1, 2, 3]"


def counted(*, cores: str = TO_ALL, num_cores: int = 4, num_threads: int = 4, **fields: Any) -> ThreadsReady:
    """Of a rank that has four threads at work on four cores."""
    usual: dict[str, Any] = {"at_ns": START_NS, "step": 40, "site": None, "ready": 4.0, "waiting": 2.0, "children": 0.0}
    return ThreadsReady(cores=cores, num_cores=num_cores, num_threads=num_threads, **usual | fields)


def run_of(folder: Path, *ranks: ThreadsReady) -> Run:
    run = write_run(folder / "run", steps=make_steps(30), sources={"train.py": TRAIN}, events=ranks[:1])
    for number, event in enumerate(ranks[1:], start=1):
        rank = shutil.copytree(run.folder / "rank0", run.folder / f"rank{number}")
        (rank / EVENTS_FILE).write_bytes(msgspec.json.encode(event) + b"\n")
    return open_run(run.folder)


def test_it_blames_the_line_that_gives_two_ranks_all_cores_each_and_edits_it(tmp_path: Path) -> None:
    rank = counted(site="train.py:3:<module>", ready=3.8)
    (finding,) = thread_oversubscription(run_of(tmp_path, rank, rank)).findings
    assert str(finding.blame) == "train.py:3"
    assert finding.message.startswith("7.6 threads share 4 cores, ")
    assert finding.message.endswith(", and wait for one 53 % of the time.")
    assert finding.why == "2 processes cut each operation into 4 threads."
    new = "torch.set_num_threads(2)"
    assert finding.fix.changes == (CodeEdit(file="train.py", line=3, old="torch.set_num_threads(4)", new=new),)
    assert (finding.gain.step_ms, finding.severity) == (None, "medium"), "what it costs is not known"


def test_busy_data_workers_count_and_a_default_is_changed_by_the_variable(tmp_path: Path) -> None:
    (finding,) = thread_oversubscription(run_of(tmp_path, counted(ready=5.6, children=1.9))).findings
    assert str(finding.blame) == "train.py:10"  # where backward runs
    assert finding.fix.changes == (EnvironmentVariable(name="OMP_NUM_THREADS", old=None, new="2"),)
    assert finding.severity == "medium"


@pytest.mark.parametrize(
    ("ranks", "why"),
    [
        ([counted(ready=4.4, waiting=3.3)], "one process, as many threads as cores: others keep the machine busy"),
        ([counted(ready=5.2, children=0.6)], "one process with a light data worker, and threads that are not torch's"),
        ([counted(num_threads=2, ready=3.0)] * 2, "each rank has its share, beside it threads of Gloo"),
        ([counted(ready=1.1)] * 2, "operations too small to be cut into threads"),
        ([counted(cores=f"0f3a [{n}]", num_cores=1, num_threads=1, ready=1.0) for n in (0, 1)], "each has its core"),
        ([counted(cores=f"{machine} [0, 1, 2, 3]") for machine in "ab"], "each has its machine"),
        ([counted(num_threads=1, ready=6.0, children=5.0)], "nothing is cut: workers alone are too many"),
    ],
)
def test_other_runs_are_no_fault(tmp_path: Path, ranks: list[ThreadsReady], why: str) -> None:
    assert thread_oversubscription(run_of(tmp_path, *ranks)).findings == (), why


def test_a_run_that_was_not_counted_is_not_applicable(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded):
        thread_oversubscription(run_of(tmp_path))
