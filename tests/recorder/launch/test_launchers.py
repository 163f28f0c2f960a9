"""Programs that start the training: launchers, spawned children, scripts of the shell; each rank is recorded once."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from efprof.artifacts.events import RecordingEnded, TrainingRaised, WindowClosed, read_events
from efprof.artifacts.run_file import read_run_file, read_sources
from efprof.artifacts.runs import list_attempts
from efprof.artifacts.steps import read_steps
from efprof.facts.overview.run_warnings import warnings_of
from efprof.facts.run.run import open_run
from tests.recorder.recording import EFPROF, Recorded, environment_of, only_run, record_command
from tests.support.waiting import FOR_EVER_S, MAX_WAIT_S

OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without it torchrun 2.13 itself, on gloo, fails or hangs once it restarts its workers."""

STEPS = """
def train(num_steps, after_step=lambda step: None):
    model = torch.nn.Linear(4, 1)
    if torch.distributed.is_initialized():
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(num_steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        after_step(step)
"""


def record(home: Path, text: str, *command: str, environment: Mapping[str, str] | None = None) -> Recorded:
    """Record a command in a folder that holds train.py of this text."""
    (home.parent / "train.py").write_text(text)
    return record_command(home, command, options=("--windows", "none"), environment=environment)


def counts_of(recorded: Recorded) -> list[dict[str, int]]:
    """The number of steps of each rank, for each attempt."""
    return [
        {rank.name: len(read_steps(rank)[0]) if (rank / "steps.jsonl").exists() else 0 for rank in attempt.rank_folders}
        for attempt in list_attempts(recorded.folder)
    ]


def errors_of(rank: Path) -> list[str]:
    return [event.error for event in read_events(rank)[0] if isinstance(event, TrainingRaised)]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


RESTARTED = f"""
import os, torch
torch.distributed.init_process_group("gloo")
{STEPS}
is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
def fail(step):
    if is_first and step == 3:
        raise ArithmeticError("first")
train(6, fail)
torch.distributed.destroy_process_group()
raise LookupError("second")
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_restart_by_torchrun_is_a_further_attempt_and_its_agent_is_no_rank(home: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    recorded = record(home, RESTARTED, *launcher, "--max-restarts", "1", "train.py", environment=OWN_STORE)
    assert (recorded.exit_code, recorded.run.ended, recorded.run.name) == (1, "raised", "train")
    assert counts_of(recorded) == [{"rank0": 4}, {"rank0": 6}]
    run = open_run(recorded.folder)
    places = [folder.relative_to(recorded.folder).as_posix() for folder in run.rank_folders]
    assert places == ["attempt1/rank0"]
    (warning,) = [warning for warning in warnings_of(run) if "attempt 1" in warning]
    assert warning.startswith("This run trained in one process after another; ")
    assert "attempt 1 was ended by ArithmeticError at step 3" in warning
    errors = {error for rank in run.rank_folders for error in errors_of(rank)}
    assert errors == {"LookupError"}, "not the agent's ChildFailedError"


SPAWNED = f"""
import torch
{STEPS}
def work(index, file):
    rank = 1 - index
    torch.distributed.init_process_group("gloo", init_method=f"file://{{file}}", rank=rank, world_size=2)
    train(5)
    if rank == 1:
        raise ArithmeticError("in a child")

if __name__ == "__main__":
    import os
    torch.multiprocessing.spawn(work, args=(os.path.abspath("rendezvous"),), nprocs=2)
"""


@pytest.mark.long
def test_spawned_children_are_numbered_as_torch_distributed_numbers_them(home: Path) -> None:
    recorded = record(home, SPAWNED, sys.executable, "train.py")
    assert (recorded.exit_code, recorded.run.ended) == (1, "raised")
    assert counts_of(recorded) == [{"rank0": 5, "rank1": 5}]
    assert [errors_of(recorded.folder / rank) for rank in ("rank0", "rank1")] == [[], ["ArithmeticError"]]


@pytest.mark.long
def test_a_module_and_a_console_script_started_by_a_shell_script_are_two_attempts_named_from_the_repository(
    home: Path, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    (code / "trainer").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (code / "trainer" / "__main__.py").write_text(f"import torch\n{STEPS}\ntrain(3)\n")
    console = code / "train-it"
    console.write_text(f"#!{sys.executable}\nimport torch\n{STEPS}\ntrain(5)\n")
    console.chmod(console.stat().st_mode | stat.S_IXUSR)
    (code / "run.sh").write_text(f"{sys.executable} -m trainer\n./train-it\nexit 7\n")
    recorded = record_command(home, ("sh", "run.sh"), options=("--windows", "none"), working_folder=code)
    assert (recorded.exit_code, recorded.run.ended) == (7, "raised")
    assert counts_of(recorded) == [{"rank0": 3}, {"rank0": 5}]
    assert recorded.run.git is not None
    sources = [set(read_sources(folder)) for folder in sorted(recorded.folder.glob("**/rank0"))]
    assert sorted(sources, key=str) == [{"code/train-it"}, {"code/trainer/__main__.py"}]
    assert recorded.our_lines == [
        "efprof: the training ended after 5 steps (raised, exit code 7)",
        f"efprof: recorded {recorded.folder.name}; read it with 'efprof report'",
    ]
    assert [warning for warning in warnings_of(open_run(recorded.folder)) if "attempt" in warning] == [
        "This run trained in one process after another; the report is about attempt 2: attempt 1 came to its end."
    ]


WAITING = f"""
import signal, time, torch
{STEPS}
signal.signal(signal.SIGUSR1, lambda *_: print("asked", flush=True))
train(2)
print("trained", flush=True)
while True:
    time.sleep(0.1)
"""


def test_a_request_for_a_window_reaches_what_trains_and_nothing_else(home: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WAITING)
    (tmp_path / "run.sh").write_text(
        f"{sys.executable} -c 'import time; time.sleep({FOR_EVER_S})' &\n{sys.executable} train.py\n"
    )
    process = subprocess.Popen(
        [*EFPROF, "record", "--windows", "none", "--", "sh", "run.sh"],
        env=environment_of(home, {}), cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "trained\n"
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "asked\n", "neither the shell nor efprof died of the first"
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=MAX_WAIT_S)
    folder = only_run(home)
    assert read_run_file(folder).ended == "killed"
    ends = [event for event in read_events(folder / "rank0")[0] if isinstance(event, RecordingEnded)]
    assert [end.signal for end in ends] == ["SIGTERM"]


TOGETHER = """
import torch

torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    is_bad = step == 40 and torch.distributed.get_rank() == 1
    model(torch.full((2, 4), float("nan") if is_bad else 1.0)).sum().backward()
    optimizer.step()
"""


@pytest.mark.long
def test_ranks_write_full_windows_after_the_same_steps_so_none_waits_long_for_another(home: Path) -> None:
    """A rank that writes while the others wait at a collective would meet the timeout of NCCL."""
    (home.parent / "train.py").write_text(TOGETHER)
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    command = (*launcher, str(home.parent / "train.py"))
    recorded = record_command(home, command, options=("--triggers", "non-finite"), environment=OWN_STORE)
    written = [
        {(event.window, event.step) for event in read_events(rank)[0] if isinstance(event, WindowClosed)}
        for rank in sorted(recorded.folder.glob("rank*"))
    ]
    full = [{step for window, step in of_rank if window.startswith("trace")} for of_rank in written]
    assert full[0] == full[1]
    assert {5, 49} <= full[0], "the first of the schedule, and that of a NaN, which one rank sees a step later"
