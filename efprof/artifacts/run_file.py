"""run.json: what was run, where, with which versions, and how it ended; sources.jsonl: the source code as it ran."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from efprof.artifacts.files import NOT_JSON, lines_if_any, locked, write_atomically
from efprof.model import UnreadableInput, lines_of

SCHEMA_VERSION = 2
"""1: first form, with steps that are alike in one line. 2: light steps, counts of holders one by one, the lines that
were seen to make them grow."""

READABLE_VERSIONS = range(1, SCHEMA_VERSION + 1)

RUN_FILE = "run.json"

DIFF_FILE = "uncommitted.diff"
"""Beside it: what the working tree had that the commit has not, as `git apply` takes it."""

Ending = Literal["running", "finished", "stopped", "raised", "out_of_memory", "interrupted", "killed", "unknown"]
"""Stopped: after as many steps as were asked for. Unknown: of a file that something else wrote."""

SOURCES_FILE = "sources.jsonl"


class Git(msgspec.Struct, kw_only=True, frozen=True):
    """The repository the command was started in; `num_untracked` is the number of new files."""

    root: str
    branch: str | None = None
    commit: str | None = None
    is_dirty: bool = False
    num_untracked: int = 0


class Device(msgspec.Struct, kw_only=True, frozen=True):
    """An accelerator the training process saw; `free_bytes` was free at the first step, of what all processes use."""

    index: int
    name: str
    total_bytes: int
    free_bytes: int | None = None


class Host(msgspec.Struct, kw_only=True, frozen=True):
    """The machine; its name is kept only as a hash."""

    name_hash: str
    cpu: str
    num_cpus: int
    total_bytes: int


class RunFile(msgspec.Struct, kw_only=True, frozen=True):
    """All of run.json; the training process fills in `versions`, `memory_source` and `devices`, its own first."""

    schema_version: int
    run_id: str
    name: str
    command: list[str]
    working_folder: str
    started: str
    host: Host | None = None
    """None where something else recorded it."""
    ended: Ending = "running"
    exit_code: int | None = None
    duration_s: float | None = None
    git: Git | None = None
    versions: dict[str, str] = {}
    devices: list[Device] = []
    environment: dict[str, str] = {}
    configuration: dict[str, str] = {}
    settings: dict[str, str] = {}
    """Settings of torch that matter to a finding: its threads, its precision, the whole of the CUDA allocator's."""
    memory_source: str = ""


class _Version(msgspec.Struct):
    schema_version: int


def read_run_file(folder: Path) -> RunFile:
    """Read `folder/run.json`; raises UnreadableInput with one sentence where that is not possible."""
    path = folder / RUN_FILE
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UnreadableInput(_why_no_run_file(folder)) from None
    except OSError as error:
        raise UnreadableInput(f"{path} cannot be read: {error.strerror}.") from None
    try:
        version = msgspec.json.decode(content, type=_Version).schema_version
        if version not in READABLE_VERSIONS:
            raise UnreadableInput(
                f"{path} has schema version {version}, this efprof reads 1 to {SCHEMA_VERSION}: "
                f"{'install a newer efprof' if version > SCHEMA_VERSION else 'record the run again'}."
            )
        return msgspec.json.decode(content, type=RunFile)
    except NOT_JSON as error:
        raise UnreadableInput(f"{path} is not a complete run file ({error}); record the run again.") from None


def change_run_file(folder: Path, change: Callable[[RunFile], RunFile]) -> None:
    """Read, change and write it as one: the launcher and each rank of a run write to the same file."""
    with locked(folder):
        old = read_run_file(folder)
        new = change(old)
        if new is not old:
            write_run_file(folder, new)


def write_run_file(folder: Path, run: RunFile) -> None:
    """Replace `folder/run.json` in one instant: a reader sees the old file or the new one."""
    write_atomically(folder / RUN_FILE, msgspec.json.format(msgspec.json.encode(run), indent=1))


class SourceText(msgspec.Struct, kw_only=True):
    """One file; `file` is relative to the repository where it lies inside it."""

    file: str
    text: str


def read_sources(rank_folder: Path) -> dict[str, list[str]]:
    """The lines of every recorded source file by its name; empty where none was recorded."""
    records = lines_if_any(rank_folder / SOURCES_FILE, SourceText)
    return {record.file: lines_of(record.text) for record in records}


def _why_no_run_file(folder: Path) -> str:
    if not folder.exists():
        return f"{folder} does not exist; 'efprof report' without a name takes the newest run."
    what = "is empty" if folder.is_dir() and not any(folder.iterdir()) else f"is no run folder: it holds no {RUN_FILE}"
    return f"{folder} {what}; give a folder that 'efprof record' wrote, a trace or a CUDA snapshot."
