"""Whole runs of the sides of a comparison, one after another, with every step recorded in full."""

import time
from collections.abc import Callable
from pathlib import Path

from efprof.compare.sides.starting import LOG, Training
from efprof.compare.sides.trees import SIDES, Tree
from efprof.model import NotComparable
from efprof.units import format_duration

OPTIONS = ("--overhead", "100%")
"""Counts of steps that were recorded in part differ by chance: 0.14 to 0.17 reads per step where 0.10 is true."""
NUM_RUNS = 2
ORDER = (0, 1, 1, 0)
"""Base, head, head, base: what changes on the machine meanwhile meets both."""


def record_sides(
    trees: tuple[Tree, Tree], training: Training, *, home: Path, end: float, say: Callable[[str], None]
) -> tuple[list[Path], list[Path]]:
    """Two run folders of each tree, below `home`.

    Raises NotComparable where a side trained nothing, ran code of the user's tree, or was not done at the instant
    `end` of the monotonic clock.
    """
    found: tuple[list[Path], list[Path]] = ([], [])
    start = time.monotonic()
    for place, number in enumerate(ORDER):
        tree, runs = trees[number], found[number]
        spent = time.monotonic() - start
        left = f", {format_duration(spent / place * (len(ORDER) - place))} left" if place else ""
        say(f"recording '{tree.ref}', run {len(runs) + 1} of {NUM_RUNS}{left}")
        with tree.fresh() as fresh:
            runs.append(_record(fresh, training, home / f"{SIDES[number]}-{len(runs) + 1}", end))
    return found


def _record(tree: Tree, training: Training, home: Path, end: float) -> Path:
    with training.started_in(tree, home, OPTIONS, {}) as command:
        is_done = command.wait(end - time.monotonic())
    if not is_done:
        raise NotComparable(
            f"'{tree.ref}' was not done in time: give --steps, or --max-minutes; it said so far: {home / LOG}."
        )
    training.check(tree, home)
    run = next((file.parent for file in home.glob("runs/*/run.json")), home)
    if not any(run.rglob("steps.jsonl")):
        raise NotComparable(f"'{tree.ref}' trained nothing: {training.said(tree, home)}.")
    return run
