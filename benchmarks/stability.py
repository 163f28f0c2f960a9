"""Does training stay as it begins? The checklist over four phases on every device there is: `make stability`.

Each phase trains in a process of its own. What this machine cannot check is said, device by device.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click
import torch

from benchmarks.machine import machine_line
from benchmarks.recording.processes import ROOT
from benchmarks.stability_checks import Outcome, Seen, outcomes
from benchmarks.stability_phases import Phase, phases_of
from energy_flow.config_parsing import load_config
from energy_flow.data.dataset import build_dataset

NOT_SEEN = {
    "cpu": "reads by .cpu(), .numpy() or .tolist(), which run no operator there; numbers and texts that Python keeps",
    "cuda": "what the host's memory does",
    "mps": "the device's own memory, for the C allocator's is watched; reads that run no operator",
}
"""By kind of device, what the points would not notice there."""


@click.command()
@click.option("--phases", "wanted", default="", help="Only phases whose name begins so, with commas.")
@click.option("--write", type=click.Path(path_type=Path), help="Also write the tables to this file.")
def main(wanted: str, write: Path | None) -> None:
    """Print a table per device, a row per point and a column per phase; exits with 1 where a point does not hold."""
    start = time.monotonic()
    prefixes = _known(wanted.split(","))
    said: list[str] = []

    def say(*lines: str) -> None:
        said.extend(lines)
        click.echo("\n".join(lines))

    say("# Does training stay as it begins?", "", machine_line())
    with tempfile.TemporaryDirectory(prefix="stability-") as folder:
        build_dataset(load_config("experiment", assignments=["data.max_pairs=2000"]), Path(folder) / "data")
        is_held = True
        for device in ("cpu", "cuda", "mps"):
            if not _is_there(device):
                say("", f"Not checked here: {device}, for this machine has no such device.")
                continue
            results = dict(_results(device, prefixes, Path(folder)))
            say("", f"## {device}", "", *_table(results), "", f"Not seen on {device}: {NOT_SEEN[device]}.")
            is_held = is_held and all(outcome.is_held for column in results.values() for outcome in column)
    say("", f"{'All of it held' if is_held else 'Not all of it held'}; {(time.monotonic() - start) / 60:.0f} minutes.")
    if write is not None:
        write.write_text("\n".join(said) + "\n", encoding="utf-8")
    sys.exit(not is_held)


def _known(prefixes: list[str]) -> list[str]:
    """The same, once each is the beginning of a phase's name: a table without a phase would hold."""
    names = [phase.name for phase in phases_of("cpu")]
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in names):
            raise click.BadParameter(f"no phase begins with '{prefix}'; choose from {', '.join(names)}")
    return prefixes


def _is_there(device: str) -> bool:
    return {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}[device]


def _results(device: str, wanted: list[str], folder: Path) -> Iterator[tuple[str, list[Outcome]]]:
    for phase in phases_of(device):
        if phase.name.startswith(tuple(wanted)):
            click.echo(f"{device}: {phase.name}, {phase.steps} steps", err=True)
            yield phase.name, outcomes(watched(phase, device, folder), phase.steps)


def watched(phase: Phase, device: str, folder: Path) -> Seen:
    """What a child process saw of the phase; one that breaks off shows its error itself, and holds no point."""
    out = folder / f"{device}-{phase.name}"
    arguments = [phase.name, device, str(folder / "data"), str(out)]
    # One size from which memory is asked of the system: glibc otherwise moves it up whenever a large block is freed.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"}
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.stability_watch", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if child.returncode != 0:
        training = phase.config(device).training
        return Seen(batch_size=training.batch_size, clip_norm=0.0, error=f"ended with status {child.returncode}")
    return Seen(**json.loads(child.stdout.splitlines()[-1]))


def _table(results: dict[str, list[Outcome]]) -> list[str]:
    header = ["point", *results]
    rows = [
        [outcomes_of_point[0].point, *(_cell(outcome) for outcome in outcomes_of_point)]
        for outcomes_of_point in zip(*results.values(), strict=True)
    ]
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]


def _cell(outcome: Outcome) -> str:
    return outcome.figure if outcome.is_held else f"NOT HELD: {outcome.figure}"


if __name__ == "__main__":
    main()
