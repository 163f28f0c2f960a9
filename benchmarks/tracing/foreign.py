"""A row for each file: what is true by the oracle, what the report says first, and what it cost: `make bench-trace`."""

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from benchmarks.machine import machine_line
from benchmarks.recording.processes import ROOT
from benchmarks.tracing.judgements import JUDGEMENTS
from benchmarks.tracing.works import Whole, whole_of
from efprof.units import format_bytes, format_ms, format_share
from tests.facts.device import oracle as of_snapshots
from tests.facts.time import oracle as of_traces
from tests.facts.time.against_oracle import unlike

DATA = ROOT.parent / "shared" / "data"
MAX_CPU_S, MAX_BYTES = 5.0, 180_000_000
LOOP, LOOP_S = "for i in range(10**7): pass", 0.3
"""The core that the limit of CPU time is for."""
MAX_VERDICT = 200
HEAD = """\
| file | true, by the oracle | the report's first line | right? | CPU s | MB |
| --- | --- | --- | --- | --- | --- |"""
METHOD = """
The oracle (`tests/facts/time/oracle.py`, `tests/facts/device/oracle.py`) reckons with plain loops from the file alone,
and knows nothing of efprof. Where the engine's step, busy and idle time, loader, first calls or exposed communication
differ by more than 0.5 %, the row says so. Times are of the mean step after warm-up; late is what the device waits for
a launch. Right is judged by hand, with the oracle's figures: **yes**, the first three lines are true and what a person
would do; **weak**, true but not what matters most; **no**. CPU time is of the page with all its processes, over that of
`{loop}` times {loop_s} s (here {core:.2f} s); MB are of all processes together.
"""


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=DATA, help="A folder with traces/ and snapshots/.")
@click.option("--write", type=click.Path(path_type=Path), help="Also write the table to this file.")
def main(data: Path, write: Path | None) -> None:
    """Print a row for each file; exits with 1 where a figure is not the oracle's or a file costs too much."""
    core_s = _core_s()
    said = ["# Files from strangers", "", machine_line(), METHOD.format(loop=LOOP, loop_s=LOOP_S, core=core_s)]
    click.echo("\n".join(said))
    is_bad, answers = False, Counter[str]()
    for kind in ("traces", "snapshots"):
        said += [f"## {kind.capitalize()}", "", HEAD]
        click.echo("\n".join(said[-3:]))
        for path in sorted((data / kind).iterdir()):
            line, is_held, answer = _row(path, core_s)
            answers[answer] += 1
            is_bad |= not is_held
            said.append(line)
            click.echo(line)
        said.append("")
    said.append("Of all: " + ", ".join(f"{num} {answer}" for answer, num in answers.most_common()) + ".")
    click.echo(said[-1])
    if write is not None:
        write.write_text("\n".join(said) + "\n", encoding="utf-8")
    sys.exit(is_bad)


def _row(path: Path, core_s: float) -> tuple[str, bool, str]:
    is_snapshot = path.suffix == ".pickle"
    true, unlike_it = _of_snapshot(path) if is_snapshot else _of_trace(path)
    verdict, lead, cost = _reported(path)
    cpu_s = cost.cpu_s / core_s * LOOP_S
    name = path.name.removesuffix(".json.gz").removesuffix(".pickle")
    known = JUDGEMENTS.get(name)
    answer = known.answer if known and known.lead == lead else "not judged"
    why = f"**{answer}**{f': {known.reason}' if known and known.reason and answer != 'not judged' else ''}"
    is_held = not unlike_it and cpu_s <= MAX_CPU_S and cost.peak_bytes <= MAX_BYTES
    cells = (f"`{name}`", true + unlike_it, verdict, why, f"{cpu_s:.1f}", f"{cost.peak_bytes / 1e6:.0f}")
    return f"| {' | '.join(cell.replace('|', ' ') for cell in cells)} |", is_held, answer


def _of_trace(path: Path) -> tuple[str, str]:
    file = min(path.iterdir()) if path.is_dir() else path
    truth = of_traces.truth_of(file)
    whole = truth.device_period_ms
    parts = [f"{truth.num_steps} steps of {format_ms(truth.step_ms)}"]
    if whole:
        parts.append(f"busy {format_share(truth.busy_ms / whole)}")
        parts.append(f"late {format_share(truth.not_launched_ms / whole)}")
    if truth.in_function and truth.not_launched_ms > 0.1 * whole:
        name, ms = truth.in_function[0]
        parts.append(f"of it {format_ms(ms)} in `{name[:50]}`")
    shares = {"loader": truth.loader_ms, "communicates alone": truth.exposed_ms}
    parts += [f"{name} {format_ms(ms)}" for name, ms in shares.items() if ms > 0.05 * truth.step_ms]
    parts += [f"first calls {format_ms(truth.first_calls_ms)}"] * (truth.first_calls_ms > 0.05 * truth.step_ms)
    found = unlike(file, truth)
    return ", ".join(parts), f"; **not the engine's: {found}**" if found else ""


def _of_snapshot(path: Path) -> tuple[str, str]:
    truth = of_snapshots.truth_of(path)
    parts = [
        f"at the end {format_bytes(truth.in_use_bytes)} in use of {format_bytes(truth.reserved_bytes)} reserved",
        f"at most {format_bytes(truth.most_in_use_bytes)} in use",
        *([f"{truth.num_flushes} flushes"] * bool(truth.num_flushes)),
        *([f"{truth.num_failed} failed"] * bool(truth.num_failed)),
    ]
    return ", ".join(parts), ""


def _reported(path: Path) -> tuple[str, str, Whole]:
    """The first line, the audit that leads (empty where none found anything), and what the page cost."""
    with tempfile.TemporaryDirectory(prefix="efprof-benchmark-") as folder:
        command = [sys.executable, "-m", "efprof", "report", str(path), "--out"]
        cost = whole_of([*command, f"{folder}/page.html"])
        for form in ("text", "json"):
            made = [*command, f"{folder}/report.{form}", "--format", form]
            subprocess.run(made, cwd=ROOT, check=True, capture_output=True)
        text = Path(folder, "report.text").read_text(encoding="utf-8")
        report = json.loads(Path(folder, "report.json").read_text(encoding="utf-8"))
    verdict = next(line for line in text.splitlines() if line.startswith("Verdict")).removeprefix("Verdict").strip()
    return verdict[:MAX_VERDICT] + "..." * (len(verdict) > MAX_VERDICT), next(_leads(report), ""), cost


def _leads(report: dict[str, object]) -> Iterator[str]:
    audits = report["audits"]
    assert isinstance(audits, list)
    ranked = sorted((one["rank"], audit["id"]) for audit in audits for one in audit["findings"])
    yield from (name for _, name in ranked)


def _core_s() -> float:
    """The fastest of five: others may be on the core."""
    found = []
    for _ in range(5):
        start = time.perf_counter()
        exec(LOOP)
        found.append(time.perf_counter() - start)
    return min(found)


if __name__ == "__main__":
    main()
