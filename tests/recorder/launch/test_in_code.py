"""`with efprof.record():` in a training program, of one process and of the ranks of one launch."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import efprof
from efprof.artifacts.events import CollectorStopped, OutOfMemory, TrainingRaised
from efprof.model import EfprofError
from efprof.recorder.hooks import torch_versions
from efprof.recorder.launch.start import TOLD
from efprof.recorder.session import current
from tests.recorder.conftest import Begin
from tests.recorder.hooks.test_loop_hooks import num_global_hooks, patched
from tests.recorder.recording import PLAIN, Recorded, line_of, only_run, stages
from tests.recorder.training import BATCH, error_of, make_loader, make_model, make_training, train_plainly


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("EFPROF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "home"
    assert current.session is None


def test_a_with_statement_records_the_loop_inside_and_nothing_else() -> None:
    train_plainly(2)
    with efprof.record("mine", windows="none") as recording:
        train_plainly(5)
    train_plainly(2)
    recorded = Recorded(folder=recording.folder)
    assert [stages(step) for step in recorded.steps[1:]] == [PLAIN] * 4
    assert [step.samples for step in recorded.steps] == [BATCH] * 5
    assert recorded.events(CollectorStopped) == []


def test_a_torch_out_of_the_range_is_told_once_and_recorded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch_versions, "NEWEST", (2, 6))
    monkeypatch.setenv(TOLD, "")  # to have it as it was when the test is over
    monkeypatch.delenv(TOLD)
    for _ in range(2):
        with efprof.record(windows="none", holders=False) as recording:
            train_plainly(2)
        assert len(Recorded(folder=recording.folder).steps) == 2
    assert capsys.readouterr().err == f"efprof: {torch_versions.why_untested(torch)}\n"


def test_the_run_is_described_as_that_of_a_command(home: Path) -> None:
    with efprof.record(windows="none", holders=False) as recording:
        train_plainly(2)
    assert recording.folder == only_run(home).absolute()
    run = Recorded(folder=recording.folder).run
    assert run.command == sys.orig_argv
    assert run.working_folder == str(Path.cwd())
    assert (run.ended, run.exit_code) == ("finished", 0)
    assert run.duration_s is not None
    assert {"python", "torch", "efprof"} <= set(run.versions)


def test_a_decorated_function_is_recorded_at_every_call(home: Path) -> None:
    @efprof.record(windows="none", holders=False)
    def train(num_steps: int) -> str:
        train_plainly(num_steps)
        return "trained"

    assert [train(2), train(3)] == ["trained"] * 2
    assert sorted(len(Recorded(folder=run).steps) for run in (home / "runs").iterdir()) == [2, 3]


def test_a_recording_within_another_is_refused_in_one_sentence(home: Path) -> None:
    with efprof.record("outer", windows="none", holders=False) as recording:
        train_plainly(2)
        with pytest.raises(EfprofError) as refused, efprof.record("inner"):
            raise AssertionError("never entered")
        train_plainly(2)
    assert str(refused.value) == (
        f"this process is being recorded already, into {recording.folder}; "
        "let that recording end before the next one begins."
    )
    assert len(Recorded(folder=only_run(home)).steps) == 4


def end_by(error: BaseException) -> Callable[[], None]:
    def train() -> None:
        train_plainly(3)
        raise error

    return train


ENDINGS = {
    "raised": (end_by(KeyError("the user's own")), 1),
    "out_of_memory": (lambda: torch.empty(1 << 50), 1),
    "interrupted": (end_by(KeyboardInterrupt()), 1),
}


@pytest.mark.parametrize("ended", ENDINGS)
def test_an_error_passes_through_and_is_the_ending(ended: str, home: Path) -> None:
    train, code = ENDINGS[ended]
    endings = (KeyError, RuntimeError, KeyboardInterrupt)
    with pytest.raises(endings) as raised, efprof.record(windows="none", holders=False):
        train()
    recorded = Recorded(folder=only_run(home))
    assert (recorded.run.ended, recorded.run.exit_code) == (ended, code)
    assert [event.error for event in recorded.events(TrainingRaised)] == [raised.type.__name__]
    assert len(recorded.events(OutOfMemory)) == (ended == "out_of_memory")


@pytest.mark.parametrize(
    ("code", "ended"), [(None, "finished"), (256, "finished"), (3, "raised"), ("no data", "raised")]
)
def test_a_program_that_exits_within_ends_as_its_code_says(code: object, ended: str, home: Path) -> None:
    with pytest.raises(SystemExit), efprof.record(windows="none", holders=False):
        end_by(SystemExit(code))()
    recorded = Recorded(folder=only_run(home))
    assert recorded.run.ended == ended
    assert recorded.events(TrainingRaised) == []


def test_an_error_of_before_is_not_the_one_that_ended_the_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = ValueError("of an earlier cell")
    monkeypatch.setattr(sys, "last_value", older, raising=False)
    with efprof.record(windows="none", holders=False):
        train_plainly(2)
    recorded = Recorded(folder=only_run(home))
    assert (recorded.run.ended, recorded.events(TrainingRaised)) == ("finished", [])
    assert sys.last_value is older


def test_every_hook_is_taken_out_at_the_end(home: Path) -> None:
    train_plainly(1)  # torch imports parts of itself when they are first used
    before, variables = (patched(), num_global_hooks()), dict(os.environ)
    with efprof.record(trace_steps="2:3", memory_steps="none"):
        assert (patched(), num_global_hooks()) != before
        train_plainly()
    assert (patched(), num_global_hooks(), dict(os.environ)) == (*before, variables)
    with pytest.raises(KeyError), efprof.record(windows="none"):
        end_by(KeyError())()
    assert (patched(), num_global_hooks()) == before


def test_the_options_are_those_of_the_command(home: Path) -> None:
    with efprof.record(trace_steps="2:3", triggers="none") as recording:
        train_plainly()
    recorded = Recorded(folder=recording.folder)
    assert [step.step for step in recorded.steps if step.window] == [2]
    with pytest.raises(EfprofError, match="knows no 'windws'; it takes windows,"), efprof.record(windws="none"):  # type: ignore[call-arg]
        pass
    with pytest.raises(EfprofError, match="--trace-steps 'two' is not"), efprof.record(trace_steps="two"):
        raise AssertionError("never entered")


def test_the_projects_settings_hold_in_code_too(tmp_path: Path) -> None:
    (tmp_path / "model.toml").write_text("depth = 3\n")
    (tmp_path / "efprof.toml").write_text('configuration = "model.toml"\n[record]\nname = "theirs"\nwindows = "none"\n')
    with efprof.record() as recording:
        train_plainly(8)
    run = Recorded(folder=recording.folder).run
    assert (run.name, run.configuration) == ("theirs", {"depth": "3"})
    assert not list(recording.folder.glob("rank0/trace-*"))


Prepared = tuple[Any, torch.nn.Module, Any, Any, Any]


def prepare(num_batches: int, num_accumulated: int) -> Prepared:
    """What Accelerate makes of a training: itself, model, optimizer, loader and schedule."""
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=num_accumulated)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)
    return (accelerator, *accelerator.prepare(model, optimizer, make_loader(num_batches), schedule))


def train_prepared(prepared: Prepared) -> None:
    accelerator, model, optimizer, loader, schedule = prepared
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("num_accumulated", [1, 2])
def test_a_loop_that_accelerate_prepared_before_is_recorded_inside_a_with_statement(num_accumulated: int) -> None:
    prepared = prepare(12, num_accumulated)
    with efprof.record(windows="none", holders=False) as recording:
        train_prepared(prepared)
    recorded = Recorded(folder=recording.folder)
    num_steps = 12 // num_accumulated
    assert [[stage for stage, _ in groupby(stages(step))] for step in recorded.steps] == [
        PLAIN[:3] * num_accumulated + PLAIN[3:]
    ] * num_steps
    assert [step.micro_batches for step in recorded.steps] == [num_accumulated] * num_steps
    assert sum(step.samples for step in recorded.steps) == 12 * BATCH
    assert recorded.events(CollectorStopped) == []


@pytest.mark.parametrize("clip", [clip_grad_norm_, clip_grad_value_], ids=lambda clip: clip.__name__)
def test_clipping_by_a_name_bound_before_is_no_stage_and_all_else_is_seen(
    clip: Callable[[object, float], object],
) -> None:
    def train() -> None:
        model, optimizer = make_training()
        for inputs, targets in make_loader(80):
            optimizer.zero_grad()
            error_of(model, inputs, targets).backward()
            clip(model.parameters(), 1.0)
            optimizer.step()

    with efprof.record(windows="none", overhead="100%", holders=False) as recording:
        train()
    steps = Recorded(folder=recording.folder).steps
    assert [stages(step) for step in steps] == [["data", *PLAIN]] + [PLAIN] * 79
    assert [(step.samples, step.micro_batches) for step in steps] == [(BATCH, 1)] * 80


SCRIPT = """
import os, signal, sys
import torch
import efprof
from torch.utils.data import DataLoader, TensorDataset

