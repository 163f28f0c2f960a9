"""Files that efprof did not record, as a run folder of their own: a snapshot of CUDA's allocator, or one per rank."""

import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from efprof.artifacts.run_file import RUN_FILE, SCHEMA_VERSION, RunFile, write_run_file

SNAPSHOT_SUFFIXES = frozenset({".pickle", ".pkl"})


def is_foreign(path: Path) -> bool:
    """Whether this is a snapshot, by its name or by how it begins, or a folder of snapshots that is no run."""
    if path.is_file():
        return path.suffix in SNAPSHOT_SUFFIXES or _begins_as_pickle(path)
    return path.is_dir() and not (path / RUN_FILE).exists() and bool(_snapshots_in(path))


@contextmanager
def as_run(path: Path) -> Iterator[Path]:
    """A run folder for as long as the context lasts, which refers to the files where they are."""
    files = [path] if path.is_file() else _snapshots_in(path)
    started = datetime.fromtimestamp(files[0].stat().st_mtime, tz=UTC)
    run_file = RunFile(
        schema_version=SCHEMA_VERSION, run_id=path.stem, name=path.stem, command=[], working_folder="",
        started=started.isoformat(timespec="seconds"), ended="unknown", memory_source="CUDA caching allocator",
    )  # fmt: skip
    with TemporaryDirectory(prefix="efprof-") as temporary:
        folder = Path(temporary)
        write_run_file(folder, run_file)
        for number, file in enumerate(files):
            rank = folder / f"rank{number}"
            rank.mkdir()
            (rank / "memory-0.pickle").symlink_to(file.resolve())
        yield folder


def _snapshots_in(folder: Path) -> list[Path]:
    """By the numbers in their names: `rank10` comes after `rank9`."""
    files = [path for path in folder.iterdir() if path.suffix in SNAPSHOT_SUFFIXES and path.is_file()]
    parts = {path: re.split(r"(\d+)", path.name) for path in files}
    return sorted(files, key=lambda path: [int(part) if part.isdecimal() else part for part in parts[path]])


def _begins_as_pickle(path: Path) -> bool:
    """Whatever it is called: a file may have the name of a run too, and then the run is meant."""
    try:
        with path.open("rb") as file:
            return file.read(1) == pickle.PROTO
    except OSError:
        return False
