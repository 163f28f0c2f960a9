"""What a report costs: `make bench-report`. CPU seconds of `efprof report`, for runs of 80 to 200,000 steps, of 64
ranks and of a traced step of a million events, and where they go.

The first run is the demo's sick one and the last one `recording/long_step.py`, recorded if need be, which takes a
minute or two; the others are made of the first. Seconds are compared with a plain loop of Python, timed by turns with
the reports: a core that runs it in 0.3 s is to make the first report in 2. None may take longer than 5 s, whatever its
size.
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
from efprof.artifacts.steps import STEPS_FILE, LightLine, StepRecord, read_steps
from efprof.model import EfprofError

SICK = ("efprof", "record", "--name", "demo-sick", "--", "python", "tests/casebook/energy_flow_history.py")
LONG_STEP = ("efprof", "record", "--name", "bench-long-step", "--trace-steps", "3:4", "--")
LONG_PROGRAM = ("python", "-m", "benchmarks.recording.long_step")
PLAIN_LOOP = "for i in range(10**7): pass"
PLAIN_LOOP_S: Final = 0.3
MAX_S: Final = 2.0
"""Of the demo's report, on a core that runs the plain loop in 0.3 s."""
MAX_ANY_S: Final = 5.0
"""Of any run's report."""
MANY_STEPS: Final = 200_000
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
    """Print one table row per run; exits with 1 where one takes longer than it may."""
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
    first, long, _, wide, _ = (took[name] for name in runs)
    longest = max(runs, key=lambda name: took[name])
    most_s = MAX_S * took[PLAIN_LOOP] / PLAIN_LOOP_S
    lines += [
        "",
        f"The plain loop, `{PLAIN_LOOP}`, takes {took[PLAIN_LOOP]:.2f} s on this core: the demo's report may take "
        f"{most_s:.2f} s, and takes {first:.2f}. A further step costs {(long - first) / (3000 - 80) * 1e6:.0f} us, "
        f"a further rank {(wide - first) / 63 * 1e3:.1f} ms. Any report may take {MAX_ANY_S:.0f} s: {longest} takes "
        f"{took[longest]:.2f}.",
    ]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if write is not None:
        write.write_text(text, encoding="utf-8")
    sys.exit(first > most_s or took[longest] > MAX_ANY_S)


def _runs(made: Path) -> dict[str, Path]:
    """The demo's run, the same as if it had gone on, and as if 64 processes had trained; and that of a long step."""
    demo = _recorded("demo-sick", SICK, "--config", "cpu_demo")
    long, longest, wide = made / "long", made / "longest", made / "wide"
    for folder in (long, longest, wide):
        shutil.copytree(demo, folder)
    steps = read_steps(demo / "rank0")[0]
    records = [_later(steps[number % len(steps)], number) for number in range(3000)]
    (long / "rank0" / STEPS_FILE).write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    with (longest / "rank0" / STEPS_FILE).open("ab") as file:
        for first in range(len(steps), MANY_STEPS, 1000):
            file.write(msgspec.json.encode(_light(steps[-1], range(first, min(first + 1000, MANY_STEPS)))) + b"\n")
    for rank in range(1, 64):
        shutil.copytree(demo / "rank0", wide / f"rank{rank}")
    return {
        f"the demo's, {len(steps)} steps": demo,
        "3,000 steps": long,
        f"{MANY_STEPS:,} steps": longest,
        "64 ranks": wide,
        "a step of a million events": _recorded("bench-long-step", LONG_STEP, *LONG_PROGRAM),
    }


def _recorded(name: str, command: tuple[str, ...], *arguments: str) -> Path:
    try:
        return find_run(name)
    except EfprofError:
        program = [str(Path(sys.executable).parent / command[0]), *command[1:], *arguments]
        subprocess.run(program, check=True)
        return find_run(name)


def _light(before: StepRecord, numbers: range) -> LightLine:
    """Steps of which little is known, as most are."""
    starts = (before.started_ns + number * 1_000_000 for number in numbers)
    rows: list[tuple[int, int, float, int, float | str | None, int]]
    rows = [(number, start, 900.0 + number % 7, 1, 0.5, 0) for number, start in zip(numbers, starts, strict=True)]
    return LightLine(light=rows, recorder_us=10.0, backward_site=before.backward_site, loader=before.loader)


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