def train(num_steps=6, then=lambda step: None):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (inputs,) in enumerate(DataLoader(TensorDataset(torch.randn(num_steps * 4, 3)), batch_size=4)):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        then(step)

{main}
"""


def test_in_a_recorded_process_it_changes_nothing(begin: Begin) -> None:
    main = """
train()
with efprof.record("inner") as recording, efprof.record("nested"):
    train()
train()
print(recording.folder)
"""
    child = begin(SCRIPT.format(main=main))
    assert child.wait() == 0, child.errors
    assert child.output == f"{child.folder}\n"
    assert [step.step for step in Recorded(folder=child.folder).steps] == list(range(18))


def test_a_signal_that_ends_the_program_within_is_the_ending(home: Path, begin_unrecorded: Begin) -> None:
    main = """
with efprof.record(windows="none"):
    train(then=lambda step: os.kill(os.getpid(), signal.SIGTERM) if step == 3 else None)
"""
    code = begin_unrecorded(SCRIPT.format(main=main), home).wait()
    recorded = Recorded(folder=only_run(home))
    assert code == -signal.SIGTERM
    assert (recorded.run.ended, recorded.run.exit_code) == ("killed", 128 + signal.SIGTERM)
    assert len(recorded.steps) >= 3


RAISES = "train(then=lambda step: 1 / 0)  # the error"
EXITS = f"""
try:
    {RAISES}
