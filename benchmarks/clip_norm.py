"""Which `optimizer.gradient_clip_norm` trains best, in calm and in trouble: `python -m benchmarks.clip_norm`.

Trains a shortened `cpu_demo` with every norm, kind of trouble and seed, in random order, one torch thread.
"""

from __future__ import annotations

import itertools
import random
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import click
import torch
from torch.nn import functional

from benchmarks.machine import machine_line
from energy_flow.config_parsing import load_config
from energy_flow.data.batch import Batch
from energy_flow.data.dataset import PairDataset, build_dataset
from energy_flow.data.loader import build_loader
from energy_flow.energy_config import EnergyConfig
from energy_flow.model import build_model
from energy_flow.training.energy_trainer import build_optimizer
from energy_flow.training.gradient_control import GradientControl

NO_CLIPPING = 1e30
CLIP_NORMS = (0.1, 0.3, 1.0, 3.0, NO_CLIPPING)
CALM, BAD_BATCHES, HIGH_RATE = "calm", "bad batches", "high learning rate"

BAD_BATCH_INTERVAL = 15
BAD_BATCH_WEIGHT = 100.0
"""A batch of noise alone does little harm; one whose loss is out of scale too is what clipping is for."""

HIGH_RATE_FACTOR = 4.0
LAST_STEPS = 10

TITLE = "# Which norm gradients are clipped at\n"
METHOD = """
`cpu_demo` with {steps} steps, without word dropout and with the loader in the training process; one torch thread.
Each figure is the mean over {seeds} seeds, its range behind it. *Bad batches*: every {interval}th batch has noise for
embeddings and its loss counts {weight:.0f}-fold. *High learning rate*: {factor:.0f} times that of `cpu_demo`. The
final loss is the mean over the last {last} steps; the largest jump is that of the loss from one step to the next.
Both leave planted batches out.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How one run went; planted batches are left out of the losses."""

    final_loss: float
    clipped_share: float
    largest_jump: float
    median_norm: float


@click.command()
@click.option("--seeds", default=2, show_default=True)
@click.option("--steps", default=60, show_default=True)
@click.option("--write", type=click.Path(path_type=Path), help="Also write the table to this file.")
def main(seeds: int, steps: int, write: Path | None) -> None:
    """Print a table row for every kind of trouble and norm."""
    start, machine = time.monotonic(), machine_line()
    torch.set_num_threads(1)
    troubles = (CALM, BAD_BATCHES, HIGH_RATE)
    runs = list(itertools.product(troubles, CLIP_NORMS, range(seeds)))
    random.Random(0).shuffle(runs)
    outcomes: dict[tuple[str, float], list[Outcome]] = {}
    with tempfile.TemporaryDirectory() as folder:
        dataset = build_dataset(_config(CALM, 1.0, 0, steps), Path(folder) / "data")
        for trouble, clip_norm, seed in runs:
            outcome = train(_config(trouble, clip_norm, seed, steps), dataset, trouble)
            click.echo(f"{trouble}, {clip_norm:g}, seed {seed}: {outcome}", err=True)
            outcomes.setdefault((trouble, clip_norm), []).append(outcome)
    method = METHOD.format(
        steps=steps,
        seeds=seeds,
        interval=BAD_BATCH_INTERVAL,
        weight=BAD_BATCH_WEIGHT,
        factor=HIGH_RATE_FACTOR,
        last=LAST_STEPS,
    )
    head = "| trouble | clip norm | final loss | share of steps clipped | largest loss jump | median gradient norm |"
    rows = [_row(key, outcomes[key]) for key in itertools.product(troubles, CLIP_NORMS)]
    took = f"\nMeasured in {(time.monotonic() - start) / 60:.0f} minutes."
    text = "\n".join([TITLE, machine, method, head, "| --- " * 6 + "|", *rows, took])
    click.echo(text)
    if write is not None:
        write.write_text(f"{text}\n", encoding="utf-8")


def train(config: EnergyConfig, dataset: PairDataset, trouble: str) -> Outcome:
    """Train from new weights and note loss and gradient norm of every step."""
    device = torch.device("cpu")
    model = build_model(config)
    optimizer = build_optimizer(config, model)
    control = GradientControl(config, model, optimizer, device)
    losses: list[float] = []
    norms: list[float] = []
    for batch, weight in _planted(build_loader(config, dataset, device), trouble):
        loss = model(batch).total
        control.backward(loss * weight)
        norms.append(float(control.step().norm))
        optimizer.zero_grad()
        if weight == 1:
            losses.append(loss.item())
    return Outcome(
        final_loss=fmean(losses[-LAST_STEPS:]),
        clipped_share=fmean(norm > config.optimizer.gradient_clip_norm for norm in norms),
        largest_jump=max(after - before for before, after in itertools.pairwise(losses)),
        median_norm=sorted(norms)[len(norms) // 2],
    )


def _config(trouble: str, clip_norm: float, seed: int, steps: int) -> EnergyConfig:
    rate = load_config("cpu_demo").optimizer.learning_rate * (HIGH_RATE_FACTOR if trouble == HIGH_RATE else 1)
    assignments = [
        f"training.steps={steps}",
        f"training.seed={seed}",
        f"optimizer.learning_rate={rate}",
        f"optimizer.gradient_clip_norm={clip_norm}",
        "data.word_dropout=0",
        "data.num_workers=0",
    ]
    return load_config("cpu_demo", assignments=assignments)


def _planted(batches: Iterable[Batch], trouble: str) -> Iterator[tuple[Batch, float]]:
    """The batches, each with the weight that its loss has."""
    noise = torch.Generator().manual_seed(0)
    for number, batch in enumerate(batches, start=1):
        if trouble != BAD_BATCHES or number % BAD_BATCH_INTERVAL:
            yield batch, 1.0
            continue
        shape = batch.target_embedding.shape
        made = [functional.normalize(torch.randn(shape, generator=noise), dim=-1) for _ in range(2)]
        yield batch._replace(input_embedding=made[0], target_embedding=made[1]), BAD_BATCH_WEIGHT


def _row(key: tuple[str, float], outcomes: list[Outcome]) -> str:
    trouble, clip_norm = key
    cells = (
        trouble,
        "none" if clip_norm == NO_CLIPPING else f"{clip_norm:g}",
        _spread([outcome.final_loss for outcome in outcomes]),
        f"{fmean(outcome.clipped_share for outcome in outcomes):.0%}",
        _spread([outcome.largest_jump for outcome in outcomes]),
        f"{fmean(outcome.median_norm for outcome in outcomes):.2f}",
    )
    return f"| {' | '.join(cells)} |"


def _spread(values: list[float]) -> str:
    return f"{fmean(values):.4f} ({min(values):.4f} to {max(values):.4f})"


if __name__ == "__main__":
    main()
