"""How programs end by themselves, and what the recording and the report say of it."""

import pytest

from efprof.artifacts.events import OutOfMemory, RecordingEnded, StepInterrupted, TrainingRaised
from efprof.artifacts.run_file import read_run_file
from efprof.commands.report import analyse, render
from efprof.recorder.launch.launch import close_run
from efprof.units import format_bytes
from tests.recorder.conftest import Begin
from tests.recorder.faults.programs import training
from tests.recorder.recording import Recorded, line_of


def test_a_crash_leaves_its_own_traceback_and_the_users_lines(begin: Begin) -> None:
    child = begin(training("model(inputs[:, :3]) if step == 20 else None  # crash"))
    assert child.wait() == 1
    assert child.errors.startswith("Traceback (most recent call last):")
    assert "RuntimeError: mat1 and mat2 shapes cannot be multiplied" in child.errors
    recorded = Recorded(folder=child.folder)
    (raised,) = recorded.events(TrainingRaised)
    assert (raised.error, raised.step, raised.stage) == ("RuntimeError", 20, "forward")
    assert [site.split(":")[1:] for site in raised.sites[-2:]] == [
        [str(line_of(child.script, "call")), "<module>"],
        [str(line_of(child.script, "crash")), "train"],
    ]
    (interrupted,) = recorded.events(StepInterrupted)
    assert (interrupted.step, interrupted.stage) == (20, "forward")
    assert interrupted.allocated_bytes > 0
    assert [event.signal for event in recorded.events(RecordingEnded)] == [None]


def test_a_hook_of_the_programs_own_for_exceptions_hides_nothing(begin: Begin) -> None:
    own = "sys.excepthook = lambda *_: print('mine'); raise KeyError('lost')"
    child = begin(training(f'exec("{own}") if step == 3 else None'))
    assert child.wait() == 1
    assert child.output.endswith("mine\n")
    assert [event.error for event in Recorded(folder=child.folder).events(TrainingRaised)] == ["KeyError"]


def test_a_failure_before_the_first_step_is_recorded(begin: Begin) -> None:
    child = begin(training(first="torch.nn.Linear(2, 2)(torch.ones(3))"))
    assert child.wait() == 1
    (raised,) = Recorded(folder=child.folder).events(TrainingRaised)
    assert (raised.error, raised.step) == ("RuntimeError", 0)


@pytest.mark.parametrize(
    ("demand", "requested"),
    [("torch.empty(1 << 50)", 1 << 52), ("__import__('numpy').empty(1 << 55)", 1 << 58), ("[0] * (1 << 60)", None)],
    ids=["of torch's allocator", "of NumPy", "of Python"],
)
def test_memory_that_runs_out_is_the_ending_and_the_report_opens_with_it(
    demand: str, requested: int | None, begin: Begin
) -> None:
    child = begin(training(f"{demand} if step == 5 else None  # demand"))
    site = f"train.py:{line_of(child.script, 'demand')}:train"
    assert child.wait() == 1
    (event,) = Recorded(folder=child.folder).events(OutOfMemory)
    assert (event.step, event.site, event.requested_bytes) == (5, site, requested)
    close_run(child.folder, 1, 1.0)
    assert read_run_file(child.folder).ended == "out_of_memory"
    report = analyse(child.folder)
    for text in (render(report, "text"), render(report, "html")):
        assert "The run ran out of memory after 6 steps (exit code 1)." in text
        size = "" if requested is None else f" for {format_bytes(requested)}"
        assert f"A request{size}{'' if 'torch' in demand else ', not for a tensor,'} failed" in text


def test_ctrl_c_within_a_window_ends_as_it_would_without_the_recorder(begin: Begin) -> None:
    child = begin(training("__import__('os').kill(__import__('os').getpid(), 2) if step == 5 else None"),
                  trace_steps=((5, 7),))  # fmt: skip
    assert child.wait() == -2
    recorded = Recorded(folder=child.folder)
    assert [event.error for event in recorded.events(TrainingRaised)] == ["KeyboardInterrupt"]
    assert [step.step for step in recorded.steps] == [*range(6)], "every finished one"
    assert (recorded.rank / "allocations-1.parquet").exists()