except ZeroDivisionError:
    sys.exit(3)
"""
TRAINS_ON = """
try:
    train(then=lambda step: sys.exit(3) if step == 4 else None)
except SystemExit:
    train()
"""


@pytest.mark.parametrize(
    ("main", "code", "ended", "errors"),
    [
        (RAISES, 1, "raised", ["ZeroDivisionError"]),
        (EXITS, 3, "raised", ["ZeroDivisionError"]),
        (TRAINS_ON, 0, "finished", []),
    ],
    ids=["an error", "an exit because of it", "an exit that it trained on after"],
)
def test_the_end_of_the_program_closes_a_recording_left_open(
    main: str, code: int, ended: str, errors: list[str], home: Path, begin_unrecorded: Begin
) -> None:
    begins = "from efprof.recorder.launch.in_code import begin_recording\nbegin_recording(windows='none')\n"
    child = begin_unrecorded(SCRIPT.format(main=begins + main), home)
    assert child.wait() == code
    recorded = Recorded(folder=only_run(home))
    assert (recorded.run.ended, recorded.run.exit_code) == (ended, code)
    raised = recorded.events(TrainingRaised)
    assert [event.error for event in raised] == errors
    assert all(f"train.py:{line_of(child.script, 'the error')}:<module>" in event.sites for event in raised)


def test_a_forked_child_that_leaves_the_statement_ends_nothing(home: Path, begin_unrecorded: Begin) -> None:
    main = """
from efprof.artifacts.run_file import read_run_file
with efprof.record(windows="none") as recording:
    train(3)
    if os.fork() == 0:
        sys.exit(5)
    os.wait()
    assert read_run_file(recording.folder).ended == "running"
    train(3)
"""
    child = begin_unrecorded(SCRIPT.format(main=main), home)
    assert (child.wait(), child.errors) == (0, "")
    recorded = Recorded(folder=only_run(home))
    assert (recorded.run.ended, len(recorded.steps)) == ("finished", 6)


RANKS = """
for rank in ("0", "1"):
    if os.fork() == 0:
        os.environ |= {"WORLD_SIZE": "2", "RANK": rank}
        break
else:
    sys.exit([os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)].count(1))
with efprof.record("first", windows="none"):
    train()
with efprof.record("again", windows="none"):
    train(3)
with efprof.record("failed", windows="none"):
    train(then=lambda step: 1 / 0 if rank == "1" and step == 2 else None)
with efprof.record("alone", windows="none"):
    train(3)
"""


def test_the_ranks_of_one_launch_share_a_run_for_each_statement(home: Path, begin_unrecorded: Begin) -> None:
    """Children of one process, numbered in their environment, as torchrun starts them."""
    child = begin_unrecorded(SCRIPT.format(main=RANKS), home)
    assert child.wait() == 1, child.errors
    runs = [Recorded(folder=run) for run in (home / "runs").iterdir()]
    assert {run.run.name: run.run.ended for run in runs} == {
        "first": "finished", "again": "finished", "failed": "raised", "alone": "finished"
    }  # fmt: skip
    ranks = {run.run.name: sorted(rank.name for rank in run.folder.glob("rank*")) for run in runs}
    assert ranks == {name: ["rank0", "rank1"] if name != "alone" else ["rank0"] for name in ranks}
