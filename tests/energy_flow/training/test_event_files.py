import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from energy_flow.energy_config import EnergyConfig
from energy_flow.training.event_files import open_event_files
from energy_flow.training.metrics_file import StepMetrics
from tests.energy_flow.training.step_numbers import metrics


class Writer:
    """Keeps what it is given. tensorboard is no dependency: its own writer has the one test that it needs."""

    def __init__(self, folder: str = "", purge_step: int | None = None) -> None:
        self.folder, self.purge_step = folder, purge_step
        self.records: list[tuple[int, dict[str, float]]] = []
        self.is_closed = False
        self.file_writer = self

    def add_summary(self, summary: Any, global_step: int) -> None:
        self.records.append((global_step, {value.tag: value.simple_value for value in summary.value}))

    def close(self) -> None:
        self.is_closed = True


class Summary(SimpleNamespace):
    """As that of tensorboard is made."""

    Value = SimpleNamespace


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Writer]:
    """The writers that were made, with tensorboard as good as installed."""
    made: list[Writer] = []

    def new(folder: str, purge_step: int) -> Writer:
        made.append(Writer(folder, purge_step))
        return made[-1]

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=new))
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.summary_pb2", SimpleNamespace(Summary=Summary))
    for package in ("tensorboard", "tensorboard.compat", "tensorboard.compat.proto"):
        monkeypatch.setitem(sys.modules, package, SimpleNamespace())
    return made


def _write(config: EnergyConfig, folder: Path, *steps: StepMetrics) -> None:
    with open_event_files(config, folder, first_step=steps[0].step - 1) as (write,):
        for step in steps:
            write(step)


def test_every_number_of_a_step_is_in_its_group_and_a_run_that_goes_on_drops_the_later_steps(
    config: EnergyConfig, writers: list[Writer], tmp_path: Path
) -> None:
    steps = [
        metrics(step, loss=2.0, gradient_norm=3.0, wait_ms=5.0, reserved_bytes=6, skip_reason="none") for step in (4, 5)
    ]
    _write(config, tmp_path, steps[0], dataclasses.replace(steps[1], is_skipped=True))
    (writer,) = writers
    assert (writer.folder, writer.purge_step, writer.is_closed) == (str(tmp_path), 4, True)
    (step, numbers), (next_step, next_numbers) = writer.records
    assert (step, next_step) == (4, 5)
    assert numbers["loss/loss"] == 2
    assert numbers["loss/text_loss"] == 0.5
    assert numbers["training/gradient_norm"] == 3
    assert numbers["time/wait_ms"] == 5
    assert numbers["memory/reserved_bytes"] == 6
    assert [numbers["training/is_skipped"], next_numbers["training/is_skipped"]] == [0, 1]
    names = {tag.partition("/")[2] for tag in numbers}
    assert names.isdisjoint({"step", "skip_reason", "allocated_bytes"}), "what has no number is left out"


def test_tensorboard_reads_what_was_written(config: EnergyConfig, tmp_path: Path) -> None:
    loaders = pytest.importorskip(
        "tensorboard.backend.event_processing.event_file_loader", reason="needs tensorboard, which is optional"
    )
    _write(config, tmp_path, *(metrics(step, loss=1 / step) for step in (1, 2)))
    (file,) = tmp_path.iterdir()
    events = list(loaders.LegacyEventFileLoader(str(file)).Load())
    losses = [(event.step, v.simple_value) for event in events for v in event.summary.value if v.tag == "loss/loss"]
    assert losses == [(1, 1.0), (2, 0.5)]


@pytest.mark.parametrize("setting", ["auto", "off"])
def test_nothing_is_written_where_it_is_off_or_tensorboard_is_not_installed(
    config: EnergyConfig, writers: list[Writer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str
) -> None:
    if setting == "auto":
        monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.summary_pb2", None)
    config = dataclasses.replace(config, runtime=dataclasses.replace(config.runtime, tensorboard=setting))
    with open_event_files(config, tmp_path / "events", first_step=0) as listeners:
        assert listeners == []
    assert writers == []
    assert not (tmp_path / "events").exists()
