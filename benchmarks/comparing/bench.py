"""How often `efprof compare` calls a side slower that is not, and finds a planted 5 %: `make bench-compare`.

Live pairs of processes take turns as in a comparison: of the same program, and of one against the same with 5 % more
work. Reports are then drawn from these pairs, of one program and load each, half of a report's with either order of
start, and judged as a comparison is: after four pairs, and after eight where these do not tell.
"""

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from benchmarks.comparing import programs
from benchmarks.machine import machine_line
from efprof.compare.sides.starting import Training
from efprof.compare.sides.trees import Tree
from efprof.compare.sides.turns import KEEPS_MEMORY, MAX_TURNS, alive_sides, times_of, untils_of
from efprof.compare.times import LOOKS, SideTimes, TurnTimes, compare_times, is_decided

SAME_PROGRAM = "A/A"
NUM_REPORTS = 10_000
PLANTED = 0.05
NUM_LOADS = 2
BLOCKS = 60
MANY = 400
"""Products, to learn what one costs."""
MAX_SECONDS = 300.0
"""Of a pair of processes."""

Kind = tuple[str, str, str]
"""`A/A` or `planted`, the program, `quiet` or `busy`."""


@click.command()
@click.option("--rounds", default=8, show_default=True, help="Pairs of processes of each kind and program; even.")
@click.option("--busy-rounds", default=4, show_default=True, help="The same beside two busy loops.")
@click.option("--out", type=click.Path(path_type=Path), help="Also keep all times in this file.")
@click.option("--again", type=click.Path(exists=True, path_type=Path), help="Judge the times of such a file anew.")
def main(rounds: int, busy_rounds: int, out: Path | None, again: Path | None) -> None:
    """Print spreads by turns, processes and order of start, and how often each verdict came."""
    print(machine_line())
    if again is not None:
        kept = {tuple(kind): found for kind, found in json.loads(again.read_text())}
    else:
        kept = live_pairs({"quiet": rounds, "busy": busy_rounds}, out)
    tell(
        {
            kind: [TurnTimes(pairs=tuple(map(tuple, one)), is_base_first=n % 2 == 0) for n, one in enumerate(found)]
            for kind, found in kept.items()
        }
    )


def live_pairs(rounds: dict[str, int], out: Path | None) -> dict[Kind, list[list[tuple[float, float]]]]:
    """The turns of each pair of processes, by turns of all kinds; base is started first in every second one."""
    found: dict[Kind, list[list[tuple[float, float]]]] = {}
    products = {name: planted_products(name) for name in programs.PROGRAMS}
    with TemporaryDirectory() as folder:
        for load, num in rounds.items():
            with busy(NUM_LOADS if load == "busy" else 0):
                for number, name, (what, planted) in product(
                    range(num), programs.PROGRAMS, ((SAME_PROGRAM, 0), ("planted", 1))
                ):
                    place = Path(folder) / f"{number}-{load}-{name}-{planted}"
                    times = live_pair(place, name, planted * products[name], number)
                    found.setdefault((what, name, load), []).append(list(times.pairs))
                    shutil.rmtree(place)
                    if out is not None:  # as it goes on: it takes half an hour
                        out.write_text(json.dumps([[list(kind), runs] for kind, runs in found.items()]))
    return found


def live_pair(place: Path, name: str, planted: int, number: int) -> TurnTimes:
    root = place / "project"
    trees = []
    for side, products in zip(("base", "head"), (0, planted), strict=True):
        folder = place / "work" / side / "clean" / "project"
        folder.mkdir(parents=True)
        shutil.copy(programs.__file__, folder / "train.py")
        (folder / "products.txt").write_text(str(products))
        trees.append(Tree(ref=side, commit=side, root=root, place=place / "work", folder=folder))
    root.mkdir()
    training = Training(command=(sys.executable, "train.py", name), here=root)
    end = time.monotonic() + MAX_SECONDS
    order = (0, 1) if number % 2 == 0 else (1, 0)
    with alive_sides((trees[0], trees[1]), training, order, place / "runs", end) as sides:
        return times_of(sides, untils_of(sides, MAX_TURNS, number), number, end)


def planted_products(name: str) -> int:
    """As many as make a step 5 % longer, by turns in one process; what they cost is measured once more, and told."""
    step_ms, effect = measured(name, MANY, 10)
    products = max(1, round(MANY * PLANTED / effect))
    step_ms, effect = measured(name, products, BLOCKS)
    print(f"{name}: {step_ms:.1f} ms a step, {products} products make it {effect:+.2%} longer, by turns in one process")
    return products


def measured(name: str, products: int, num_blocks: int) -> tuple[float, float]:
    words = [sys.executable, programs.__file__, name, "--measure", str(num_blocks), "--products", str(products)]
    done = subprocess.run(words, env={**os.environ, **KEEPS_MEMORY}, capture_output=True, text=True, check=True)
    step_ms, effect = json.loads(done.stdout)
    return step_ms, effect


@contextmanager
def busy(num_loops: int) -> Iterator[None]:
    """Beside so many programs that take all they get."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_loops)]
    try:
        yield
    finally:
        for one in loops:
            one.kill()
            one.wait()


def tell(found: dict[Kind, list[TurnTimes]]) -> None:
    """A line for each kind: spreads, the mean, what the order of start does, and 10,000 reports drawn of it."""
    print()
    print("| what | program | load | pairs | spread of turns | of processes | mean | base first | head first "
          "| worse | same | better | unclear |")  # fmt: skip
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    totals: dict[tuple[str, str], Counter[str]] = {}
    for (what, name, load), times in found.items():
        of_turns = statistics.median(statistics.stdev(one.ratios) for one in times)
        each = [one.typical for one in times]
        first, second = each[0::2], each[1::2]
        given = reports([*times, *map(swapped, times)] if what == SAME_PROGRAM else times)
        totals.setdefault((what, load), Counter()).update(given)
        print(
            f"| {what} | {name} | {load} | {len(times)} | {of_turns:.1%} | {statistics.stdev(each):.2%} "
            f"| {statistics.fmean(each):+.2%} | {statistics.fmean(first):+.2%} | {statistics.fmean(second):+.2%} "
            f"| {shares(given)} |"
        )
    for (what, load), given in totals.items():
        print(f"| **{what}** | all | {load} | | | | | | | {shares(given)} |")


def shares(given: Counter[str]) -> str:
    return " | ".join(f"{given[one] / given.total():.1%}" for one in ("worse", "same", "better", "unclear"))


def swapped(times: TurnTimes) -> TurnTimes:
    """The same with head called base: which of two equal sides is which was chance."""
    return TurnTimes(pairs=tuple((head, base) for base, head in times.pairs), is_base_first=not times.is_base_first)


def reports(times: Sequence[TurnTimes]) -> Counter[str]:
    """The verdicts of a comparison's two times together: worse if one is; same only if both are."""
    dice = random.Random(0)
    by_order = [[one for one in times if one.is_base_first is first] for first in (True, False)]
    given = Counter[str]()
    for _ in range(NUM_REPORTS):
        drawn = [dice.choice(by_order[number % 2]) for number in range(LOOKS[-1])]
        if is_decided(drawn[: LOOKS[0]]):
            drawn = drawn[: LOOKS[0]]
        words = {row.verdict for row in compare_times(SideTimes(pairs=tuple(drawn)), {})}
        given[next(word for word in ("worse", "unclear", "better", "same") if word in words)] += 1
    return given


if __name__ == "__main__":
    main()
