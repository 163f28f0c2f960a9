"""The command line: `energy-flow train` and `energy-flow data build`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from energy_flow.config_parsing import load_config
from energy_flow.energy_config import NAMED_CONFIGS, EnergyConfig
from energy_flow.errors import EnergyFlowError

if TYPE_CHECKING:  # torch takes seconds to import, and a wrong option should not
    from energy_flow.data.dataset import PairDataset
    from energy_flow.training.metrics import StepMetrics

CACHE = Path("data/energy_flow")
_WRONG_USAGE = 2


def main() -> None:
    """Run the command line; a mistake of the user's is one sentence and exit code 2."""
    try:
        energy_flow()
    except EnergyFlowError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(_WRONG_USAGE)


@click.group()
def energy_flow() -> None:
    """Train a model that carries one sentence embedding into another through a 3-D lattice."""


def _config_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` the three options that choose a configuration."""
    names = ", ".join(NAMED_CONFIGS)
    options: list[Callable[[Any], Any]] = [
        click.option("--config", "name", default="debug", show_default=True, help=f"One of {names}."),
        click.option("--config-file", type=click.Path(path_type=Path), help="TOML file with fields to change."),
        click.option("--set", "assignments", multiple=True, metavar="SECTION.FIELD=VALUE", help="Change a field."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@energy_flow.command()
@_config_options
@click.option("--data", "folder", type=click.Path(path_type=Path), help="Dataset folder made by `data build`.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the checkpoint and metrics.")
@click.option("--steps", help="Optimizer steps; short for --set training.steps=N.")
@click.option("--device", help="auto, cpu, cuda, cuda:1 or mps; short for --set runtime.device=D.")
@click.option("--seed", help="Short for --set training.seed=N.")
@click.option("--resume", is_flag=True, help="Go on from the checkpoint in the output folder.")
def train(
    name: str,
    config_file: Path | None,
    assignments: tuple[str, ...],
    folder: Path | None,
    out: Path | None,
    steps: str | None,
    device: str | None,
    seed: str | None,
    resume: bool,
) -> None:
    """Train, on the documentation that every Python carries unless --data says otherwise."""
    short = {"training.steps": steps, "runtime.device": device, "training.seed": seed}
    given = (f"{path}={value}" for path, value in short.items() if value is not None)
    config = load_config(name, config_file=config_file, assignments=[*assignments, *given])

    from energy_flow.training.energy_trainer import EnergyTrainer

    trainer = EnergyTrainer(config, out=out or CACHE / "runs" / config.name)
    if resume:
        trainer.resume()
    trainer.train(_dataset(config, folder), say=_say)


@energy_flow.group()
def data() -> None:
    """Make datasets."""


@data.command()
@_config_options
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write the dataset to.")
@click.option("--pairs", type=click.Path(path_type=Path), help="A .tsv or .jsonl file of text pairs.")
def build(name: str, config_file: Path | None, assignments: tuple[str, ...], out: Path, pairs: Path | None) -> None:
    """Embed text pairs by the teacher and write them as a dataset folder."""
    config = load_config(name, config_file=config_file, assignments=assignments)

    from energy_flow.data.dataset import build_dataset

    dataset = build_dataset(config, out, pairs)
    click.echo(f"{len(dataset)} pairs in {out}")


def _dataset(config: EnergyConfig, folder: Path | None) -> PairDataset:
    from energy_flow.data.dataset import PairDataset, open_or_build_dataset

    if folder is not None:
        return PairDataset(folder, config)
    return open_or_build_dataset(config, CACHE / config.name)


def _say(metrics: StepMetrics) -> None:
    click.echo(str(metrics))


if __name__ == "__main__":
    main()
