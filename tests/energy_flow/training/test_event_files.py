import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from energy_flow.energy_config import EnergyConfig
from energy_flow.training.event_files import EventFiles, open_event_files
from tests.energy_flow.training.step_numbers import metrics


class Writer:
    """Keeps what it is given. tensorboard is no dependency: its own writer is not tested here."""

    def __init__(self, folder: str = "", purge_step: int | None = None) -> None:
        self.folder, self.purge_step = folder, purge_step
        self.scalars: dict[tuple[str, int], float] = {}
        self.is_closed = False

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.scalars[tag, global_step] = scalar_value

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Writer]:
    """The writers that were made, with tensorboard as good as installed."""
    made: list[Writer] = []

    def new(folder: str, purge_step: int) -> Writer:
        made.append(Writer(folder, purge_step))
        return made[-1]

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=new))
    return made


def test_every_number_of_a_step_is_a_scalar_in_its_group() -> None:
    writer = Writer()
    EventFiles(writer).write(metrics(4, loss=2.0, gradient_norm=3.0, wait_ms=5.0, reserved_bytes=6, is_skipped=True))
    assert writer.scalars["loss/loss", 4] == 2
    assert writer.scalars["loss/text_loss", 4] == 0.5
    assert writer.scalars["training/gradient_norm", 4] == 3
    assert writer.scalars["training/is_skipped", 4] == 1
    assert writer.scalars["time/wait_ms", 4] == 5
    assert writer.scalars["memory/reserved_bytes", 4] == 6


def test_what_has_no_number_is_left_out() -> None:
    writer = Writer()
    EventFiles(writer).write(metrics(4, skip_reason="loss not finite", allocated_bytes=None))
    names = {tag.partition("/")[2] for tag, _ in writer.scalars}
    assert names.isdisjoint({"step", "skip_reason", "allocated_bytes"})


def test_a_run_that_goes_on_drops_the_later_steps_and_closes_at_its_end(
    config: EnergyConfig, writers: list[Writer], tmp_path: Path
) -> None:
    with open_event_files(config, tmp_path, first_step=20) as listeners:
        for listener in listeners:
            listener(metrics(21))
    (writer,) = writers
    assert (writer.folder, writer.purge_step, writer.is_closed) == (str(tmp_path), 21, True)
    assert ("loss/loss", 21) in writer.scalars


def test_nothing_is_written_where_tensorboard_is_not_installed(
    config: EnergyConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with open_event_files(config, tmp_path / "events", first_step=0) as listeners:
        assert listeners == []
    assert not (tmp_path / "events").exists()


def test_nothing_is_written_where_it_is_off(config: EnergyConfig, writers: list[Writer], tmp_path: Path) -> None:
    off = dataclasses.replace(config, runtime=dataclasses.replace(config.runtime, tensorboard="off"))
    with open_event_files(off, tmp_path, first_step=0) as listeners:
        assert listeners == []
    assert writers == []
