"""What is said of a call that a library makes: by the real libraries, where they are installed."""

import ast
import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from efprof.audits.blocking_scalar_read import blocking_scalar_read
from efprof.audits.cache_flush_in_loop import cache_flush_in_loop
from efprof.audits.debug_mode import debug_mode
from efprof.facts.run.run import Run, open_run
from efprof.facts.steps.step_times import StepTimes
from efprof.fixes.library_settings import OF_LIBRARIES, LibrarySettings, library_call
from efprof.model import Finding
from tests.recorder.recording import line_of, record_here
from tests.simulated_cuda.cuda import SimulatedCuda
from tests.support.sentences import faulty_sentences

HERE = Path(__file__)
FILES = {
    "transformers": ("trainer.py",),
    "lightning": (
        "pytorch/trainer/trainer.py", "pytorch/trainer/connectors/logger_connector/logger_connector.py",
        "pytorch/trainer/connectors/logger_connector/result.py", "pytorch/callbacks/throughput_monitor.py",
    ),
    "deepspeed": ("utils/timer.py", "runtime/zero/stage_1_and_2.py"),
    "torch": ("distributed/fsdp/_runtime_utils.py", "amp/grad_scaler.py", "optim/optimizer.py"),
    "torchmetrics": ("aggregation.py",),
}  # fmt: skip
"""In which files of a package the functions of the table are."""


@pytest.mark.parametrize("own", OF_LIBRARIES, ids=lambda own: own.packages[0])
def test_the_functions_of_the_table_are_in_the_library(own: LibrarySettings) -> None:
    package = own.packages[0]
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"needs {package}")
    trees = [ast.parse((Path(found.submodule_search_locations[0]) / file).read_text()) for file in FILES[package]]
    top = [node for tree in trees for node in tree.body]
    names = {node.name for node in top if isinstance(node, ast.FunctionDef)}
    for owner in (node for node in top if isinstance(node, ast.ClassDef)):
        names |= {f"{owner.name}.{node.name}" for node in owner.body if isinstance(node, ast.FunctionDef)}
    assert {setting.function for setting in own.settings} <= names


def test_of_a_trace_a_function_is_known_without_its_class() -> None:
    called = library_call(["deepspeed/x.py:1:synchronize", "deepspeed/utils/timer.py:180:start"], "synchronize")
    assert (called.at, called.function) == (", in deepspeed/utils/timer.py:180", "start")
    assert called.fix is not None
    assert called.fix.summary.startswith("Set `timers.throughput.synchronized` to false")


def test_of_another_library_its_function_is_named_and_of_no_library_nothing_is() -> None:
    called = library_call(["engines/logs.py:9:Log.write", "engines/run.py:3:Engine.run"], "item")
    assert called.fix is not None
    assert called.fix.summary.startswith("`Log.write` of engines makes the call below `Engine.run`")
    assert library_call([], "item").fix is None
    assert library_call(["transformers/trainer.py:1:Trainer.training_step"], "item").function == "Trainer.training_step"


def test_the_library_that_asks_another_one_is_named_too() -> None:
    called = library_call(["torch/amp/grad_scaler.py:5:GradScaler.get_scale", "engines/run.py:3:Engine.run"], "item")
    assert called.by == " by `GradScaler.get_scale` of torch for engines"


def test_a_setting_is_not_named_for_calls_far_below_its_function() -> None:
    frames = ["trl/trainer.py:7:MyTrainer.compute_loss", "transformers/trainer.py:9:Trainer.training_step",
              "transformers/trainer.py:5:Trainer._run_epoch"]  # fmt: skip
    called = library_call(frames, "bool")
    assert called.function == "MyTrainer.compute_loss"
    assert called.fix is not None
    assert "logging_nan_inf_filter" not in called.fix.summary


class Regression(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layer(x) - labels).square().mean()}


