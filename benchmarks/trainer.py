"""How fast energy_flow trains: beside a naive loop on the CPU, and against the card's ceilings: `make bench-trainer`.

The first table is trainer against loop at `debug` size, the second what two settings cost or win at `cpu_demo` size,
the third a GPU's. Every ratio is the median over rounds in which both sides took turns, with its interval at 95 %.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import click
import torch

from benchmarks.intervals import Estimate, median_with_interval
from benchmarks.machine import machine_line
from benchmarks.trainer_device import device_lines
from benchmarks.trainer_steps import TimedStep, naive_step, trainer_step
from energy_flow.config_parsing import load_config
from energy_flow.errors import EnergyFlowError

MIN_RATIO = 40.0
"""Samples per second of the trainer over the naive loop's, at `debug` size on the CPU."""

MAX_LOSS_DIFFERENCE, MAX_GRADIENT_DIFFERENCE = 1e-4, 1e-3
"""Sums of float32 in another order; a gradient is compared with the largest number in its own parameter's."""

STEPS_PER_ROUND = 20
"""Trainer steps beside one naive step: still a fraction of its time, and long enough to time well."""

VARIANTS = {
    "runtime.compile=true": ["runtime.compile=true"],
    "flow.checkpoint_steps=4": ["flow.checkpoint_steps=4"],
    "both": ["runtime.compile=true", "flow.checkpoint_steps=4"],
}

METHOD = """
The trainer's step is all that `EnergyTrainer.train_batch` does, metrics included but for their file; the naive one is
forward, backward, clipping and AdamW. Both are on one batch, the same at every step and already in memory: loading
data is not in it. The learning rate is zero, so that the weights stay the same too. On the CPU one torch thread runs
and times are CPU times, which neighbours on the machine disturb less than the clock on the wall; samples/s are by the
same clock.
"""


@click.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cuda" if torch.cuda.is_available() else "cpu")
@click.option("--rounds", type=click.IntRange(min=1), default=9, show_default=True, help="In which all sides run once.")
@click.option("--write", type=click.Path(path_type=Path), help="Also write the tables to this file.")
def main(device: str, rounds: int, write: Path | None) -> None:
    """Print the tables and one line per requirement; exits with 1 where one is not held."""
    said: list[str] = []

    def say(*lines: str) -> None:
        said.extend(lines)
        click.echo("\n".join(lines))

    torch.set_num_threads(1)
    gpu = torch.cuda.get_device_name() if device == "cuda" else ""
    say("# How fast energy_flow trains", "", machine_line(gpu), METHOD)
    for line in (*naive_lines(rounds), *variant_lines(rounds), *device_lines(device)):
        say(line)
    if write is not None:
        write.parent.mkdir(parents=True, exist_ok=True)
        write.write_text("\n".join(said) + "\n", encoding="utf-8")
    sys.exit(any(" not held: " in line for line in said))


def naive_lines(rounds: int) -> Iterator[str]:
    """The trainer beside the naive loop: same weights, same batch, by turns."""
    config = load_config("debug")
    trainer, naive = trainer_step(config, torch.device("cpu")), naive_step(config)
    loss, gradient = differences(trainer, naive)
    is_equal = loss <= MAX_LOSS_DIFFERENCE and gradient <= MAX_GRADIENT_DIFFERENCE
    times = take_turns([partial(_seconds, trainer, STEPS_PER_ROUND), partial(_seconds, naive, 1)], rounds)
    ratio = median_with_interval([slow / fast for fast, slow in times])
    yield "## Beside one neuron and one carrier call per flow and flow step, one model call per text: `debug`, CPU"
    yield from ("", "| side | step, ms | samples/s |", "| --- | --- | --- |")
    for name, step, seconds in zip(("trainer", "naive loop"), (trainer, naive), zip(*times, strict=True), strict=True):
        time_ms = median_with_interval([1000 * one for one in seconds])
        rate = median_with_interval([step.num_samples / one for one in seconds])
        yield f"| {name} | {spread(time_ms, '.1f')} | {spread(rate, '.1f')} |"
    yield ""
    yield (
        f"- Equal numbers {'held' if is_equal else 'not held'}: losses differ by {loss:.1e} at most, at most "
        f"{MAX_LOSS_DIFFERENCE:.0e}; gradients by {gradient:.1e} of the parameter's largest, at most "
        f"{MAX_GRADIENT_DIFFERENCE:.0e}."
    )
    yield speed_requirement(ratio)


def variant_lines(rounds: int) -> Iterator[str]:
    """What compiling and checkpointing make of the step's time at `cpu_demo` size."""
    yield from ("", "## Settings against the default: `cpu_demo`, CPU", "")
    yield from ("| setting | step, ms | time over the default's |", "| --- | --- | --- |")
    plain = _cpu_demo_step([])
    for name, assignments in VARIANTS.items():
        try:
            step = _cpu_demo_step(assignments)
        except EnergyFlowError as error:
            yield f"| {name} | not measured: {error} | |"
            continue
        times = take_turns([partial(_seconds, step, 1), partial(_seconds, plain, 1)], rounds)
        time_ms = median_with_interval([1000 * with_it for with_it, _ in times])
        ratio = median_with_interval([with_it / without for with_it, without in times])
        yield f"| {name} | {spread(time_ms, '.0f')} | {spread(ratio, '.2f')} |"
    yield ""


def speed_requirement(ratio: Estimate) -> str:
    """Whether the trainer is as much faster than the naive loop as it must be."""
    verdict = "held" if ratio.value >= MIN_RATIO else "not held"
    return f"- Speed over the naive loop {verdict}: {spread(ratio, '.0f')} times, at least {MIN_RATIO:.0f} times."


def differences(one: TimedStep, other: TimedStep) -> tuple[float, float]:
    """The largest difference between two steps' losses, and of gradients by the largest one of the same parameter."""
    losses = zip(one.run(), other.run(), strict=True)
    by_loss = [(left.detach() - right.detach()).abs() for left, right in losses]
    by_gradient = [
        (left - right).abs().max() / right.abs().max()
        for left, right in zip(one.gradients(), other.gradients(), strict=True)
    ]
    return float(torch.stack(by_loss).max()), float(torch.stack(by_gradient).max())  # NaN where any of them is


def take_turns(sides: Sequence[Callable[[], float]], rounds: int) -> list[tuple[float, ...]]:
    """Every side's seconds, round by round; each side runs once before the first."""
    for side in sides:
        side()
    return [tuple(side() for side in sides) for _ in range(rounds)]


def spread(estimate: Estimate, form: str) -> str:
    """A median and its interval; few rounds give none."""
    if math.isinf(estimate.low):
        return f"{estimate.value:{form}} (too few rounds)"
    return f"{estimate.value:{form}} ({estimate.low:{form}} to {estimate.high:{form}})"


def _cpu_demo_step(assignments: Sequence[str]) -> TimedStep:
    """A step that has run, so that what must be compiled is."""
    step = trainer_step(load_config("cpu_demo", assignments=assignments), torch.device("cpu"))
    step.run()
    return step


def _seconds(step: TimedStep, num_steps: int) -> float:
    start = time.process_time()
    for _ in range(num_steps):
        step.run()
    return (time.process_time() - start) / num_steps


if __name__ == "__main__":
    main()
