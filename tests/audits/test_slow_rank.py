"""slow_rank: fires on the rank that all others wait for, at the stage that makes it late; is silent where none is."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from efprof.audits.slow_rank import slow_rank
from efprof.facts.overview.run_warnings import warnings_of
from efprof.facts.run.run import open_run
from efprof.facts.time.rank_times import _of_recorded
from efprof.model import NothingToLookAt, NotRecorded, ThinEvidence, UnreadableInput
from tests.support.builders import START_NS, make_steps, trace_event, write_run, write_trace
from tests.support.device_traces import (
    Events,
    call,
    foreign_run,
    found_by,
    has_real_traces,
    launched,
    operator,
    real_run,
    step,
)
from tests.support.waiting import MAX_WAIT_S

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)"
STEP_MS = 20.0
SOURCE = "pass\n" * 7 + "def prepare():\n    pass\n" + "pass\n" * 10 + "def train():\n    prepare()\n"


def a_rank(
    late_ms: Callable[[int], float],
    *,
    num_steps: int = 4,
    name: str = NCCL,
    gloo: bool = False,
    in_device_ms: float = 0.0,
    prepare: bool = True,
) -> Events:
    """Steps of a rank that comes `late_ms(step)` later to its all-reduce than another, which ends 15 ms into the step.

    The time is spent in `prepare` at train.py:8, or by kernels of the forward pass where it is `in_device_ms`.
    """
    events: Events = []
    for number in range(num_steps):
        start, late = number * STEP_MS, late_ms(number)
        before = late if prepare else 0.0
        events += [step(number, start, STEP_MS), call("train.py(20): train", start, STEP_MS - 0.1)]
        events += [call("train.py(8): prepare", start + 0.1, 1.0 + before)]
        events += [call("nn.Module: Net_0", start + 1.2 + before, 1.0), operator("aten::mm", start + 1.3 + before, 0.5)]
        events += launched("gemm", start + 1.4 + before, start + 1.5 + before, 1.0 + in_device_ms, 10 * number + 1)
        if gloo:
            collective = trace_event(
                "gloo:all_reduce", start + 4 + late, 11 - late, category="user_annotation", thread=9
            )
            events.append(collective)
            continue
        events += launched(name, start + 1.9 + before, start + 4 + late, 11 - late, 10 * number + 2, stream=20)
    return events


def always(late_ms: float) -> Callable[[int], float]:
    return lambda _: late_ms


def world(size: int, num: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"rank": rank, "world_size": size, **fields} for rank in range(num)]


def test_it_names_the_rank_that_stays_in_collectives_for_the_shortest_time_and_its_line(tmp_path: Path) -> None:
    (finding,) = found_by(slow_rank, tmp_path, a_rank(always(1)), a_rank(always(6)), a_rank(always(0)))
    assert str(finding.blame) == "train.py:8"
    assert finding.message.startswith("All others wait 5.00 ms of each step (")
    assert finding.message.endswith(" for rank 1.")
    assert finding.why.startswith("Its ")
    assert " on the host, that of the others " in finding.why
    assert finding.gain.step_ms == pytest.approx(5.0)  # until the next but last rank has come
    assert "does alone there" in finding.fix.summary


def test_clocks_of_several_machines_need_not_agree(tmp_path: Path) -> None:
    ahead = [event | {"ts": event["ts"] + 3_600_000_000} for event in a_rank(always(6))]
    world = [{"rank": rank, "world_size": 2} for rank in range(2)]
    (finding,) = found_by(slow_rank, tmp_path, a_rank(always(0)), ahead, distributed=world)
    assert "for rank 1" in finding.message


def test_ranks_of_one_pace_or_late_in_turn_are_no_fault(tmp_path: Path) -> None:
    assert found_by(slow_rank, tmp_path, a_rank(always(2)), a_rank(always(2.5))) == ()
    in_turn = [a_rank(lambda number, rank=rank: 6.0 * (number % 2 == rank), num_steps=8) for rank in range(2)]  # type: ignore[misc]
    assert found_by(slow_rank, tmp_path, *in_turn) == ()


def test_a_slower_device_is_told_by_its_kernels(tmp_path: Path) -> None:
    slow = a_rank(always(6), in_device_ms=6.0, prepare=False)
    (finding,) = found_by(slow_rank, tmp_path, a_rank(always(0)), slow)
    assert finding.why.startswith("Its forward stage takes 7.00 ms on the device, that of the others ")
    assert "clock rates" in finding.fix.summary


def test_a_rank_that_is_late_in_no_stage_is_looked_at_as_a_whole(tmp_path: Path) -> None:
    (finding,) = found_by(slow_rank, tmp_path, a_rank(always(0)), a_rank(always(6), prepare=False))
    assert finding.blame.file.startswith("rank 1")
    assert finding.why == "No stage of it takes so much longer than on the others."
    assert "machine of rank 1" in finding.fix.summary


def test_collectives_of_gloo_are_compared_as_well_but_in_more_steps(tmp_path: Path) -> None:
    (finding,) = found_by(slow_rank, tmp_path, *(a_rank(always(late), gloo=True, num_steps=6) for late in (0, 6)))
    assert str(finding.blame) == "train.py:8"
    with pytest.raises(ThinEvidence, match="too few"):
        found_by(slow_rank, tmp_path, *(a_rank(always(late), gloo=True, num_steps=4) for late in (0, 6)))
    slow = a_rank(always(6), gloo=True, num_steps=6, in_device_ms=6.0, prepare=False)
    with pytest.raises(ThinEvidence, match="late, but in no stage"):  # its device is not what the host waits for
        found_by(slow_rank, tmp_path, a_rank(always(0), gloo=True, num_steps=6), slow)


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ([{"rank": 0, "world_size": 2}, {"rank": 1, "world_size": 8}], "different numbers of ranks"),
        (world(4, 2, pg_config=[{"pg_size": 4}, {"pg_size": 2}]), "several groups"),
    ],
)
def test_ranks_that_do_not_exchange_with_each_other_are_not_compared(
    tmp_path: Path, headers: list[dict[str, Any]], why: str
) -> None:
    with pytest.raises(ThinEvidence, match=why):
        found_by(slow_rank, tmp_path, a_rank(always(0)), a_rank(always(6)), distributed=headers)


def test_broadcasts_do_not_wait_for_all(tmp_path: Path) -> None:
    name = "ncclDevKernel_Broadcast_RING_LL"
    with (
        foreign_run(tmp_path, a_rank(always(0), name=name), a_rank(always(6), name=name)) as run,
        pytest.raises(NothingToLookAt, match=r"^Needs collectives that wait for all\.$"),
    ):
        slow_rank(run)


def test_one_rank_of_several_asks_for_the_others_and_for_a_single_one_there_is_nothing_to_look_at(
    tmp_path: Path,
) -> None:
    with pytest.raises(ThinEvidence, match="give those of others too"):
        found_by(slow_rank, tmp_path, a_rank(always(0)), distributed=world(8, 1))
    with foreign_run(tmp_path, a_rank(always(0))) as run, pytest.raises(NothingToLookAt, match=r"^Needs several ranks"):
        slow_rank(run)
    with pytest.raises(NotRecorded):
        slow_rank(write_run(tmp_path / "run", steps=make_steps(3)))


def test_no_more_is_won_than_a_step_takes_without_the_profiler(tmp_path: Path) -> None:
    made = make_steps(10, data_ms=0.0, forward_ms=1.0, backward_ms=2.0, optimizer_ms=0.0, other_ms=0.0)
    for record in made[:4]:
        record.window = "trace-1"
        record.started_ns = START_NS + record.step * round(STEP_MS * 1e6)
        record.total_us = STEP_MS * 1000
    slow = a_rank(always(6))
    run = write_run(tmp_path / "run", steps=made, sources={"train.py": SOURCE}, traces=[a_rank(always(0))])
    shutil.copytree(run.folder / "rank0", run.folder / "rank1")
    write_trace(run.folder / "rank1", 1, slow)
    (finding,) = slow_rank(open_run(run.folder)).findings
    assert str(finding.blame) == "train.py:8"
    assert finding.gain.step_ms == pytest.approx(3.0)
    shutil.copytree(run.folder / "rank0", run.folder / "rank2")
    (run.folder / "rank2" / "trace-1.json.gz").write_text("{")
    broken = open_run(run.folder)
    assert any("rank2/trace-1.json.gz is not a whole" in warning for warning in warnings_of(broken))
    assert slow_rank(broken).looked_at.endswith("of 2 ranks in 4 steps")
    (run.folder / "rank1" / "trace-1.json.gz").write_text("{")
    with pytest.raises(ThinEvidence, match="of 3 ranks the trace of one alone can be read"):
        slow_rank(open_run(run.folder))
    gone = broken.of_rank(Path("rank7"))
    with pytest.raises(UnreadableInput, match=f"{Path.cwd()}/rank7 is not there"):
        _of_recorded(gone)


@has_real_traces
def test_real_traces_of_two_trainings_are_not_compared() -> None:
    with (
        real_run("hta__trace_diff__control", "hta__trace_diff__test") as run,
        pytest.raises((ThinEvidence, UnreadableInput), match=r"different numbers of ranks|ends before .* begins"),
    ):
        slow_rank(run)


PROGRAM = """\
import os
import sys
import time

