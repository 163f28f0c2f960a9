"""Files that efprof did not record, as a run: snapshots of CUDA's allocator, and traces of torch's profiler."""

import pickle
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from efprof.artifacts.run_file import RUN_FILE, SCHEMA_VERSION, RunFile, write_run_file
from efprof.artifacts.trace.blocks import begins_as_trace, leading_header
from efprof.model import EfprofError

SNAPSHOT_SUFFIXES = frozenset({".pickle", ".pkl"})
TRACE_NAME = re.compile(r".+\.json(\.gz)?", re.IGNORECASE)


def is_foreign(path: Path) -> bool:
    """Whether this is a snapshot or a trace, or a folder of them that is no run."""
    if path.is_file():
        return path.suffix in SNAPSHOT_SUFFIXES or _begins_as_pickle(path) or is_trace(path)
    return path.is_dir() and not (path / RUN_FILE).exists() and bool(_files_in(path))


def is_trace(path: Path) -> bool:
    """By its name: what is in it is found out when it is read."""
    return path.name != RUN_FILE and TRACE_NAME.fullmatch(path.name) is not None and path.is_file()


def foreign_files(*paths: Path) -> list[Path]:
    """These files, and those in these folders."""
    return [file for path in paths for file in ([path] if path.is_file() else _files_in(path))]


def check_ranks(files: Sequence[Path]) -> None:
    """Raises EfprofError where two traces are of the same rank: of one training each rank has one."""
    of_rank: dict[int, Path] = {}
    for path in filter(is_trace, files):
        rank = leading_header(path).rank
        other = path if rank is None else of_rank.setdefault(rank, path)
        if other != path:
            raise EfprofError(
                f"{other} and {path} are both of rank {rank}, two windows or two trainings: give one, or --each."
            )


@contextmanager
def as_run(*paths: Path) -> Iterator[Path]:
    """A run folder for as long as the context lasts, which refers to the files where they are.

    A trace and a snapshot are of one rank where they are the first, the second ... of their kind. Traces come in the
    order of the ranks that they name, those that name none last; where two name the same, in that of their names.
    """
    files = foreign_files(*paths)
    traces = _by_rank([file for file in files if is_trace(file)])
    snapshots = [file for file in files if not is_trace(file)]
    started = datetime.fromtimestamp(files[0].stat().st_mtime, tz=UTC)
    name = re.sub(r"(\.pt)?(\.trace)?(\.json)?(\.gz)?$", "", paths[0].name) if traces else paths[0].stem
    run_file = RunFile(
        schema_version=SCHEMA_VERSION, run_id=name, name=name, command=[], working_folder="",
        started=started.isoformat(timespec="seconds"), ended="unknown", memory_source="CUDA caching allocator",
    )  # fmt: skip
    with TemporaryDirectory(prefix="efprof-") as temporary:
        folder = Path(temporary)
        write_run_file(folder, run_file)
        for name, files in (("trace-1.json.gz", traces), ("memory-0.pickle", snapshots)):
            for number, file in enumerate(files):
                rank = folder / f"rank{number}"
                rank.mkdir(exist_ok=True)
                (rank / name).symlink_to(file.resolve())
        yield folder


def _by_rank(traces: Sequence[Path]) -> list[Path]:
    ranks = {path: leading_header(path).rank for path in traces}
    named = [rank for rank in ranks.values() if rank is not None]
    if len(set(named)) < len(named):
        return list(traces)
    return sorted(traces, key=lambda path: (ranks[path] is None, ranks[path] or 0))


def _files_in(folder: Path) -> list[Path]:
    """By the numbers in their names: `rank10` comes after `rank9`."""
    files = [path for path in folder.iterdir() if path.is_file()]
    files = [path for path in files if path.suffix in SNAPSHOT_SUFFIXES or (is_trace(path) and begins_as_trace(path))]
    parts = {path: re.split(r"(\d+)", path.name) for path in files}
    return sorted(files, key=lambda path: [int(part) if part.isdecimal() else part for part in parts[path]])


def _begins_as_pickle(path: Path) -> bool:
    """Whatever it is called: a file may have the name of a run too, and then the run is meant."""
    try:
        with path.open("rb") as file:
            return file.read(1) == pickle.PROTO
    except OSError:
        return False
