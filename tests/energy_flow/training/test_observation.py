import json
from pathlib import Path

import pytest
import torch

from energy_flow.config_parsing import load_config
from energy_flow.data.dataset import PairDataset
from energy_flow.energy_config import OptimizerConfig
from energy_flow.logs import set_up_logging
from energy_flow.model import build_model
from energy_flow.processes import Processes
from energy_flow.training.energy_trainer import EnergyTrainer
from energy_flow.training.observation import observed
from tests.energy_flow.training.step_numbers import take_steps

pytestmark = pytest.mark.usefixtures("one_thread", "_package_logger")


def _trainer(out: Path, num_steps: int) -> EnergyTrainer:
    settings = ["runtime.progress=on", f"training.steps={num_steps}"]
    return EnergyTrainer(load_config("debug", assignments=settings), out=out)


def test_lines_hold_stages_and_the_process_s_memory_and_no_progress_line_is_left(
    dataset: PairDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logging("info")
    _trainer(tmp_path, 15).train(dataset)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 15
    for line in lines:
        assert 0 < line["energy_ms"] + line["text_bridge_ms"] < line["forward_ms"] < line["step_ms"]
        assert 0 < line["backward_ms"] < line["step_ms"]
        assert line["host_rss_bytes"] > 2**26
        assert line["epoch"] == 1
    written = capsys.readouterr().err
    assert "epoch 1  batch 1/15" in written
    assert "\r\x1b[Kepoch 1  loss" in written
    assert "\x1b" not in written.rpartition("\r\x1b[K")[2], "only log lines follow the last line that is erased"


def test_another_process_than_the_first_writes_and_draws_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("energy_flow.training.observation.mean_over_processes", lambda losses, processes: losses)
    config = load_config("debug", assignments=["runtime.progress=on"])
    set_up_logging("profiling", rank=1)
    second = Processes(rank=1, world_size=2, local_rank=1)
    model, cpu = build_model(config), torch.device("cpu")
    with observed(config, out=tmp_path, model=model, device=cpu, batches_per_epoch=3, processes=second) as metrics:
        take_steps(metrics, range(1, 5))
    assert list(tmp_path.iterdir()) == []
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")


def test_a_run_that_fails_leaves_no_hook_no_line_and_the_steps_that_were_done(
    dataset: PairDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(norm: float, optimizer: OptimizerConfig) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("energy_flow.training.step_messages.gradient_health", interrupt)
    trainer = _trainer(tmp_path, 3)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(dataset)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in trainer.model.modules())
    assert capsys.readouterr().err.endswith("\r\x1b[K")
