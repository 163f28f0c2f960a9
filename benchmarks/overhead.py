"""What recording costs on ten loops, beside what other tools cost on some of them: `make bench-overhead`.

Every figure is the median over rounds of a block with the tool against a bare block, side by side, in random order;
the interval is that median's, at 95 %. `--modes` asks instead what a light step costs, and what a full one.
"""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from benchmarks.machine import machine_line
from benchmarks.recording.blocks import STEPS_TO_SETTLE
from benchmarks.recording.device_path import DEVICE_HEAD, device_lines
from benchmarks.recording.loops import COMPARED, LOOPS
from benchmarks.recording.measuring import measure, run_bare, run_recorded, run_whole
from benchmarks.recording.modes import MODES_HEAD, MODES_SECONDS, mode_lines
from benchmarks.recording.start_up import START_UP_ROUNDS, measure_start_up
from benchmarks.recording.table import TABLE_HEAD, Row, budgets, row_of, start_up_budget, table_line
from benchmarks.recording.variants import ALWAYS_ON, VARIANTS, Variant

BUSY_LOAD = 0.5
"""Processes that wanted to run, on average over a minute, before the first of ours did."""


METHOD = """
Steps with the tool and without it take turns; each figure is the median over the rounds, with its interval at 95 %.
The always-on hooks are taken out and put back several times a second within one recording, for {seconds:.0f} s
in each of two processes: slices of about 110 ms, recorded and bare, in random order and of random length, so that what
others do on a shared machine cancels out, their first two steps left out. Bursts of full steps come as they do always,
since the recorder's account leaves bare slices out; rounds of 4 s hold several. The first {settle} steps of a
recording, which count towards the stated allowance, are left out; so are windows and counts. They are too rare for
slices, and less than two processes of one program differ by as long as they live (up to 2 %): the column *beyond the
allowance* is what a whole run of {seconds:.0f} s with default options says of them by its own clock (the event
RecordingCost: its seconds for all but steps, less the 3 s that it may spend at the start), over the run's time. The
verdicts add it to the ratio of the slices: at most 1.01 for steps of 5 ms and longer, 1.03 for shorter ones; an
interval across the limit is unclear. The other tiers and torch.profiler are turned on and off within one process, in
random order. memray, TraceML and the last row, bare against bare, are measured between two processes: what that row
shows, theirs may owe to chance. CPU time counts all threads of the training process; on the CPU, what is added per
step goes by it, since neighbours disturb it less; torch has one thread, and the C library keeps the memory that a
step frees, without which page faults make the convolutions' 20 ms 15 to 28. Peak memory is the training process's
largest resident set, less the bare one's. TraceML runs as its README says for a plain loop: `traceml run` in its
default mode, with `traceml.init(mode="auto")` and `trace_step` in the script; its aggregator is another process and
is not counted.
"""


@click.command()
@click.option("--loops", default=",".join(LOOPS), show_default=True, help="Which loops, with commas.")
@click.option("--tools", default="", help="Only tools whose name begins so, with commas, such as 'always on,TraceML'.")
@click.option("--rounds", type=int, help="Pairs of blocks per tool; default: 9 or 12; `always on` takes two minutes.")
@click.option("--seconds", type=float, help="Of turns in each of the two processes of `always on`; default: 60.")
@click.option("--modes", is_flag=True, help="Only what a light step adds, and what a full one.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--write", type=click.Path(path_type=Path), help="Also write the table to this file.")
def main(
    loops: str, tools: str, rounds: int | None, seconds: float | None, modes: bool, device: str, write: Path | None
) -> None:
    """Print one table row per loop and tool, and one line per budget; exits with 1 where one is not held for sure."""
    start = time.monotonic()
    names = loops.split(",")
    for loop in names:
        if loop not in LOOPS:
            raise click.BadParameter(f"{loop!r} is not one of {', '.join(LOOPS)}.", param_hint="--loops")
    lines = _Lines()
    lines.add(*_describe_machine(device))
    if modes:
        lines.add("", *MODES_HEAD)
        for line in mode_lines(names, device, seconds or MODES_SECONDS):
            lines.add(line)
    else:
        chosen = [_shortened(tool, seconds) for tool in VARIANTS if tool.name.startswith(tuple(tools.split(",")))]
        _compare(lines, names, chosen, device, rounds)
        lines.add(start_up_budget(measure_start_up(rounds or START_UP_ROUNDS)))
        if device == "cpu":
            lines.add(*DEVICE_HEAD)
            for line in device_lines():
                lines.add(line)
    lines.add("", f"Measured in {(time.monotonic() - start) / 60:.0f} minutes.")
    if write is not None:
        write.write_text("\n".join(lines.said) + "\n", encoding="utf-8")
    sys.exit(any(" not held: " in line for line in lines.said))


def _shortened(tool: Variant, seconds: float | None) -> Variant:
    return replace(tool, switched_s=seconds) if tool.switched_s and seconds else tool


class _Lines:
    """What was printed so far: a long measurement shows each row when it has it."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def add(self, *lines: str) -> None:
        self.said += lines
        click.echo("\n".join(lines))


def _compare(lines: _Lines, loops: list[str], tools: list[Variant], device: str, rounds: int | None) -> None:
    rows = []
    lines.add(METHOD.format(seconds=max(tool.switched_s for tool in tools), settle=STEPS_TO_SETTLE), *TABLE_HEAD)
    for loop in loops:
        for row in measure_loop(loop, tools, device, rounds=rounds):
            rows.append(row)
            lines.add(table_line(row))
    lines.add("", *(line for row in rows if row.tool == ALWAYS_ON.name for line in budgets(row)))


def measure_loop(loop: str, tools: list[Variant], device: str, *, rounds: int | None) -> Iterator[Row]:
    """The rows of one loop; a tool that did not do its work is left out, with the reason on standard error."""
    bare = run_bare(loop, device)
    for tool in tools:
        if loop not in COMPARED and tool.name != ALWAYS_ON.name:
            continue
        try:
            pairs = measure(tool, loop, device, bare.step_ms, rounds=rounds or tool.rounds)
        except RuntimeError as error:
            click.echo(f"{loop}, {tool.name} is left out: {error}", err=True)
            continue
        is_always_on = tool.name == ALWAYS_ON.name
        peak = run_recorded(loop, device).peak_bytes if is_always_on else pairs[0].tool.peak_bytes
        yield row_of(
            loop,
            tool.name,
            pairs,
            is_by_wall=device == "cuda",
            peak_added_bytes=peak - bare.peak_bytes,
            beyond_share=run_whole(loop, device, bare.step_ms, tool.switched_s) if is_always_on else None,
        )


def _describe_machine(device: str) -> list[str]:
    import torch

    lines = ["# What recording costs", "", machine_line(torch.cuda.get_device_name() if device == "cuda" else "")]
    if os.getloadavg()[0] > BUSY_LOAD:
        lines.append("The machine was busy with other work: the figures are rough, wall-clock ratios most of all.")
    return lines


if __name__ == "__main__":
    main()
