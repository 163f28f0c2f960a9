"""How programs end by themselves, and what the recording and the report say of it."""

import pytest

from efprof.artifacts.events import (
    WHOLE_RECORDING,
    CollectorStopped,
    OutOfMemory,
    RecordingEnded,
    StepInterrupted,
    TrainingRaised,
)
from efprof.artifacts.run_file import read_run_file
from efprof.commands.report import analyse, render
from efprof.facts.overview.run_warnings import warnings_of
from efprof.facts.run.run import open_run
from efprof.recorder.launch.launch import close_run
from efprof.units import format_bytes
from tests.recorder.conftest import Begin
from tests.recorder.faults.programs import training
from tests.recorder.recording import Recorded, line_of


def test_a_crash_leaves_its_own_traceback_and_the_users_lines(begin: Begin) -> None:
    child = begin(training("model(inputs[:, :3]) if step == 20 else None  # crash"))
    assert child.wait() == 1
    assert child.errors.startswith("Traceback (most recent call last):")
    assert "mat1 and mat2 shapes cannot be multiplied" in child.errors.rpartition("RuntimeError: ")[2]
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


@pytest.mark.parametrize("trace_steps", [(), ((5, 7),)], ids=["by the steps", "by a window"])
def test_a_file_that_may_not_grow_stops_the_recording_and_not_the_training(
    trace_steps: tuple[tuple[int, int], ...], begin: Begin
) -> None:
    limit = "__import__('resource').setrlimit(1, (30_000, 30_000)) if step == 0 else None"
    child = begin(training(limit, num_steps=400), trace_steps=trace_steps)
    assert child.wait() == 0
    assert child.output.count("\n") == 400
    (said,) = [line for line in child.errors.splitlines() if line.startswith("efprof:")]
    assert said in {  # by the first write that is cut short, or refused
        f"efprof: {child.folder} cannot be written ({why}): recording stops, training goes on"
        for why in ("No space left on device", "File too large")
    }
    recorded = Recorded(folder=child.folder)
    assert [step.step for step in recorded.steps] == list(range(len(recorded.steps)))
    assert 3 <= len(recorded.steps) < 400
    assert [path.name for path in recorded.rank.iterdir() if path.name.startswith(".")] == []
    if trace_steps:
        (stop,) = recorded.events(CollectorStopped)
        assert stop.collector == WHOLE_RECORDING
        assert [warning for warning in warnings_of(open_run(child.folder)) if warning.startswith("Recording stopped")]
