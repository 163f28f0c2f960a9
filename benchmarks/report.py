"""What a report costs: `make bench-report`. CPU seconds of `efprof report`, for runs of 80 and of 3,000 steps and of 64
ranks, and where they go.

The first run is the demo's sick one, recorded if need be; the others are made of it. Seconds are compared with a
plain loop of Python, timed by turns with the reports: a core that runs it in 0.3 s is to make the first report in 2.
"""

import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from types import FrameType
from typing import Final

import click
import msgspec

import efprof
from benchmarks.machine import machine_line
from efprof.artifacts.runs import find_run
from efprof.artifacts.steps import STEPS_FILE, StepRecord, read_steps
from efprof.model import EfprofError

SICK = ("efprof", "record", "--name", "demo-sick", "--", "python", "tests/casebook/energy_flow_history.py")
PLAIN_LOOP = "for i in range(10**7): pass"
PLAIN_LOOP_S: Final = 0.3
MAX_S: Final = 2.0
"""Of the demo's report, on a core that runs the plain loop in 0.3 s."""
SAMPLE_S: Final = 0.002

PACKAGE = str(Path(efprof.__file__).parent)
PARTS: Final = {
    f"{PACKAGE}/artifacts": "reading",
    f"{PACKAGE}/facts": "facts",
    f"{PACKAGE}/fixes": "audits",
    f"{PACKAGE}/audits": "audits",
    f"{PACKAGE}/report/charts": "pictures",
    f"{PACKAGE}/report": "page",
}
IMPORTS, REST = "imports", "rest"
NAMES: Final = (IMPORTS, "reading", "facts", "audits", "pictures", "page", REST)


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Reports of each run; medians are shown.")
@click.option("--write", type=click.Path(path_type=Path), help="Also write the table to this file.")
@click.option("--one", type=click.Path(path_type=Path), hidden=True)
def main(rounds: int, write: Path | None, one: Path | None) -> None:
    """Print one table row per run; exits with 1 where the first takes longer than it may."""
    if one is not None:
        print(json.dumps(_sampled(one)))
        return
    lines = ["# What a report costs", "", machine_line(), ""]
    lines += [f"| run | CPU | of the plain loop's | {' | '.join(NAMES)} |", f"|{' --- |' * (3 + len(NAMES))}"]
    with tempfile.TemporaryDirectory() as made:
        runs = _runs(Path(made))
        seconds: dict[str, list[float]] = {name: [] for name in (*runs, PLAIN_LOOP)}
        for _ in range(rounds):
            seconds[PLAIN_LOOP].append(_cpu_s([sys.executable, "-c", PLAIN_LOOP]))
            for name, folder in runs.items():
                page = ["--out", str(Path(made) / "report.html")]
                seconds[name].append(_cpu_s([sys.executable, "-m", "efprof", "report", str(folder), *page]))
        shares = {name: _shares(folder) for name, folder in runs.items()}
    took = {name: statistics.median(found) for name, found in seconds.items()}
    for name in runs:
        parts = " | ".join(f"{shares[name].get(part, 0.0):.0%}" for part in NAMES)
        lines.append(f"| {name} | {took[name]:.2f} s | {took[name] / took[PLAIN_LOOP]:.1f} times | {parts} |")
    first, long, wide = (took[name] for name in runs)
    most_s = MAX_S * took[PLAIN_LOOP] / PLAIN_LOOP_S
    lines += [
        "",
        f"The plain loop, `{PLAIN_LOOP}`, takes {took[PLAIN_LOOP]:.2f} s on this core: the demo's report may take "
        f"{most_s:.2f} s, and takes {first:.2f}. A further step costs {(long - first) / (3000 - 80) * 1e6:.0f} us, "
        f"a further rank {(wide - first) / 63 * 1e3:.1f} ms.",
    ]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if write is not None:
        write.write_text(text, encoding="utf-8")
    sys.exit(first > most_s)


def _runs(made: Path) -> dict[str, Path]:
    """The demo's run, the same as if it had gone on, and as if 64 processes had trained."""
    try:
        demo = find_run("demo-sick")
    except EfprofError:
        subprocess.run([str(Path(sys.executable).parent / SICK[0]), *SICK[1:], "--config", "cpu_demo"], check=True)
        demo = find_run("demo-sick")
    long, wide = made / "long", made / "wide"
    for folder in (long, wide):
        shutil.copytree(demo, folder)
    steps = read_steps(demo / "rank0")[0]
    (long / "rank0" / STEPS_FILE).write_bytes(
        b"".join(msgspec.json.encode(_later(steps[number % len(steps)], number)) + b"\n" for number in range(3000))
    )
    for rank in range(1, 64):
        shutil.copytree(demo / "rank0", wide / f"rank{rank}")
    return {f"the demo's, {len(steps)} steps": demo, "3,000 steps": long, "64 ranks": wide}


def _later(step: StepRecord, number: int) -> StepRecord:
    return msgspec.structs.replace(step, step=number, started_ns=step.started_ns + number * 1_000_000_000)


def _cpu_s(command: list[str]) -> float:
    before = getrusage(RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _shares(folder: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.report", "--one", str(folder)]
    counted: dict[str, int] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {part: number / sum(counted.values()) for part, number in counted.items()}


def _sampled(folder: Path) -> Counter[str]:
    """Where the process is, every two milliseconds of its CPU time."""
    counted = Counter[str]()

    def look(_: int, frame: FrameType | None) -> None:
        counted[_part_of(frame)] += 1

    signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)
    from efprof.commands.report import analyse, render

    report = analyse(folder)
    render(report, "html")
    render(report, "text")
    signal.setitimer(signal.ITIMER_PROF, 0)
    return counted


def _part_of(frame: FrameType | None) -> str:
    """By the innermost function that belongs to one."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith("<frozen importlib"):
            return IMPORTS
        for folder, part in PARTS.items():
            if file.startswith(f"{folder}/"):
                return part
        frame = frame.f_back
    return REST


if __name__ == "__main__":
    main()
