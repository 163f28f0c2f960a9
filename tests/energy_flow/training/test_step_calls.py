"""What a training step must never call, watched while real steps run: what keeps graphs, empties caches, collects."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from energy_flow.config_parsing import load_config
from energy_flow.data.dataset import PairDataset
from energy_flow.data.loader import build_loader
from energy_flow.training.device import return_unused_memory
from energy_flow.training.energy_trainer import EnergyTrainer
from energy_flow.training.metrics import MetricsLog

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
EVERYTHING_ON = [
    *("training.accumulation=2", "training.gradient_detail_interval=1", "backoff.window=2", "flow.checkpoint_steps=2"),
    *("optimizer.warmup_steps=2", "runtime.precision=float16"),
]


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


def _retain() -> None:
    torch.ones(1, requires_grad=True).exp().sum().backward(retain_graph=True)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (_retain, "retain_graph"),
        (gc.collect, "gc.collect"),
        (lambda: return_unused_memory(torch.device("cuda")), "empty_cache"),
        (torch.cuda.empty_cache, "empty_cache"),
    ],
)
def test_the_watch_sees_what_is_forbidden(call: Callable[[], object], name: str) -> None:
    with _watched() as seen:
        call()
    assert name in seen


@pytest.mark.parametrize("settings", [[], EVERYTHING_ON], ids=["plain", "everything on"])
def test_a_step_keeps_no_graph_and_neither_empties_caches_nor_collects_nor_resets_peaks(
    dataset: PairDataset, tmp_path: Path, settings: list[str]
) -> None:
    config = load_config("debug", assignments=settings)
    trainer = EnergyTrainer(config, out=tmp_path)
    loader = iter(build_loader(config, dataset, torch.device("cpu")))
    batches = [next(loader) for _ in range(3 * config.training.accumulation)]
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
    loader = iter(build_loader(config, dataset, torch.device("cpu")))
    with MetricsLog(None, log_interval=1) as metrics:
        for _ in range(config.training.accumulation):
            trainer.train_batch(next(loader), metrics)
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
