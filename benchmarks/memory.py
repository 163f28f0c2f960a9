"""How truly a recorded GPU memory history is replayed, and how long a large one takes: `make bench-memory`.

The first table replays other people's recordings, the second reads and replays a made one of a million events, beside
what torch's own `_memory_viz.py` does with the same file. Each work is a process of its own, from start to end.
"""

import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from efprof.artifacts.snapshot import Snapshot, read_snapshot
from efprof.facts.allocator.history import devices_of, history_of
from efprof.facts.allocator.replay import Replay, replay
from efprof.facts.allocator.settings import parse_configuration
from efprof.facts.allocator.what_if import WhatIf
from efprof.model import NotRecorded, UnreadableInput
from efprof.units import GIB, format_bytes

ROOT: Final = Path(__file__).parents[1]
RECORDINGS: Final = ROOT.parent / "shared" / "data" / "snapshots"

BUDGET_EVENTS: Final = 1_000_000
"""As many as `efprof record` keeps."""

MAX_SECONDS: Final = 15.0
MAX_PEAK_BYTES: Final = 2 * GIB

OTHER_SETTING: Final = "expandable_segments:True"
"""What the advice to a fragmented memory usually is."""

METHOD: Final = """
Equal are the addresses of allocations, and the addresses and sizes of what was asked of the driver. The prediction
under the recorded settings starts from the state that the recording began with, the cold start with nothing but what
was allocated then: so a prediction for other settings starts, and by so much it may be off. Events per second are those
of finding that state and replaying, without reading the file.
"""

SPEED_METHOD: Final = """
Each figure is the median over {rounds} rounds; in a round all works take turns in random order, each in a process of
its own that starts Python, reads the file, does its work and ends. Peak memory is that process's largest resident set.
The ratios are the medians of each round's ratio to the named one. `stats` sums the segments up and `trace` writes the
events down as text; `trace_plot` packs the file into a page, whose script then replays it in the browser. None of them
models the allocator. {events:,} events of a made training, with Python stacks: a file of {file}.
"""


@click.command()
@click.option("--events", type=click.IntRange(min=1), default=BUDGET_EVENTS, show_default=True, help="In the made one.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Of every work.")
@click.option("--recordings", type=click.Path(path_type=Path), default=RECORDINGS, help="A folder of snapshots.")
@click.option("--write", type=click.Path(path_type=Path), help="Also write the tables to this file.")
def main(events: int, rounds: int, recordings: Path, write: Path | None) -> None:
    """Print both tables and one line per budget; exits with 1 where a budget is not held."""
    said: list[str] = []
    for line in [*describe_machine(), *truth_of(recordings), *speed_of(events, rounds)]:
        said.append(line)
        click.echo(line)
    if write is not None:
        write.write_text("\n".join(said) + "\n", encoding="utf-8")
    sys.exit(any(" not held: " in line for line in said))