def fine_tune(folder: Path, **settings: Any) -> Run:
    """A run of the Hugging Face Trainer on a simulated device."""
    from transformers import Trainer, TrainingArguments

    quiet: dict[str, Any] = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "logging_steps": 100}
    with SimulatedCuda().in_place(), warnings.catch_warnings(action="ignore"):
        arguments = TrainingArguments(output_dir=str(folder / "output"), max_steps=12, **quiet, **settings)
        data = [{"x": torch.rand(4), "labels": torch.rand(1)} for _ in range(96)]
        trainer = Trainer(model=Regression(), args=arguments, train_dataset=data)

        def train() -> None:
            trainer.train()  # fine-tune

        return open_run(record_here(folder / "run", train).folder)


def findings_of(run: Run) -> list[Finding]:
    audits = (blocking_scalar_read, cache_flush_in_loop, debug_mode)
    return [finding for audit in audits for finding in audit(run).findings]


@pytest.mark.long
def test_what_the_trainer_reads_and_empties_is_told_with_its_settings_and_no_line_is_edited(tmp_path: Path) -> None:
    read, flush = findings_of(fine_tune(tmp_path, torch_empty_cache_steps=1))
    line = f"tests/fixes/test_library_settings.py:{line_of(HERE, 'fine-tune')}"
    assert [str(read.blame), str(flush.blame)] == [line, line]
    assert ", in transformers/trainer.py:" in read.headline
    assert "`Trainer._run_epoch` of transformers" in read.message
    assert read.fix.summary.startswith("Set `logging_nan_inf_filter=False`")
    assert "`Trainer.training_step` of transformers" in flush.message
    assert flush.fix.summary.startswith("Set `torch_empty_cache_steps=None`")
    assert read.fix.changes == flush.fix.changes == ()
    assert [faulty_sentences(read), faulty_sentences(flush)] == [[], []]


@pytest.mark.long
def test_with_these_settings_the_trainer_neither_reads_nor_empties(tmp_path: Path) -> None:
    assert findings_of(fine_tune(tmp_path, logging_nan_inf_filter=False)) == []


def fit(folder: Path, log: Callable[[Any, torch.Tensor], None], **settings: Any) -> Run:
    """A run of Lightning's Trainer, which calls `log` with its module and the loss."""
    import lightning
    from lightning.pytorch.loggers import CSVLogger

    class Logging(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = self.layer(batch).square().mean()
            log(self, loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    quiet = dict.fromkeys(("enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False)
    batches = DataLoader(torch.randn(48, 4), batch_size=4)  # type: ignore[arg-type]
    with warnings.catch_warnings(action="ignore"):
        trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, logger=CSVLogger(folder), **quiet, **settings)
        return open_run(record_here(folder / "run", lambda: trainer.fit(Logging(), batches)).folder)


def told_of(run: Run) -> set[str]:
    """What is advised of each read of a library in a steady step."""
    steady = run.get(StepTimes).steady
    calls = [library_call(read.library, read.call) for time in steady for read in time.record.reads]
    return {called.fix.summary.partition(":")[0] for called in calls if called.fix}


@pytest.mark.long
def test_what_lightning_reads_to_log_is_told_with_its_settings(tmp_path: Path) -> None:
    run = fit(tmp_path / "bar", lambda module, loss: module.log("loss", loss, prog_bar=True), log_every_n_steps=1)
    often = "Set a larger `log_every_n_steps` of `Trainer`. This was checked with lightning 2.6.6."
    assert told_of(run) == {"Log without `prog_bar=True`", often}
    assert told_of(fit(tmp_path / "plain", lambda module, loss: module.log("loss", loss))) == set()


@pytest.mark.long
def test_lightning_s_anomaly_detection_is_told_with_its_setting(tmp_path: Path) -> None:
    (finding,) = debug_mode(fit(tmp_path, lambda *_: None, detect_anomaly=True)).findings
    assert finding.fix.summary.startswith("Set `detect_anomaly=False` of `Trainer`.")
    assert finding.fix.changes == ()
