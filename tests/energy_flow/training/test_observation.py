import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from energy_flow.config_parsing import load_config
from energy_flow.data.batch import Batch
from energy_flow.data.dataset import PairDataset
from energy_flow.data.loader import build_loader
from energy_flow.energy_config import EnergyConfig, OptimizerConfig
from energy_flow.logs import set_up_logging
from energy_flow.model import EnergyFlowModel, build_model
from energy_flow.processes import ALONE, Processes
from energy_flow.training.metrics import MetricsLog
from energy_flow.training.observation import observed
from tests.energy_flow.training.step_numbers import report

CPU = torch.device("cpu")
BATCHES_PER_EPOCH = 3

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def package_logger() -> Iterator[None]:
    logger = logging.getLogger("energy_flow")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def _train(
    config: EnergyConfig,
    dataset: PairDataset,
    out: Path,
    *,
    steps: range,
    model: EnergyFlowModel | None = None,
    processes: Processes = ALONE,
) -> None:
    model = model or build_model(config)
    batches: Iterator[Batch] = iter(build_loader(config, dataset, CPU))
    with observed(
        config,
        out=out,
        model=model,
        device=CPU,
        batches_per_epoch=BATCHES_PER_EPOCH,
        first_step=steps.start - 1,
        processes=processes,
    ) as metrics:
        for step in steps:
            _step(model, next(batches), metrics, step)


def _step(model: torch.nn.Module, batch: Batch, metrics: MetricsLog, step: int) -> None:
    metrics.batch_fetched()
    with metrics.stages.forward():
        losses = model(batch)
    with metrics.stages.backward():
        losses.total.backward()
    metrics.batch_done(losses, num_samples=8)
    metrics.step_done(step, report(step))


def test_a_step_s_line_holds_its_stages_and_the_process_s_memory(
    config: EnergyConfig, dataset: PairDataset, tmp_path: Path
) -> None:
    _train(config, dataset, tmp_path, steps=range(1, 3))
    for line in map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines()):
        assert 0 < line["energy_ms"] + line["text_bridge_ms"] < line["forward_ms"] < line["step_ms"]
        assert 0 < line["backward_ms"] < line["step_ms"]
        assert line["host_rss_bytes"] > 2**26
        assert line["epoch"] == 1


def test_the_progress_line_is_gone_at_the_end_and_log_lines_are_whole(
    dataset: PairDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config("debug", assignments=["runtime.progress=on"])
    set_up_logging("info")
    _train(config, dataset, tmp_path, steps=range(1, 4))
    written = capsys.readouterr().err
    assert "epoch 1  batch 1/3" in written
    assert "\r\x1b[Kepoch 1  loss" in written
    assert written.endswith("\r\x1b[K")


def test_another_process_than_the_first_writes_and_draws_nothing(
    dataset: PairDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("energy_flow.training.observation.mean_over_processes", lambda losses, processes: losses)
    config = load_config("debug", assignments=["runtime.progress=on"])
    set_up_logging("profiling", rank=1)
    second = Processes(rank=1, world_size=2, local_rank=1)
    _train(config, dataset, tmp_path, steps=range(1, 5), processes=second)
    assert list(tmp_path.iterdir()) == []
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")


def test_a_run_that_fails_leaves_no_hook_no_line_and_the_steps_that_were_done(
    dataset: PairDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config("debug", assignments=["runtime.progress=on"])
    model = build_model(config)

    def interrupt(norm: float, optimizer: OptimizerConfig) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("energy_flow.training.step_messages.gradient_health", interrupt)
    with pytest.raises(KeyboardInterrupt):
        _train(config, dataset, tmp_path, steps=range(1, 4), model=model)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1
    assert not any(module._forward_hooks for module in model.modules())
    assert capsys.readouterr().err.endswith("\r\x1b[K")
