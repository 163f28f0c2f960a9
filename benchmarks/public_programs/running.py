"""A program run bare or recorded, and what its run folder and report say."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import msgspec

from benchmarks.public_programs.listed import Program
from benchmarks.public_programs.preparing import directory_of
from efprof.artifacts.steps import read_steps

TRACES_OF = "efprof"
"""Below the folder of checkouts: where runs are recorded to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How one run of a program ended. CPU seconds are those of all its processes, the recorder's own included."""

    exit_code: int
    cpu_s: float
    output: str
    errors: str


class Verdict(msgspec.Struct, frozen=True):
    """The three lines on top of a report."""

    verdict: str
    why: str
    next: str


class Blame(msgspec.Struct, frozen=True):
    """The place of a fault: its file below the program's folder, and its line."""

    file: str
    line: int


class ReportedFinding(msgspec.Struct, frozen=True):
    """Of a finding, where it is."""

    blame: Blame | None = None


class ReportedAudit(msgspec.Struct, frozen=True):
    """Of an audit, what it found."""

    id: str
    findings: list[ReportedFinding]


class Reported(msgspec.Struct, frozen=True):
    """Of a report's JSON form, what this benchmark reads."""

    verdict: Verdict
    audits: list[ReportedAudit]
    warnings: list[str]

    @property
    def found(self) -> tuple[str, ...]:
        """Each finding as `audit file:line`."""
        found = [(audit.id, finding.blame) for audit in self.audits for finding in audit.findings]
        return tuple(sorted(f"{name} {f'{blame.file}:{blame.line}' if blame else '-'}" for name, blame in found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What is known of a program from its recording."""

    num_steps: int
    num_micro_batches: int
    report: Reported


def run_bare(program: Program, folder: Path, turn: int) -> Ended:
    return _run(program, folder, f"{program.name}.bare{turn}", [sys.executable])


def run_recorded(program: Program, folder: Path, turn: int) -> Ended:
    launcher = [sys.executable, "-m", "efprof", "record", "--name", program.name, "--", sys.executable]
    return _run(program, folder, f"{program.name}.recorded{turn}", launcher)


def read_recorded(program: Program, folder: Path) -> Recorded:
    """Of the newest run of the program. Raises FileNotFoundError where there is none, or no report of it."""
    runs = sorted((folder / TRACES_OF / "runs").glob(f"*Z-{program.name}-*"))
    if not runs:
        raise FileNotFoundError(f"no run of {program.name} was recorded")
    rank_folder = runs[-1] / "rank0"
    steps = read_steps(rank_folder)[0] if rank_folder.is_dir() else []
    command = [sys.executable, "-m", "efprof", "report", str(runs[-1]), "--format", "json"]
    said = subprocess.run(command, capture_output=True, check=False)
    if said.returncode:
        raise FileNotFoundError(f"'efprof report' exits with {said.returncode}: {said.stderr.decode()[-500:]}")
    return Recorded(
        num_steps=len(steps),
        num_micro_batches=sum(step.micro_batches for step in steps),
        report=msgspec.json.decode(said.stdout, type=Reported),
    )


def _run(program: Program, folder: Path, tag: str, launcher: list[str]) -> Ended:
    """Its output also lies in FOLDER/outputs, for who wants to look at a difference."""
    directory = directory_of(program, folder)
    outputs = folder / "outputs"
    outputs.mkdir(exist_ok=True)
    output, errors = outputs / f"{tag}.out", outputs / f"{tag}.err"
    before = getrusage(RUSAGE_CHILDREN)
    with output.open("w") as said, errors.open("w") as complained:
        done = subprocess.run(
            [*launcher, *program.command],
            cwd=directory,
            env=_environment(program, folder, directory),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=complained,
            check=False,
        )
    after = getrusage(RUSAGE_CHILDREN)
    return Ended(
        exit_code=done.returncode,
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        output=output.read_bytes().decode(errors="replace"),  # `read_text` would make a bar's \\r a new line
        errors=errors.read_bytes().decode(errors="replace"),
    )


def _environment(program: Program, folder: Path, directory: Path) -> dict[str, str]:
    """One thread, since two of them spin while they wait; and one order of sets, since it decides what some print."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "EFPROF_HOME": str(folder / TRACES_OF),
        "HF_HUB_OFFLINE": "1",
        "MPLBACKEND": "Agg",
    }
    environment.pop("PYTHONPATH", None)
    if program.python_path:
        environment["PYTHONPATH"] = str(directory / program.python_path)
    return environment
