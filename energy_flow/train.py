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
from energy_flow.logs import set_up_logging

if TYPE_CHECKING:  # torch takes seconds to import, and a wrong option should not
    from energy_flow.data.dataset import PairDataset

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

    from energy_flow.folder_lock import claimed, claimed_to_resume
    from energy_flow.processes import first_alone_then_all, joined, processes_of
    from energy_flow.training.device import choose_device
    from energy_flow.training.energy_trainer import EnergyTrainer

    processes, out = processes_of(), out or CACHE / "runs" / config.name
    set_up_logging(config.runtime.log_level, rank=processes.rank)
    claim = claimed_to_resume if resume else claimed
    with joined(processes, choose_device(config.runtime, processes)), claim(out, processes):
        dataset = first_alone_then_all(processes, lambda: _dataset(config, folder), what="the dataset")
        trainer = EnergyTrainer(config, out=out, processes=processes)
        if resume:
            trainer.resume()
        trainer.train(dataset)


@energy_flow.command()
@click.argument("part", default="")
@click.option("--markdown", is_flag=True, help="As a table for the documentation.")
def settings(part: str, markdown: bool) -> None:
    """Say what every setting is, what it may be and what the configurations give it; PART: only names with it."""
    from energy_flow.settings_table import list_settings, markdown_table

    chosen = [setting for setting in list_settings() if part in setting.path]
    if not chosen:
        raise EnergyFlowError(f"no setting has '{part}' in its name; leave it out to see all")
    click.echo(markdown_table(chosen).rstrip() if markdown else "\n".join(map(str, chosen)))


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


@data.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write the dataset to.")
def import_(file: Path, out: Path) -> None:
    """Import a dataset of the older layout, a .pt file, as a dataset folder."""
    from energy_flow.data.old_layout import import_old_dataset

    click.echo(f"{len(import_old_dataset(file, out, NAMED_CONFIGS['debug']))} pairs in {out}")


def _dataset(config: EnergyConfig, folder: Path | None) -> PairDataset:
    from energy_flow.data.dataset import PairDataset, open_or_build_dataset

    if folder is not None:
        return PairDataset(folder, config)
    return open_or_build_dataset(config, CACHE / config.name)


if __name__ == "__main__":
    main()
