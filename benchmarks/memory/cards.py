"""Sets the estimate of a GPU's memory from a CPU recording against measured peaks of a real card.

`python -m benchmarks.memory.cards --write reports/memory.md` writes its section anew: the last one of that file.
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from benchmarks.machine import machine_line
from benchmarks.recording.processes import ROOT
from efprof.artifacts.runs import HOME_VARIABLE
from efprof.facts.gpu_estimate.gpu_estimate import GpuEstimate
from efprof.facts.run.run import open_run
from efprof.model import NotRecorded
from efprof.units import MIB

HEADING: Final = "## Estimates beside a real card"

METHOD: Final = """
Measured is what `tests/calibration/measured_peaks.json` of github.com/highwaterlabs/torch-preflight has of a Tesla T4
(commit 774b839, MIT licence; torch 2.11.0+cu128): `torch.cuda.max_memory_allocated()` and `max_memory_reserved()` of
the second step, the peak reset before it; AdamW, fp16 autocast without a scaler, all inputs on the device. The context
of 135 MiB is in neither figure, and in none of ours. The weights are transformers' default configurations, untrained;
ResNet-50 is transformers' with ReLU in place, where torchvision's was measured. Here each program runs on the CPU with
bf16 autocast, of as many bytes, for {steps} steps of `efprof record` with its defaults. Allocated is compared with the
most in use at once, reserved with the likely peak reserved.
"""

FOOT: Final = """
`*`: the default recording spent its budget before it had a window with allocations; recorded again with
`--trace-steps 2:3`, for three steps.
"""

TABLE_HEAD: Final = (
    "| program | batch | allocated, measured | estimated | error | reserved, measured | estimated | error |",
    "| --- | --- | --- | --- | --- | --- | --- | --- |",
)

NUM_STEPS: Final = 5
AGAIN: Final = ("--trace-steps", "2:3")
NUM_STEPS_AGAIN: Final = 3


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run on the card; `size` is the length of a text or the side of an image."""

    model: str
    batch: int
    size: int
    allocated_bytes: int
    reserved_bytes: int


T4: Final = (
    Measured(model="gpt2", batch=4, size=128, allocated_bytes=2705153536, reserved_bytes=3042967552),
    Measured(model="distilbert", batch=4, size=128, allocated_bytes=1354818048, reserved_bytes=1501560832),
    Measured(model="bert", batch=4, size=128, allocated_bytes=2209738240, reserved_bytes=2483027968),
    Measured(model="resnet50", batch=16, size=224, allocated_bytes=1119203840, reserved_bytes=1195376640),
    Measured(model="gpt2", batch=8, size=256, allocated_bytes=5736883712, reserved_bytes=6092226560),
    Measured(model="distilbert", batch=8, size=256, allocated_bytes=1757328384, reserved_bytes=1954545664),
    Measured(model="bert", batch=8, size=256, allocated_bytes=3185408000, reserved_bytes=3491758080),
    Measured(model="resnet50", batch=32, size=224, allocated_bytes=1839903232, reserved_bytes=2000683008),
)


@click.command()
@click.option("--only", help="Programs of this model alone.")
@click.option(
    "--write", type=click.Path(path_type=Path), help="Put the section into this file, in place of its last one."
)
def main(only: str | None, write: Path | None) -> None:
    """Print one table row for each measured program."""
    start = time.monotonic()
    said: list[str] = []

    def say(*lines: str) -> None:
        said.extend(lines)
        click.echo("\n".join(lines))

    say(HEADING, "", machine_line(), METHOD.format(steps=NUM_STEPS), *TABLE_HEAD)
    for measured in T4:
        if only in (None, measured.model):
            say(row_of(measured))
    say(FOOT, f"Measured in {(time.monotonic() - start) / 60:.0f} minutes.")
    if write is not None:
        text = "\n".join(said) + "\n"
        write.write_text(with_section(write.read_text(encoding="utf-8"), text), encoding="utf-8")


def with_section(report: str, section: str) -> str:
    """The report with this as its section of that heading, up to what stands by hand below it."""
    before, found, old = report.partition(HEADING)
    _, by_hand, rest = old.partition("\n### ")
    return (before if found else f"{before.rstrip()}\n\n") + section + by_hand + rest


def row_of(measured: Measured) -> str:
    """Record the program, and compare."""
    with tempfile.TemporaryDirectory(prefix="efprof-benchmark-") as folder:
        mark = ""
        try:
            estimate = recorded(measured, Path(folder, "first"), NUM_STEPS)
        except NotRecorded:
            estimate, mark = recorded(measured, Path(folder, "second"), NUM_STEPS_AGAIN, *AGAIN), " *"
    reserved_bytes = estimate.under("").outcome.peak_reserved_bytes
    cells = [f"{measured.model}{mark}", f"{measured.batch} x {measured.size}"]
    for real, ours in (
        (measured.allocated_bytes, estimate.peak_allocated_bytes),
        (measured.reserved_bytes, reserved_bytes),
    ):
        cells += [f"{real / MIB:,.0f} MiB", f"{ours / MIB:,.0f} MiB", f"{100 * (ours / real - 1):+.1f} %"]
    return f"| {' | '.join(cells)} |"


def recorded(measured: Measured, folder: Path, num_steps: int, *options: str) -> GpuEstimate:
    """Raises NotRecorded where the recording has no window with allocations."""
    folder.mkdir()
    program = [str(Path(__file__).with_name("card_program.py")), measured.model]
    program += [str(number) for number in (measured.batch, measured.size, num_steps)]
    words = [sys.executable, "-m", "efprof", "record", *options, "--", sys.executable, *program]
    environment = os.environ | {"PYTHONPATH": str(ROOT), HOME_VARIABLE: str(folder)}
    subprocess.run(words, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (run,) = (folder / "runs").glob("*/run.json")
    return open_run(run.parent).get(GpuEstimate)


if __name__ == "__main__":
    main()
