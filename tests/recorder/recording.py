"""Records a training function in this process, or a script in one of its own, and reads the run folder back."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from efprof.artifacts.events import EVENTS_FILE, Event, read_events
from efprof.artifacts.run_file import RunFile, read_run_file, write_run_file
from efprof.artifacts.steps import StepRecord, read_steps
from efprof.recorder.session.options import Options
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Shell
from efprof.recorder.session.writing import LineWriter, RankFolder
from tests.support.builders import make_run_file
from tests.support.waiting import MAX_WAIT_S

EVERY_STEP_IN_FULL = 1.0
HARDLY_ANY_IN_FULL = 1e-9
"""Shares of the time that recording may cost; of the second the first twenty steps, and those that something asks for,
are in full."""

UPDATE = ["forward", "backward", "optimizer"]
PLAIN = ["data", *UPDATE]
"""The stages of a usual step, without a loader and with one."""

EFPROF = (sys.executable, "-m", "efprof")
"""Where packages lie in a folder of their own, no script is beside the interpreter."""

E = TypeVar("E", bound=Event)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A run folder, and what the command said where it was one."""

    folder: Path
    exit_code: int = 0
    output: str = ""
    errors: str = ""

    @property
    def rank(self) -> Path:
        return self.folder / "rank0"

    @property
    def run(self) -> RunFile:
        return read_run_file(self.folder)

    @property
    def steps(self) -> list[StepRecord]:
        return read_steps(self.rank)[0]

    def events(self, kind: type[E]) -> list[E]:
        return [event for event in read_events(self.rank)[0] if isinstance(event, kind)]

    @property
    def our_lines(self) -> list[str]:
        """What efprof itself said on standard error."""
        return [line for line in self.errors.splitlines() if line.startswith("efprof:")]


def options_of(folder: Path, **fields: object) -> Options:
    """Options of a recording into this folder, which is made; holders are looked for where it is asked to.

    To look through pytest's own heap takes longer than most tests.
    """
    folder.mkdir(parents=True, exist_ok=True)
    root = str(Path(__file__).parents[2])
    write_run_file(folder, make_run_file(ended="running", working_folder=root))
    options = Options(
        run_folder_name=str(folder),
        root_name=root,
        trace_steps=(),
        memory_steps=(),
        triggers=(),
        holders=False,
        overhead=EVERY_STEP_IN_FULL,
    )
    return msgspec.structs.replace(options, **fields)


def open_session(folder: Path, windows: tuple[tuple[int, int], ...] = (), **fields: object) -> Session:
    """A session in this process, not started yet."""
    options = options_of(folder, trace_steps=windows, **fields)
    rank_folder = RankFolder(folder, waits_for_training=True)
    return Session(options, rank_folder, Shell(rank_folder, LineWriter(rank_folder, EVENTS_FILE)))


@contextmanager
def running_session(folder: Path, windows: tuple[tuple[int, int], ...] = (), **options: object) -> Iterator[Session]:
    """A session in this process while it records."""
    session = open_session(folder, windows, **options)
    session.start()
    try:
        yield session
    finally:
        session.end()


def record_here(
    folder: Path, train: Callable[[], object], windows: tuple[tuple[int, int], ...] = (), **options: object
) -> Recorded:
    """Record `train` in this process, with these fields of `Options`; every hook is taken out again."""
    with running_session(folder, windows, **options):
        train()
    return Recorded(folder=folder)


def record_command(
    home: Path,
    command: Sequence[str],
    *,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    working_folder: Path | None = None,
) -> Recorded:
    """`efprof record [options] -- command`, with its run under `home`; every step in full unless an option says so."""
    in_full = () if "--overhead" in options else ("--overhead", "100%")
    done = subprocess.run(
        [*EFPROF, "record", *in_full, *options, "--", *command],
        env=environment_of(home, environment or {}),
        cwd=working_folder or home.parent,
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_S,
        check=False,
    )
    return Recorded(folder=only_run(home), exit_code=done.returncode, output=done.stdout, errors=done.stderr)


def record_script(home: Path, text: str, *, options: Sequence[str] = ("--windows", "none")) -> Recorded:
    """Record `python train.py`, a script of this text."""
    script = home.parent / "train.py"
    script.write_text(text)
    return record_command(home, [sys.executable, "train.py"], options=options)


def environment_of(home: Path, more: Mapping[str, str]) -> dict[str, str]:
    ours = {"EFPROF_HOME": str(home), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **ours, **more}


def only_run(home: Path) -> Path:
    (folder,) = (home / "runs").iterdir()
    return folder


def line_of(path: Path, marker: str) -> int:
    """The number of the one line that ends with `# marker`."""
    (number,) = [
        number for number, line in enumerate(path.read_text().splitlines(), start=1) if line.endswith(f"# {marker}")
    ]
    return number


def stages(step: StepRecord) -> list[str]:
    return [span.stage for span in step.spans]


def boundaries(step: StepRecord) -> list[str]:
    return [memory.boundary for memory in step.memory]
