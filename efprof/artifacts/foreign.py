"""Files that efprof did not record, as a run: snapshots of CUDA's allocator, and traces of torch's profiler."""

import pickle
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from efprof.artifacts.run_file import RUN_FILE, SCHEMA_VERSION, RunFile, write_run_file
from efprof.artifacts.trace.blocks import begins_as_trace, leading_header
from efprof.artifacts.trace.read import read_window
from efprof.model import EfprofError, UnreadableInput

STEP = re.compile(r"ProfilerStep\s*#?(\d{1,18})(?!\d)")
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


def windows_of(traces: Sequence[Path]) -> list[list[Path]]:
    """The traces of each rank, by the ranks that they name: several of one process, one after the other, are windows.

    Raises EfprofError where two of one rank are not.
    """
    by_rank = defaultdict[int | None, list[Path]](list)
    for path in traces:
        by_rank[leading_header(path).rank].append(path)
    found: list[list[Path]] = []
    for rank, paths in sorted(by_rank.items(), key=lambda item: (item[0] is None, item[0] or 0)):
        windows = _in_order(paths) if len(paths) > 1 else paths
        if windows is None and rank is not None:
            raise EfprofError(
                f"{paths[0]} and {paths[1]} are both of rank {rank}, and no windows of one process: give one, or "
                "--each."
            )
        found += [windows] if windows else [[path] for path in paths]
    return found


def _in_order(traces: Sequence[Path]) -> list[Path] | None:
    """By time, where one process wrote them, later steps later; None where that is not so."""
    try:
        found = sorted((_stretch(path), path) for path in traces)
    except UnreadableInput:
        return None
    for (one, _), (later, _) in pairwise(found):
        is_later = one.end_ns <= later.start_ns and (one.last_step < later.first_step or later.first_step < 0)
        if not is_later or not one.processes & later.processes:
            return None
    return [path for _, path in found]


class _Stretch(NamedTuple):
    """When a trace's operators begin and end, the steps that it names (-1: none), and the processes that run them."""

    start_ns: int
    end_ns: int
    first_step: int
    last_step: int
    processes: frozenset[int | str]


def _stretch(path: Path) -> _Stretch:
    trace = read_window(path)
    events = np.flatnonzero(trace.is_of("cpu_op", "operator"))
    if not len(events):
        raise UnreadableInput(f"{path} has no operators.")
    steps = [int(label[1]) for label in map(STEP.match, trace.texts) if label] or [-1]
    processes = frozenset(trace.lanes[lane][0] for lane in np.unique(trace.lane[events]).tolist())
    starts, ends = trace.start_ns[events], trace.end_ns[events]
    return _Stretch(int(starts.min()), int(ends.max()), min(steps), max(steps), processes)


@contextmanager
def as_run(*paths: Path) -> Iterator[Path]:
    """A run folder for as long as the context lasts, which refers to the files where they are.

    A trace and a snapshot are of one rank where they are the first, the second ... of their kind. Traces come in the
    order of the ranks that they name, those that name none last; raises EfprofError as `windows_of`.
    """
    files = foreign_files(*paths)
    ranks = windows_of([file for file in files if is_trace(file)])
    snapshots = [file for file in files if not is_trace(file)]
    started = datetime.fromtimestamp(files[0].stat().st_mtime, tz=UTC)
    name = re.sub(r"(\.pt)?(\.trace)?(\.json)?(\.gz)?$", "", paths[0].name) if ranks else paths[0].stem
    run_file = RunFile(
        schema_version=SCHEMA_VERSION, run_id=name, name=name, command=[], working_folder="",
        started=started.isoformat(timespec="seconds"), ended="unknown", memory_source="CUDA caching allocator",
    )  # fmt: skip
    with TemporaryDirectory(prefix="efprof-") as temporary:
        folder = Path(temporary)
        write_run_file(folder, run_file)
        for form, of_ranks in (("trace-{}.json.gz", ranks), ("memory-{}.pickle", [[file] for file in snapshots])):
            for number, of_rank in enumerate(of_ranks):
                rank = folder / f"rank{number}"
                rank.mkdir(exist_ok=True)
                for place, file in enumerate(of_rank, 1):
                    (rank / form.format(place)).symlink_to(file.resolve())
        yield folder


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
