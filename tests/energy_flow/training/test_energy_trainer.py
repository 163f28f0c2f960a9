import gc
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

from energy_flow.config_parsing import load_config
from energy_flow.data.batch import Batch
from energy_flow.data.dataset import PairDataset, build_dataset
from energy_flow.data.loader import build_loader
from energy_flow.energy_config import EnergyConfig
from energy_flow.training.checkpoint_folder import find_checkpoints
from energy_flow.training.energy_trainer import EnergyTrainer
from energy_flow.training.metrics import MetricsLog
from energy_flow.training.metrics_file import StepMetrics
from tests.gpu.cuda_runs import synchronisation_is_an_error

READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "cpu", "nonzero", "argwhere", "unique")
EVERYTHING_ON = [
    *("training.gradient_detail_interval=1", "backoff.window=2", "flow.checkpoint_steps=2"),
    *("optimizer.warmup_steps=2", "optimizer.final_learning_rate_share=0.1"),
]


def _losses(config: EnergyConfig, dataset: PairDataset, out: Path) -> list[float]:
    EnergyTrainer(config, out=out).train(dataset, say=lambda metrics: None)
    return [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]


def _batches(config: EnergyConfig, dataset: PairDataset, number: int) -> list[Batch]:
    loader = iter(build_loader(config, dataset, torch.device("cpu")))
    return [next(loader) for _ in range(number)]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_loss_falls(dataset: PairDataset, tmp_path: Path, precision: str) -> None:
    config = load_config("debug", assignments=[f"runtime.precision={precision}"])
    losses = _losses(config, dataset, tmp_path)
    assert len(losses) == config.training.steps
    assert mean(losses[-5:]) < 0.8 * mean(losses[:5])


def test_training_twice_with_one_seed_gives_the_same_bits(dataset: PairDataset, tmp_path: Path) -> None:
    config = load_config("debug", assignments=["training.steps=6", "data.word_dropout=0.2"])
    augmented = PairDataset(dataset.folder, config)
    first = _losses(config, augmented, tmp_path / "first")
    assert _losses(config, augmented, tmp_path / "second") == first
    other = load_config("debug", assignments=["training.steps=6", "training.seed=1"])
    assert _losses(other, dataset, tmp_path / "third") != first


@pytest.mark.parametrize("settings", [[], EVERYTHING_ON], ids=["plain", "everything on"])
def test_a_step_reads_no_tensor_on_the_host(
    dataset: PairDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: list[str]
) -> None:
    """By what is called on tensors, and by what reaches the dispatcher, where hidden reads show."""
    config = load_config("debug", assignments=settings)
    trainer = EnergyTrainer(config, out=tmp_path)
    batches = _batches(config, dataset, 3)
    called: list[str] = []
    with MetricsLog(tmp_path / "metrics.jsonl", log_interval=1, say=lambda metrics: None) as metrics:
        trainer.train_batch(batches[0], metrics)
        for name in READS:
            original = getattr(torch.Tensor, name)
            monkeypatch.setattr(
                torch.Tensor,
                name,
                lambda *args, _name=name, _original=original, **kwargs: (
                    called.append(_name) or _original(*args, **kwargs)
                ),
            )
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            trainer.train_batch(batches[1], metrics)
        monkeypatch.undo()
    operators = {event.name for event in profiler.events() if not _is_in_optimizer(event)}
    assert {"aten::mm", "aten::scaled_dot_product_attention"} <= operators
    assert called == []
    assert operators.isdisjoint({"aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero"})


def _is_in_optimizer(event: Any) -> bool:
    """Whether it ran inside the fused AdamW, which on the CPU reads its host numbers so."""
    while event is not None and event.name != "aten::_fused_adamw_":
        event = event.cpu_parent
    return event is not None


def test_a_step_leaves_no_tensor_behind(config: EnergyConfig, dataset: PairDataset, tmp_path: Path) -> None:
    trainer = EnergyTrainer(config, out=tmp_path)
    counts = []
    with MetricsLog(tmp_path / "metrics.jsonl", log_interval=1, say=lambda metrics: None) as metrics:
        for batch in _batches(config, dataset, 6):
            trainer.train_batch(batch, metrics)
            gc.collect()
            counts.append(sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()))
    assert counts[2:] == counts[2:3] * 4


def test_accumulated_batches_make_the_step_of_one_large_batch(dataset: PairDataset, tmp_path: Path) -> None:
    weights = []
    for size, accumulation in ((8, 1), (4, 2)):
        assignments = [
            "training.steps=1",
            "flow.max_flows=100000",
            "training.validation_share=0",  # a batch is held out at least
            "training.text_loss_weight=0",  # a mean over tokens, of which the halves have unequal numbers
            f"training.batch_size={size}",
            f"training.accumulation={accumulation}",
        ]
        trainer = EnergyTrainer(load_config("debug", assignments=assignments), out=tmp_path / str(size))
        trainer.train(dataset, say=lambda metrics: None)
        assert trainer.step == 1
        weights.append(trainer.model.mapper.from_cells.weight.detach())
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("field", ["input_embedding", "target_embedding"])
def test_a_bad_batch_skips_its_step_and_says_so(
    dataset: PairDataset, tmp_path: Path, field: str, precision: str
) -> None:
    """A bad input goes through all flows, whose places are then no places."""
    config = load_config("debug", assignments=[f"runtime.precision={precision}"])
    trainer = EnergyTrainer(config, out=tmp_path)
    said: list[StepMetrics] = []
    with MetricsLog(tmp_path / "metrics.jsonl", log_interval=1, say=said.append) as metrics:
        good, other = _batches(config, dataset, 2)
        trainer.train_batch(good, metrics)
        before = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
        embedding = getattr(other, field).clone()
        embedding[0, 0] = float("nan")
        bad = other._replace(**{field: embedding})
        trainer.train_batch(bad, metrics)
    assert all(torch.equal(weight, before[name]) for name, weight in trainer.model.state_dict().items())
    assert [metrics.is_skipped for metrics in said] == [False, True]
    assert "skipped" in str(said[1])


