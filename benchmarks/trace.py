"""What it costs to read a profiler's trace, beside a bare decoding and other people's tools: `make bench-trace`.

Small and middle files are real ones; the large are made of real ones. All works take turns, each in a fresh process.
"""

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from benchmarks.machine import machine_line
from benchmarks.recording.processes import ROOT
from benchmarks.tracing import works
from benchmarks.tracing.made import make_ranks
from benchmarks.tracing.table import (
    ALONE,
    BARE,
    BY_TWO,
    HTA,
    HUGE,
    MB,
    TABLE_HEAD,
    Row,
    ranks_lines,
    report_lines,
    requirements,
    table_line,
)
from efprof.artifacts.trace.blocks import TraceText

TRACES: Final = ROOT.parent / "shared" / "data" / "traces"
SMALL: Final = "tracelens__h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
MIDDLE: Final = "hta__df_index_resolver__df_index_resolver.json.gz"
REPEATED: Final = ("hta__trace_diff__control__control.json.gz", MIDDLE)
"""The large files are made of them by turns: one with the shapes of inputs, one with memory events."""
RANKS: Final = "hta__nccl_parser_config__nccl_data.json.gz"
LARGE: Final = (300 * MB, 1000 * MB)
HTA_EVERY_ROUND: Final = 60 * MB
"""In larger files it takes a minute, and is timed once; in the largest, never."""
REPORT_ROUNDS: Final = 3

METHOD: Final = """
All works unpack the file (`isal`). Bare is to decode each block of its events into typed structs (`msgspec`) and to
keep none. Ours makes sorted columns of them, in one process or in two. HTA is `TraceAnalysis` of HolisticTraceAnalysis,
which makes a table of them. Each work is a process of its own, timed from after its imports; they take turns, in random
order, in {rounds} rounds. Times and ratios are medians, ratios of works in the same round; CPU is of all processes of a
work. Peaks are of whole processes, imports included; of two together, looked at every 30 ms in a run of its own. MB are
10^6 bytes. Files from {large} on are made: the events of a real one again and again, later each time, with ids of their
own. HTA reads files of more than 60 MB in the first round alone, and none of 1 GB.
"""


@click.command()
@click.option("--traces", type=click.Path(path_type=Path), default=TRACES, help="A folder of real traces.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="In which all works run once.")
@click.option("--large", type=int, multiple=True, default=LARGE, show_default=True, help="Bytes of each made file.")
@click.option("--ranks", default=64, show_default=True, help="Made traces of one training, for a report of all.")
@click.option("--quick", is_flag=True, help="Leave out the file of 1 GB, and HTA on more than 60 MB.")
@click.option("--hta", type=click.Path(path_type=Path), help="A Python that has HTA (pip install traceinsight).")
@click.option("--tracelens", type=click.Path(path_type=Path), help="A Python that has AMD's TraceLens (from GitHub).")
@click.option("--write", type=click.Path(path_type=Path), help="Also write the tables to this file.")
def main(
    traces: Path,
    rounds: int,
    large: Sequence[int],
    ranks: int,
    quick: bool,
    hta: Path | None,
    tracelens: Path | None,
    write: Path | None,
) -> None:
    """Print one row per file and one line per requirement; exits with 1 where one is not held."""
    start = time.monotonic()
    said: list[str] = []

    def say(*lines: str) -> None:
        said.extend(lines)
        click.echo("\n".join(lines))

    say("# What it costs to read a profiler's trace", "", machine_line())
    say(METHOD.format(rounds=rounds, large=f"{min(large) / MB:,.0f} MB"))
    sizes = [size for size in large if not (quick and size >= HUGE)]
    if all((traces / name).is_file() for name in (SMALL, RANKS, *REPEATED)):
        most_hta = HTA_EVERY_ROUND if quick else HUGE
        for line in _all_lines(traces, sizes, rounds, hta, most_hta, tracelens):
            say(line)
        say(*_of_ranks(traces / RANKS, ranks))
    else:
        say(f"Left out: {traces} has not {SMALL}, {' and '.join(REPEATED)}.")
    say("", f"Measured in {(time.monotonic() - start) / 60:.0f} minutes.")
    if write is not None:
        write.write_text("\n".join(said) + "\n", encoding="utf-8")
    sys.exit(any(" not held: " in line for line in said))


def _all_lines(
    traces: Path, sizes: Sequence[int], rounds: int, hta: Path | None, most_hta: int, tracelens: Path | None
) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="efprof-benchmark-") as made:
        files = [traces / SMALL, traces / MIDDLE, *_made(traces, Path(made), sizes)]
        rows = measure(files, rounds, hta, most_hta)
        yield TABLE_HEAD
        for row in rows:
            yield table_line(row, "not installed" if hta is None else "not measured")
        yield ""
        yield from requirements(rows)
        yield f"\n## A whole report of {rows[1].name}\n"
        yield from report_lines(*_reports(traces / MIDDLE, Path(made), tracelens))


