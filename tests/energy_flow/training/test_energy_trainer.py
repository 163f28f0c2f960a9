import gc
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from types import FrameType
from typing import Any

import pytest
import torch

from energy_flow.config_parsing import load_config
from energy_flow.data.batch import Batch
from energy_flow.data.dataset import PairDataset, build_dataset
from energy_flow.data.loader import build_loader
from energy_flow.energy_config import EnergyConfig
from energy_flow.training.checkpoint_folder import find_checkpoints
from energy_flow.training.device import return_unused_memory
from energy_flow.training.energy_trainer import EnergyTrainer
from energy_flow.training.metrics import MetricsLog
from energy_flow.training.metrics_file import StepMetrics
from tests.gpu.cuda_runs import synchronisation_is_an_error

READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "cpu", "nonzero", "argwhere", "unique")
EVERYTHING_ON = [
    *("training.gradient_detail_interval=1", "backoff.window=2", "flow.checkpoint_steps=2"),
    *("optimizer.warmup_steps=2", "optimizer.final_learning_rate_share=0.1"),
]
IN_PARTS = ["training.accumulation=2", "runtime.precision=float16"]
PYTHON = {
    function.__code__: name
    for name, function in {
        "empty_cache": torch.cuda.empty_cache,
        "empty_cache of mps": torch.mps.empty_cache,
        "reset_peak_memory_stats": torch.cuda.reset_peak_memory_stats,
        "reset_max_memory_allocated": torch.cuda.reset_max_memory_allocated,
        "return_unused_memory": return_unused_memory,
    }.items()
}
BACKWARD = {torch.autograd.backward.__code__, torch.autograd.grad.__code__}


def _losses(config: EnergyConfig, dataset: PairDataset, out: Path) -> list[float]:
    EnergyTrainer(config, out=out).train(dataset, say=lambda metrics: None)
    return [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]


def _batches(config: EnergyConfig, dataset: PairDataset, number: int) -> list[Batch]:
    loader = iter(build_loader(config, dataset, torch.device("cpu")))
    return [next(loader) for _ in range(number)]


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
def test_the_loss_falls(dataset: PairDataset, tmp_path: Path, precision: str) -> None:
    config = load_config("debug", assignments=[f"runtime.precision={precision}"])
    losses = _losses(config, dataset, tmp_path)
    assert len(losses) == config.training.steps
    assert mean(losses[-5:]) < 0.8 * mean(losses[:5])


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


@contextmanager
def _watched() -> Iterator[list[str]]:
    """The forbidden calls within, whatever name they were imported under; and each `backward`, to know that it saw."""
    seen: list[str] = []

    def watch(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and function is gc.collect:
            seen.append("gc.collect")
        elif event == "call" and frame.f_code in PYTHON:
            seen.append(PYTHON[frame.f_code])
        elif event == "call" and frame.f_code in BACKWARD:
            seen.append("retain_graph" if frame.f_locals["retain_graph"] else "backward")

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield seen
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("settings", [[], [*EVERYTHING_ON, *IN_PARTS]], ids=["plain", "everything on"])
def test_a_step_keeps_no_graph_and_neither_empties_caches_nor_collects_nor_resets_peaks(
    dataset: PairDataset, tmp_path: Path, settings: list[str]
) -> None:
    config = load_config("debug", assignments=settings)
    trainer = EnergyTrainer(config, out=tmp_path)
    batches = _batches(config, dataset, 3 * config.training.accumulation)
    with MetricsLog(tmp_path / "metrics.jsonl", log_interval=1) as metrics, _watched() as seen:
        for batch in batches:
            trainer.train_batch(batch, metrics)
    assert trainer.step == 3
    assert seen == ["backward"] * len(batches)


def test_a_micro_batch_goes_once_through_the_flows_the_encoder_and_the_decoder_however_many_texts_it_has(
    dataset: PairDataset, tmp_path: Path
) -> None:
    config = load_config("debug", assignments=["training.accumulation=2"])
    trainer = EnergyTrainer(config, out=tmp_path)
    parts = {"flows": trainer.model.flows, "encoder": trainer.model.encoder, "decoder": trainer.model.decoder}
    seen: list[str] = []
    for name, part in parts.items():
        part.register_forward_pre_hook(lambda *_, name=name: seen.append(name))
    with MetricsLog(None, log_interval=1) as metrics:
        for batch in _batches(config, dataset, config.training.accumulation):
            trainer.train_batch(batch, metrics)
    assert trainer.step == 1
    assert sorted(seen) == sorted([*parts] * config.training.accumulation)


@pytest.mark.parametrize(("interval", "times"), [(0, 0), (2, 3)])
def test_unused_memory_is_returned_between_steps_as_often_as_configured(
    dataset: PairDataset, tmp_path: Path, interval: int, times: int
) -> None:
    settings = ["training.steps=7", f"training.memory_cleanup_interval={interval}"]
    trainer = EnergyTrainer(load_config("debug", assignments=settings), out=tmp_path)
    with _watched() as seen:
        trainer.train(dataset)
    assert seen.count("return_unused_memory") == times
    assert seen.count("backward") == 7


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
