"""How truly a recorded history of GPU memory is replayed, and how long a large one takes: `make bench-memory`.

The first table replays other people's recordings, the second times a made one beside torch's own `_memory_viz.py`.
"""

import sys
import time
from pathlib import Path

import click

from benchmarks.machine import machine_line
from benchmarks.memory.speed import BUDGET_EVENTS, speed_lines
from benchmarks.memory.truth import truth_lines
from benchmarks.recording.processes import ROOT

RECORDINGS = ROOT.parent / "shared" / "data" / "snapshots"


@click.command()
@click.option("--events", type=click.IntRange(min=1), default=BUDGET_EVENTS, show_default=True, help="Of the made one.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="In which all works run once.")
@click.option("--recordings", type=click.Path(path_type=Path), default=RECORDINGS, help="A folder of snapshots.")
@click.option("--write", type=click.Path(path_type=Path), help="Also write the tables to this file.")
def main(events: int, rounds: int, recordings: Path, write: Path | None) -> None:
    """Print one table row per recording and per work, and one line per budget; exits with 1 where one is not held."""
    start = time.monotonic()
    said: list[str] = []

    def say(*lines: str) -> None:
        said.extend(lines)
        click.echo("\n".join(lines))

    say("# How truly GPU memory is replayed, and how long it takes", "", machine_line())
    for line in truth_lines(recordings):
        say(line)
    say(*speed_lines(events, rounds))
    say("", f"Measured in {(time.monotonic() - start) / 60:.0f} minutes.")
    if write is not None:
        write.write_text("\n".join(said) + "\n", encoding="utf-8")
    sys.exit(any(" not held: " in line for line in said))


if __name__ == "__main__":
    main()
