"""Starts the GPT in processes of its own, bare or recorded, and says what each told or why it failed."""

import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from benchmarks.recording.on_a_gpu.sessions import ROOT, run_for

PROGRAM = "benchmarks/recording/on_a_gpu/gpt.py"
MIN_S = 10.0
"""Nothing is started that has less time than this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """The options of the program."""

    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int
    batch: int
    steps: int

    def words(self) -> list[str]:
        """As the command line has them."""
        return [word for name, value in asdict(self).items() for word in (f"--{name}", str(value))]

    def but(self, **changes: int) -> "Size":
        """The same with other values."""
        return replace(self, **changes)


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the program writes at its end; bytes are 0 on a CPU."""

    loop_s: float
    losses: list[float]
    step_ms: list[float]
    num_parameters: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    accelerator: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """One process to start. `recorded` has the options of `efprof record`, or is None for a bare one."""

    name: str
    size: Size
    device: str
    recorded: Sequence[str] | None = None
    settings: str = ""
    """Of the allocator."""
    is_deterministic: bool = False
    num_threads: int = 1
    limit_s: float = 120.0

    def command(self, told: Path) -> list[str]:
        """What is started, in ROOT."""
        recorder = [] if self.recorded is None else ["-m", "efprof", "record", "--no-diff", *self.recorded, "--"]
        program = [sys.executable, PROGRAM] if recorder else [PROGRAM]
        flags = ["--deterministic"] if self.is_deterministic else []
        return [
            sys.executable,
            *recorder,
            *program,
            *self.size.words(),
            *("--device", self.device, "--told", str(told)),
            *flags,
        ]

    def environment(self, home: Path) -> dict[str, str]:
        """Runs go to `home`; a training on the CPU sees no device."""
        ours = {
            "EFPROF_HOME": str(home),
            "OMP_NUM_THREADS": str(self.num_threads),
        }
        if self.settings:
            ours["PYTORCH_CUDA_ALLOC_CONF"] = self.settings
        if self.is_deterministic:
            ours["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it, torch refuses to be deterministic
        if self.device == "cpu":
            ours["CUDA_VISIBLE_DEVICES"] = ""
        return environment_of_child() | ours


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of a training: what it told and its run, or the end of what it said before it failed."""

    training: Training
    told: Told | None = None
    run: Path | None = None
    error: str = ""


class Trainings:
    """Starts trainings until the time is up. What each said is kept in a folder."""

    def __init__(self, folder: Path, *, seconds: float) -> None:
        self._folder = folder
        self._ends_at = time.monotonic() + seconds
        self.outcomes: list[Outcome] = []

    @property
    def left_s(self) -> float:
        """Seconds until the time is up."""
        return self._ends_at - time.monotonic()

    def start(self, training: Training) -> Outcome:
        """Wait for it to end; where there is no time left, it is not started."""
        outcome = self._outcome(training)
        self.outcomes.append(outcome)
        took = f"loop of {outcome.told.loop_s:.1f} s" if outcome.told else outcome.error.splitlines()[-1]
        print(f"{self.left_s:5.0f} s left; {training.name}: {took}", flush=True)
        return outcome

    def start_together(self, trainings: Sequence[Training]) -> list[Outcome]:
        """All at once: of memory each says the same beside others, of time it does not."""
        with ThreadPoolExecutor(max_workers=max(1, len(trainings))) as pool:
            return list(pool.map(self.start, trainings))

    def ask(self, name: str, *words: str) -> bytes:
        """What `efprof` with these words prints; empty where it failed. Both go to the folder of this name."""
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "efprof", *words]
        error = self._error_of(self.left_s, command, environment_of_child(), folder)
        if error:
            print(f"{name}: {error}", flush=True)
        return b"" if error else (folder / "output.txt").read_bytes()

    def _outcome(self, training: Training) -> Outcome:
        limit_s = min(training.limit_s, self.left_s)
        if limit_s < MIN_S:
            return Outcome(training=training, error="not started: no time was left")
        folder = self._folder / training.name
        folder.mkdir(parents=True, exist_ok=True)
        told = folder / "told.json"
        error = self._error_of(limit_s, training.command(told), training.environment(folder), folder)
        runs = sorted((folder / "runs").glob("*")) if training.recorded is not None else []
        return Outcome(
            training=training,
            told=msgspec.convert(json.loads(told.read_bytes()), Told) if told.exists() else None,
            run=runs[0] if runs else None,
            error=error if error or told.exists() else "it told nothing",
        )

    def _error_of(self, seconds: float, command: Sequence[str], environment: dict[str, str], folder: Path) -> str:
        """Why the command failed, with the end of what it said; empty where it did not."""
        output, errors = folder / "output.txt", folder / "errors.txt"
        exit_code = run_for(seconds, command, environment, output=output, errors=errors)
        if exit_code is None:
            return f"ended after {seconds:.0f} s: the time was up"
        said = errors.read_text(errors="replace").strip()
        return f"exit code {exit_code}\n{said[-2000:]}" if exit_code else ""


def environment_of_child() -> dict[str, str]:
    """This process's own, with efprof on the path."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
