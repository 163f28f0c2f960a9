"""The callbacks for Lightning and the Hugging Face Trainer, with the real packages."""

import logging
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import efprof
from efprof.artifacts.events import CollectorStopped, TrainingRaised
from efprof.artifacts.run_file import read_run_file
from efprof.model import EfprofError
from efprof.recorder.session import current
from tests.recorder.hooks.test_loop_hooks import num_global_hooks, patched
from tests.recorder.recording import Recorded, only_run
from tests.recorder.training import train_plainly
from tests.scripts.test_scripts import SCRIPTS, Step, stages_of

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks; none is ours


FRAMEWORKS = ["lightning_fit", "trainer"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("EFPROF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model only waits for a second thread
    yield tmp_path / "home"
    torch.set_num_threads(num_threads)
    assert current.session is None


def load(framework: str) -> tuple[ModuleType, Any]:
    """The training script of `tests/scripts/`, and the callback's class; imported late, as both take seconds."""
    package = "lightning" if framework == "lightning_fit" else "transformers"
    pytest.importorskip(package, reason=f"needs {package}")
    if framework == "lightning_fit":
        from efprof.recorder.callbacks.lightning import RecordTraining as Lightning
        from tests.scripts import lightning_fit

        return lightning_fit, Lightning
    from efprof.recorder.callbacks.transformers import RecordTraining as Transformers
    from tests.scripts import trainer

    return trainer, Transformers


def expected_of(framework: str) -> list[Step]:
    (script,) = [script for script in SCRIPTS if script.name == framework]
    return script.steps


def described(recorded: Recorded) -> list[Step]:
    assert recorded.events(CollectorStopped) == []
    return [
        Step(stages=stages_of(step), micro_batches=step.micro_batches, samples=step.samples) for step in recorded.steps
    ]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_training_with_the_callback_is_a_run_of_its_own_with_exact_steps(
    framework: str, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script, callback = load(framework)
    with caplog.at_level(logging.INFO):
        script.main([callback("mine", windows="none", holders=False)])
    recorded = Recorded(folder=only_run(home))
    assert (recorded.run.name, recorded.run.ended) == ("mine", "finished")
    assert described(recorded) == expected_of(framework)
    evaluating = [record.created for record in caplog.records if record.getMessage() == "evaluating"]
    assert len(evaluating) >= 6
    for step in recorded.steps:
        start, end = step.started_ns / 1e9, (step.started_ns + step.total_us * 1000) / 1e9
        assert not any(start < instant < end for instant in evaluating)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_within_a_recording_the_callback_starts_none_of_its_own(framework: str, home: Path) -> None:
    script, callback = load(framework)
    with efprof.record("outer", windows="none", holders=False):
        script.main([callback("inner", windows="none")])
        train_plainly(3)
    recorded = Recorded(folder=only_run(home))
    assert recorded.run.name == "outer"
    assert described(recorded)[:-3] == expected_of(framework)
    assert [step.samples for step in recorded.steps[-3:]] == [4, 4, 4], "the loop after it is seen as before"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_callback_changes_no_loss_and_leaves_no_hook(framework: str, capsys: pytest.CaptureFixture[str]) -> None:
    script, callback = load(framework)

    def hooks() -> object:
        return patched(), num_global_hooks()

    script.main()
    bare, before = capsys.readouterr().out, hooks()
    script.main([callback(windows="none", holders=False)])
    assert capsys.readouterr().out == bare
    assert hooks() == before


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_wrong_option_is_told_when_the_callback_is_made(framework: str) -> None:
    with pytest.raises(EfprofError, match="--windows 'no' is not 'default' or 'none'"):
        load(framework)[1](windows="no")


def fit(module: Any, loader: Any, **settings: Any) -> None:
    """A Lightning fit without any of its files."""
    import lightning

    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )  # fmt: skip
    lightning.Trainer(accelerator="cpu", max_epochs=1, **quiet, **settings).fit(module, loader)


def test_an_error_in_a_fit_ends_the_recording_with_it(home: Path) -> None:
    script, callback = load("lightning_fit")

    class Failing(script.Regression):  # type: ignore[name-defined, misc]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 3:
                raise FloatingPointError("this batch is bad")
            return super().training_step(batch, batch_idx)

    with pytest.raises(FloatingPointError):
        fit(Failing(), script.make_loader(6, shuffle=False), callbacks=[callback(windows="none", holders=False)])
    recorded = Recorded(folder=only_run(home))
    assert (recorded.run.ended, len(recorded.steps)) == ("raised", 3)
    assert [(event.error, event.step) for event in recorded.events(TrainingRaised)] == [("FloatingPointError", 3)]


def test_two_optimizers_of_one_batch_make_one_step(home: Path) -> None:
    script, callback = load("lightning_fit")

    class Adversaries(script.Regression):  # type: ignore[name-defined, misc]
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(self(batch[0]).square().mean())
                optimizer.step()

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.parameters(), lr=0.01) for _ in range(2)]

    fit(Adversaries(), script.make_loader(5, shuffle=False), callbacks=[callback(windows="none", holders=False)])
    turn = ("forward", "backward", "optimizer")
    assert described(Recorded(folder=only_run(home))) == [Step(stages=("data", *turn, *turn), micro_batches=2)] * 5


def test_a_training_that_raised_is_closed_when_the_next_one_begins(home: Path) -> None:
    script, callback = load("trainer")
    recorder = callback(windows="none")

    class Failing(type(recorder).__mro__[1]):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        script.main([recorder, Failing()])
    script.main([recorder])
    first, second = sorted((home / "runs").iterdir(), key=lambda run: read_run_file(run).started)
    assert read_run_file(first).ended == "raised"
    assert described(Recorded(folder=second)) == expected_of("trainer")
