"""What recording costs: bare and recorded runs of four loops by turns, `make bench-overhead`.

Each round runs every variant of a loop once, in an order of its own, so that a busy neighbour meets them all
alike. A run's figure is the 20th percentile of its steps (statistics in the time of one run are no samples: runs
are); a variant's is the median over the rounds of its ratio to the bare run of the same round.
"""

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from benchmarks.loops import LOOPS
from efprof.units import format_ms

EFPROF = str(Path(sys.executable).with_name("efprof"))
STEPS = {"mlp": 600, "transformer": 120, "convolutions": 120, "energy_flow": 120}
WARM_UP = 20
WINDOW = (60, 64)
"""Half-open; the steps of a window are compared with the bare run's same steps."""

VARIANTS = ("bare", "always on", "in a window", "torch.profiler alone", "memray alone")


@click.command()
@click.argument("loops", nargs=-1)
@click.option("--rounds", default=7, show_default=True, help="How often each variant is run.")
def main(loops: tuple[str, ...], rounds: int) -> None:
    """Print one table row per loop and variant."""
    print("| loop | variant | step, 20th percentile | ratio to bare | middle half of the rounds | added per step |")
    print("| --- | --- | --- | --- | --- | --- |")
    for loop in loops or tuple(LOOPS):
        for row in measure(loop, rounds):
            print(row, flush=True)


def measure(loop: str, rounds: int) -> list[str]:
    """Run all variants of one loop by turns and describe each beside the bare one."""
    times: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    bare_window: list[float] = []
    for number in range(rounds):
        order = list(VARIANTS)
        random.Random(number).shuffle(order)
        for variant in order:
            steps = run(loop, variant)
            if steps:
                times[variant].append(_typical(steps[slice(*WINDOW)] if variant == "in a window" else steps[WARM_UP:]))
            if variant == "bare":
                bare_window.append(_typical(steps[slice(*WINDOW)]))
    return [
        _row(loop, variant, values, bare_window if variant == "in a window" else times["bare"])
        for variant, values in times.items()
        if values
    ]


def run(loop: str, variant: str) -> list[float]:
    """The steps of one run in milliseconds; empty where the variant's tool is not installed."""
    python = [sys.executable, "-m", "benchmarks.loops", loop, str(STEPS[loop])]
    with tempfile.TemporaryDirectory() as home:
        windows = "none" if variant == "always on" else f"{WINDOW[0]}:{WINDOW[1]}"
        command = {
            "bare": python,
            "always on": [EFPROF, "record", "--windows", windows, "--", *python],
            "in a window": [EFPROF, "record", "--trace-steps", windows, "--triggers", "none", "--", *python],
            "torch.profiler alone": [sys.executable, "-m", "benchmarks.profiled", loop, str(STEPS[loop])],
            "memray alone": [sys.executable, "-m", "memray", "run", "-q", "-o", f"{home}/out.bin", "-m", *python[2:]],
        }[variant]
        if variant == "memray alone" and not shutil.which(str(Path(sys.executable).with_name("memray"))):
            return []
        environment = os.environ | {"EFPROF_HOME": home, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    times: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
    return times


def _typical(steps: list[float]) -> float:
    return statistics.quantiles(steps, n=5)[0] if len(steps) > 1 else steps[0]


def _row(loop: str, variant: str, values: list[float], bare: list[float]) -> str:
    ratios = sorted(value / base for value, base in zip(values, bare, strict=True))
    low, ratio, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    added = statistics.median(value - base for value, base in zip(values, bare, strict=True))
    cells = [
        loop,
        variant,
        format_ms(statistics.median(values)),
        f"{ratio:.3f}",
        f"{low:.3f} to {high:.3f}",
        format_ms(added),
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
