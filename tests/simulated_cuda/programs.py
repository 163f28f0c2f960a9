"""Runs whole programs on a simulated device and on the CPU, and compares what was recorded of them.

`python -m tests.simulated_cuda.programs [NAME ...]`: the casebook's programs, those of the demo and energy_flow, each
in two processes of its own. What a program makes without naming a device lies on the device, as after
`torch.set_default_device("cuda")`.
"""

import contextlib
import math
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from efprof.artifacts.events import CollectorStopped
from efprof.artifacts.steps import StepRecord
from efprof.recorder.session.options import DEFAULT_MEMORY_STEPS
from energy_flow.train import energy_flow
from tests.casebook._cases import FOLDER, all_cases
from tests.recorder.recording import EVERY_STEP_IN_FULL, Recorded, record_here
from tests.simulated_cuda.cuda import SimulatedCuda
from tests.support.waiting import MAX_WAIT_S

SHORT = ("training.steps=30", "runtime.precision=float32")
ROUNDING = 1e-5
"""How far losses may differ, for each step up to theirs: what some of torch's functions compute depends in the last bit
on where their input lies, and on a device optimizers take other ways; training carries it on.
"""
Told = tuple[int, float | str | None, int]
"""Of a step its number, loss and micro-batches."""


def names() -> list[str]:
    """All programs that train; what needs a real device's memory to run out is tests/gpu's."""
    cases = [case.path for case in all_cases() if case.device is None and "out_of_memory" not in dict(case.faults)]
    return [*(str(path.relative_to(FOLDER).with_suffix("")) for path in cases), "energy_flow"]


def differences(name: str, folder: Path) -> list[str]:
    """In what the recording on the device differs from that on the CPU; nothing where all is as it should be."""
    on_cpu, on_cuda = _recorded(name, "cpu", folder), _recorded(name, "cuda", folder)
    told, expected = _told(on_cuda.steps), _told(on_cpu.steps)
    pairs = zip(told, expected, strict=False)
    found = [f"{one} on the device, {other} on the CPU" for one, other in pairs if not _is_same(one, other)]
    if len(told) != len(expected) or not expected:
        found.append(f"{len(told)} steps on the device, {len(expected)} on the CPU")
    full = [step for step in on_cuda.steps if step.is_full]
    if not any(span.device_us for step in full for span in step.spans):
        found.append("no stage was timed on the device")
    found += [f"{event.collector} stopped: {event.reason}" for event in on_cuda.events(CollectorStopped)]
    waits = (on_cuda.folder / "waits").read_text().split()
    return found + [f"the recorder waited for the device: {wait}" for wait in waits]


def _recorded(name: str, device: str, folder: Path) -> Recorded:
    place = folder / device
    command = [sys.executable, "-m", "tests.simulated_cuda.programs", "--record", name, device, str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MAX_WAIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} on {device} failed:\n{done.stderr}")
    return Recorded(folder=place)


def _record(name: str, device: str, folder: Path) -> None:
    torch.set_num_threads(1)
    cuda = SimulatedCuda(makes_all_on=0)
    with cuda.in_place() if device == "cuda" else contextlib.nullcontext():
        record_here(
            folder, _training(name, device, folder), overhead=EVERY_STEP_IN_FULL, memory_steps=DEFAULT_MEMORY_STEPS
        )
    (folder / "waits").write_text("\n".join(cuda.waits_made_in("efprof/recorder")))


def _training(name: str, device: str, folder: Path) -> Callable[[], object]:
    if name == "energy_flow":
        assignments = [f"runtime.device={device}", *SHORT]
        options = [word for one in assignments for word in ("--set", one)]
        command = ["train", "--config", "debug", *options, "--out", str(folder / "out")]
        return lambda: energy_flow(command, standalone_mode=False)
    path = FOLDER / f"{name}.py"
    sys.argv = [str(path)]
    return lambda: runpy.run_path(str(path), run_name="__main__")


def _told(steps: Sequence[StepRecord]) -> list[Told]:
    return [(step.step, step.loss, step.micro_batches) for step in steps]


def _is_same(one: Told, other: Told) -> bool:
    if isinstance(one[1], float) and isinstance(other[1], float):
        return (
            one[0] == other[0]
            and one[2] == other[2]
            and math.isclose(one[1], other[1], rel_tol=ROUNDING * (1 + one[0]))
        )
    return one == other


def main(chosen: list[str]) -> int:
    """Print a line for each program; 1 where one differs."""
    num_wrong = 0
    for name in chosen or names():
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = differences(name, Path(folder))
            except RuntimeError as error:
                found = [str(error)]
        num_wrong += bool(found)
        print(f"{name}: {'the same' if not found else '; '.join(found[:3])}", flush=True)
    return int(num_wrong > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        _record(sys.argv[2], sys.argv[3], Path(sys.argv[4]))
    else:
        sys.exit(main(sys.argv[1:]))