import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import efprof


def save(model):
    if dist.get_rank() == 1:
        time.sleep(0.06)


def train():
    place = f"file://{os.getcwd()}/rendezvous"
    dist.init_process_group("gloo", init_method=place, rank=int(os.environ["RANK"]), world_size=2)
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(16):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        save(model)
    time.sleep(0.2)  # gloo's threads let go of the last tensors
    dist.destroy_process_group()


for rank in ("0", "1"):
    if os.fork() == 0:
        os.environ |= {"WORLD_SIZE": "2", "RANK": rank}
        break
else:
    sys.exit(max(os.waitstatus_to_exitcode(os.wait()[1]) != 0 for _ in range(2)))
with efprof.record(trace_steps="4:13"):
    train()
"""
"""Its ranks are forks of one process, numbered in their environment as torchrun does: torch is imported once."""


@pytest.mark.long
def test_a_recorded_training_of_two_processes_is_blamed_on_what_one_of_them_does_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    environment = os.environ | {"EFPROF_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "home" / "runs").iterdir()
    (finding,) = slow_rank(open_run(folder)).findings
    assert (str(finding.blame), finding.blame.text) == ("train.py:16", "time.sleep(0.06)")
    assert "for rank 1" in finding.message
    assert finding.gain.step_ms > 30  # which sleeps for 60 ms at least