class Spoiled(PairDataset):
    """Its embeddings are not finite once `is_bad` is set."""

    is_bad = False

    def _batch(self, keys: Sequence[int]) -> Batch:
        batch = super()._batch(keys)
        return batch._replace(target_embedding=batch.target_embedding * float("nan")) if self.is_bad else batch


def _steps_on_disk(out: Path) -> list[str]:
    return sorted(folder.name for folder in find_checkpoints(out))


def test_a_run_that_only_skips_leaves_the_good_checkpoints_and_says_so(
    dataset: PairDataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ["training.checkpoint_interval=2", "training.keep_checkpoints=2", "training.validation_share=0"]
    spoiled = Spoiled(dataset.folder, dataset.config)
    EnergyTrainer(load_config("debug", assignments=[*settings, "training.steps=4"]), out=tmp_path).train(spoiled)
    good = _steps_on_disk(tmp_path)
    assert good == ["step-000002", "step-000004"]
    spoiled.is_bad = True
    trainer = _resumed([*settings, "training.steps=8"], tmp_path)
    with caplog.at_level(logging.INFO):
        trainer.train(spoiled)
    assert _steps_on_disk(tmp_path) == good
    assert "step 8: no checkpoint, for all steps after step 4 were skipped" in caplog.messages
    assert not any("saved" in message for message in caplog.messages)
    spoiled.is_bad = False
    _resumed([*settings, "training.steps=6"], tmp_path).train(spoiled)
    assert _steps_on_disk(tmp_path) == ["step-000004", "step-000006"]


def test_a_run_that_goes_on_for_no_step_writes_its_checkpoint_again(dataset: PairDataset, tmp_path: Path) -> None:
    EnergyTrainer(load_config("debug", assignments=["training.steps=2"]), out=tmp_path).train(dataset)
    (before,) = (folder.stat().st_ino for folder in find_checkpoints(tmp_path))
    _resumed(["training.steps=2"], tmp_path).train(dataset)
    (after,) = (folder.stat().st_ino for folder in find_checkpoints(tmp_path))
    assert _steps_on_disk(tmp_path) == ["step-000002"]
    assert after != before


def _resumed(assignments: list[str], out: Path) -> EnergyTrainer:
    trainer = EnergyTrainer(load_config("debug", assignments=assignments), out=out)
    trainer.resume()
    return trainer


def test_a_resumed_run_takes_whole_steps_whatever_it_accumulated_before(dataset: PairDataset, tmp_path: Path) -> None:
    before = load_config("debug", assignments=["training.steps=3", "training.accumulation=3"])
    EnergyTrainer(before, out=tmp_path).train(dataset)
    trainer = _resumed(["training.steps=6", "training.accumulation=2"], tmp_path)
    taken: list[int] = []
    with MetricsLog(None, log_interval=1) as metrics:
        for batch in _batches(trainer.config, dataset, 4):
            trainer.train_batch(batch, metrics)
            taken.append(trainer.step)
    assert taken == [3, 4, 4, 5]


def test_a_run_that_goes_on_with_another_dataset_says_so(
    config: EnergyConfig, dataset: PairDataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fewer = build_dataset(load_config("debug", assignments=["data.max_pairs=100"]), tmp_path / "fewer")
    EnergyTrainer(load_config("debug", assignments=["training.steps=1"]), out=tmp_path).train(dataset)
    with caplog.at_level(logging.WARNING):
        _resumed(["training.steps=2"], tmp_path).train(dataset)
        assert caplog.text == ""
        _resumed(["training.steps=3"], tmp_path).train(fewer)
    assert "128 pairs of pydoc_data.topics, first 128 there, 100 of pydoc_data.topics, first 100 here" in caplog.text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_step_on_cuda_never_waits_for_the_device(dataset: PairDataset, tmp_path: Path) -> None:
    config = load_config("debug", assignments=["runtime.device=cuda"])
    trainer = EnergyTrainer(config, out=tmp_path)
    first, *rest = _batches(config, dataset, 4)
    with MetricsLog(tmp_path / "metrics.jsonl", log_interval=1, say=lambda metrics: None) as metrics:
        trainer.train_batch(first, metrics)
        on_device = [Batch(*(field.cuda() for field in batch)) for batch in rest]
        with synchronisation_is_an_error():
            for batch in on_device:
                trainer.train_batch(batch, metrics)