def _of_ranks(source: Path, num_ranks: int) -> Iterator[str]:
    """On one processor and on two: each rank is read by a process of its own, as many at once as processors."""
    yield f"\n## A report of {num_ranks} ranks, each like {source.name.split('__')[1]}\n"
    with tempfile.TemporaryDirectory(prefix="efprof-benchmark-") as made:
        folder = make_ranks(source, Path(made) / "ranks", num_ranks)
        commands = {num: works.report_on_processors(num, folder, Path(made) / "page.html") for num in (1, 2)}
        yield from ranks_lines([(num, works.whole_of(command)) for num, command in commands.items()])


def measure(files: Sequence[Path], rounds: int, hta: Path | None, most_hta: int) -> list[Row]:
    """Every work on every file once in each round, in random order."""
    order = random.Random(0)
    rows = [Row(name=file.name.split("__")[-2], num_bytes=_num_bytes(file)) for file in files]
    for number in range(rounds):
        for row, file in zip(rows, files, strict=True):
            commands = {
                BARE: works.ours(works.bare, file),
                ALONE: works.ours(works.alone, file),
                BY_TWO: works.ours(works.by_two, file),
            }
            is_often = number == 0 or row.num_bytes <= HTA_EVERY_ROUND
            if hta is not None and row.num_bytes < most_hta and is_often:
                commands[HTA] = works.hta(hta, file)
            for name in order.sample(list(commands), len(commands)):
                row.costs.setdefault(name, []).append(works.cost_of(commands[name]))
    for row, file in zip(rows, files, strict=True):
        row.peak_by_two = works.whole_of(works.ours(works.by_two, file)).peak_bytes
    return rows


def _made(traces: Path, folder: Path, sizes: Sequence[int]) -> Iterator[Path]:
    """Made in processes of their own: this one's memory stays small."""
    for number, size in enumerate(sizes):
        source = traces / REPEATED[number % len(REPEATED)]
        name = source.name.split("__")[-2]
        target = folder / f"made__{name} repeated__{size}.json.gz"
        module = [sys.executable, "-m", "benchmarks.tracing.made"]
        subprocess.run([*module, str(source), str(target), str(size)], cwd=ROOT, check=True)
        yield target


def _num_bytes(file: Path) -> int:
    """Unpacked."""
    return sum(map(len, TraceText(file).blocks()))


def _reports(file: Path, folder: Path, tracelens: Path | None) -> tuple[list[works.Whole], list[works.Whole]]:
    ours, theirs = [], []
    for number in range(REPORT_ROUNDS):
        ours.append(works.whole_of(works.report(file, folder / "report.html")))
        if tracelens is not None and number == 0:
            theirs.append(works.whole_of(works.tracelens(tracelens, file, folder / "report.xlsx")))
    return ours, theirs


if __name__ == "__main__":
    main()
