"""An error that the program turns into its exit code is told like one that nobody caught."""

from efprof.artifacts.events import StepInterrupted, TrainingRaised
from efprof.commands.report import analyse, render
from efprof.recorder.launch.launch import close_run
from tests.recorder.conftest import Begin
from tests.recorder.faults.programs import training
from tests.recorder.recording import Recorded, line_of

FAILING = """
failed = []
def fail(step):
    if step == 5 and not failed:
        failed.append(step)
        {failure}  # failure
def leave():
    try:
        raise KeyError("of this thread")
    except KeyError:
        sys.exit(1)
"""

MAIN = """
try:
    train()  # call
except BaseException as error:
    {then}
"""

BAD_BATCH = "raise ValueError('a bad batch')"


def leaving(then: str, failure: str = BAD_BATCH) -> str:
    """A training that fails in its sixth step, at which its main part does `then`."""
    text = training("fail(step)", first=FAILING.format(failure=failure))
    return text.replace("train()  # call", MAIN.format(then=then))


def test_an_error_that_becomes_an_exit_code_is_told_with_its_lines(begin: Begin) -> None:
    child = begin(leaving("sys.exit('failed')"))
    assert child.wait() == 1
    recorded = Recorded(folder=child.folder)
    (raised,) = recorded.events(TrainingRaised)
    assert (raised.error, raised.message, raised.step, raised.stage) == ("ValueError", "a bad batch", 5, "other")
    assert [int(site.split(":")[1]) for site in (raised.sites[0], raised.sites[-1])] == [
        line_of(child.script, "call"), line_of(child.script, "failure"),
    ]  # fmt: skip
    assert [event.step for event in recorded.events(StepInterrupted)] == [5]
    close_run(child.folder, 1, 1.0)
    assert "ValueError in step 5: a bad batch." in render(analyse(child.folder), "text")


def test_an_error_before_the_first_step_that_becomes_an_exit_code_is_told(begin: Begin) -> None:
    child = begin(leaving("sys.exit(1)").replace("return model", "raise FileNotFoundError('no data'); return model"))
    assert child.wait() == 1
    (raised,) = Recorded(folder=child.folder).events(TrainingRaised)
    assert (raised.error, raised.step) == ("FileNotFoundError", 0)


def test_an_error_after_which_the_program_says_that_all_is_well_is_not_told(begin: Begin) -> None:
    child = begin(leaving("sys.exit(0)"))
    assert child.wait() == 0
    assert Recorded(folder=child.folder).events(TrainingRaised) == []


def test_an_exit_that_the_program_catches_to_train_on_is_forgotten(begin: Begin) -> None:
    child = begin(leaving("exec('try: sys.exit(1)\\nexcept SystemExit: train()')"))
    assert child.wait() == 0
    recorded = Recorded(folder=child.folder)
    assert len(recorded.steps) > 40
    assert recorded.events(TrainingRaised) == []


def test_the_exit_of_another_thread_is_not_that_of_the_program(begin: Begin) -> None:
    child = begin(leaving("(thread := __import__('threading').Thread(target=leave)).start() or thread.join()"))
    assert child.wait() == 0
    assert Recorded(folder=child.folder).events(TrainingRaised) == []


def test_the_exit_of_the_program_is_as_it_was_once_the_recording_is_over(begin: Begin) -> None:
    end = "__import__('efprof').recorder.session.current.session.end()"
    child = begin(leaving(f"{end}; print(sys.exit.__name__)"))
    assert child.wait() == 0
    assert child.output.splitlines()[-1] == "exit"
