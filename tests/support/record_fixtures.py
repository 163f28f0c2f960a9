"""Records the runs in tests/runs/ anew: every single-fault case of the casebook, sick and healthy (`make fixtures`).

Or those that are named: `python -m tests.support.record_fixtures retained_graph`. They are what the tests of the whole
analysis read: real recordings, small enough for the repository.
"""

import gzip
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tests.casebook._cases import Case, find_cases
from tests.recorder.recording import EFPROF

RUNS = Path(__file__).parents[1] / "runs"
PROJECT = "/home/user/efprof"
"""The folder that recordings tell of."""
WINDOWS = "5:6,40:41"
"""One step a window: half the size, and enough for all but these:"""
LONGER_WINDOWS = {"memory_growth": "5:7,40:42"}
"""What survives a step is known by the next one."""

FIXTURE_BYTES = 200_000
"""A trace or snapshot that takes more is not for the repository."""
ALWAYS_KEPT = ("run.json", "steps.jsonl", "events.jsonl", "sources.jsonl", "device_use.jsonl")


@click.command()
@click.argument("names", nargs=-1)
def main(names: tuple[str, ...]) -> None:
    """Replace all of tests/runs/ by new recordings, or the runs of the cases that are named."""
    cases = cases_named(names)
    if not names:
        shutil.rmtree(RUNS, ignore_errors=True)
    for case in cases:
        for side, arguments in (("sick", []), ("healthy", ["--healthy"])):
            place = RUNS / f"{case.name}-{side}"
            shutil.rmtree(place, ignore_errors=True)
            record(case, place, arguments)
            print(f"{case.name} {side}", flush=True)


def cases_named(names: Sequence[str]) -> list[Case]:
    """Those of the names, or all where there are none; ends the program at a name that no case has."""
    cases = {case.name: case for case in find_cases() if len(case.faults) == 1}
    if unknown := [name for name in names if name not in cases]:
        sys.exit(f"There is no case '{unknown[0]}' with one fault in tests/casebook/; there are {', '.join(cases)}.")
    return [cases[name] for name in names or cases]


def record(case: Case, place: Path, arguments: list[str]) -> None:
    """Record one run and move its folder to `place`."""
    windows = LONGER_WINDOWS.get(case.name, WINDOWS)
    with tempfile.TemporaryDirectory() as home:
        options = ["--trace-steps", windows, "--triggers", "none", "--no-diff"]
        program = ["--", sys.executable, str(case.path.relative_to(Path.cwd())), *arguments]
        subprocess.run(
            [*EFPROF, "record", "--name", case.name, *options, *program],
            env=os.environ | {"EFPROF_HOME": home},
            check=True,
            capture_output=True,
        )
        (folder,) = (Path(home) / "runs").iterdir()
        shutil.copytree(folder, place)
    forget_machine(place)


def keep_run(run: Path, place: Path) -> None:
    """Copy a run for tests on machines without a device, less the files that are too large for the repository."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(run, place)
    forget_machine(place)
    for path in place.rglob("*"):
        if path.is_file() and path.name not in ALWAYS_KEPT and path.stat().st_size > FIXTURE_BYTES:
            path.unlink()


def forget_machine(place: Path) -> None:
    """What names this machine's folders names anybody's."""
    names = ((sys.executable.encode(), b"python"), (str(Path.cwd()).encode(), PROJECT.encode()))
    for snapshot in place.rglob("*.pickle"):
        content = pickle.loads(snapshot.read_bytes())  # noqa: S301 - it was written here
        _rename_in(content, set())
        snapshot.write_bytes(pickle.dumps(content, protocol=4))
    for file in place.rglob("*.json*"):
        content = old = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        for own, neutral in names:
            content = content.replace(own, neutral)
        if file.suffix == ".gz":  # packed tightly, which saves a third of what the profiler's own packing leaves
            file.write_bytes(gzip.compress(content, 9, mtime=0))
        elif content != old:
            file.write_bytes(content)


def _rename_in(value: Any, seen: set[int]) -> None:
    """In a snapshot, frames of the project. Blocks and events share them, and a file takes a shared name once."""
    if id(value) in seen or not isinstance(value, dict | list | tuple):
        return
    seen.add(id(value))
    if isinstance(value, dict) and isinstance(value.get("filename"), str):
        value["filename"] = sys.intern(value["filename"].replace(f"{Path.cwd()}/", f"{PROJECT}/"))
    for part in value.values() if isinstance(value, dict) else value:
        _rename_in(part, seen)


if __name__ == "__main__":
    main()
