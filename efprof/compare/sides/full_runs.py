"""Whole runs of the sides of a comparison, one after another, with every step recorded in full."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from efprof.compare.sides.starting import LOG, CannotTell, Training
from efprof.compare.sides.trees import Tree
from efprof.model import NotComparable
from efprof.processes import STEPS_VARIABLE
from efprof.units import format_duration

OPTIONS = ("--overhead", "100%")
"""Counts of steps that were recorded in part differ by chance: 0.14 to 0.17 reads per step where 0.10 is true."""
NUM_RUNS = 2


def record_sides(
    trees: Sequence[Tree], training: Training, home: Path, end: float, say: Callable[[str], None]
) -> list[list[Path]]:
    """Two run folders of each tree, below `home`; base's are the first and the last.

    Raises NotComparable where a side trained nothing, ran code of the user's tree, or was not done at the instant
    `end` of the monotonic clock.
    """
    found: list[list[Path]] = [[] for _ in trees]
    order = [0, *(number for number in range(1, len(trees)) for _ in range(NUM_RUNS)), 0]
    start = time.monotonic()
    for num_done, number in enumerate(order):
        tree, runs = trees[number], found[number]
        spent = time.monotonic() - start
        left = f", {format_duration(spent / num_done * (len(order) - num_done))} left" if num_done else ""
        say(f"recording {tree.name} '{tree.ref}', run {len(runs) + 1} of {NUM_RUNS}{left}")
        runs.append(record_run(tree, training, home / f"{tree.name}-{len(runs) + 1}", end))
    return found


def record_run(source: Tree, training: Training, home: Path, end: float) -> Path:
    """The folder of a run of this tree; raises NotComparable as `record_sides` does."""
    with source.fresh() as tree:
        variables = {} if training.num_steps is None else {STEPS_VARIABLE: str(training.num_steps)}
        with training.started_in(tree, home, OPTIONS, variables) as command:
            is_done = command.wait(end - time.monotonic())
        if not is_done:
            raise CannotTell(
                f"'{tree.ref}' was not done in time: give --steps, or --max-minutes; it said so far: {home / LOG}."
            )
        training.check(tree, home)
        run = next((file.parent for file in home.glob("runs/*/run.json")), home)
        if not any(run.rglob("steps.jsonl")):
            raise NotComparable(f"'{tree.ref}' trained nothing: {training.said(tree, home)}.")
    return run
