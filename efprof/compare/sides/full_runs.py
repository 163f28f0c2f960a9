"""Whole runs of the sides of a comparison, one after another, with every step recorded in full."""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from efprof.compare.sides.trees import SIDES, WORKING_TREE, Tree, without_repository
from efprof.model import NotComparable
from efprof.units import format_duration

OPTIONS = ("--overhead", "100%", "--no-diff")
"""Counts of steps that were recorded in part differ by chance: 0.14 to 0.17 reads per step where 0.10 is true."""
NUM_RUNS = 2
ORDER = (0, 1, 1, 0)
"""Base, head, head, base: what changes on the machine meanwhile meets both."""
SECONDS_TO_END = 15.0
PR_SET_PDEATHSIG = 1
"""Of linux/prctl.h."""
MISSING = re.compile(r"No such file or directory: '([^']+)'|(\S+): No such file or directory")
"""How Python and shells say it."""


def record_sides(
    trees: tuple[Tree, Tree],
    command: Sequence[str],
    *,
    here: Path,
    home: Path,
    seconds: float,
    say: Callable[[str], None],
) -> tuple[list[Path], list[Path]]:
    """Two run folders of each tree, below `home`; the command is started where `here` lies in the tree.

    Raises NotComparable where a side trained nothing, ran code of the user's tree, or was not done in time.
    """
    found: tuple[list[Path], list[Path]] = ([], [])
    start = time.monotonic()
    for place, number in enumerate(ORDER):
        tree, runs = trees[number], found[number]
        spent = time.monotonic() - start
        left = f", {format_duration(spent / place * (len(ORDER) - place))} left" if place else ""
        say(f"recording '{tree.ref}', run {len(runs) + 1} of {NUM_RUNS}{left}")
        with tree.fresh() as fresh:
            folder = home / f"{SIDES[number]}-{len(runs) + 1}"
            runs.append(_record(fresh, command, here=here, home=folder, end=start + seconds))
    return found


def _record(tree: Tree, command: Sequence[str], *, here: Path, home: Path, end: float) -> Path:
    folder = tree.moved(here)
    if not folder.is_dir():
        raise NotComparable(f"'{tree.ref}' has no folder {here.relative_to(tree.root)}, which you are in.")
    home.mkdir(parents=True)
    own = {"root": str(tree.root), "tree": str(tree.folder), "place": str(tree.place), "notes": str(home)}
    environment = without_repository(os.environ) | {
        "EFPROF_HOME": str(home),
        "EFPROF_TREE": json.dumps(own),
        "PWD": str(folder),
    }
    name = "working-tree" if tree.ref == WORKING_TREE else tree.ref
    words = [*OPTIONS, "--name", name, "--", *moved_words(tree, command, here)]
    log = home / "output.txt"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "efprof", "record", *words],
            cwd=folder,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=_end_with_parent,
        )
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise NotComparable(
                f"'{tree.ref}' was not done in time: give --max-minutes, or a shorter training; it said so far: {log}."
            ) from None
        finally:
            _end(process)
    others = [name for note in home.glob("*.json") for name in json.loads(note.read_text())]
    if others:
        raise NotComparable(
            f"'{tree.ref}' ran {others[0]} of your own tree instead of its own: start the command so that Python finds "
            "the side's modules, by paths relative to the repository."
        )
    run = next((file.parent for file in home.glob("runs/*/run.json")), home)
    if not any(run.rglob("steps.jsonl")):
        raise NotComparable(
            f"'{tree.ref}' trained nothing: it said '{_last_line(log)}'{_advice(log, tree, here)} ({log})."
        )
    return run


def _end_with_parent() -> None:
    """Where this process is killed, the kernel asks the recorder to end the program (Linux)."""
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def moved_words(tree: Tree, command: Sequence[str], here: Path) -> list[str]:
    """The command with all paths in the user's tree moved to this one; a program that it lacks stays the user's."""
    program, *words = command
    path = here / program
    if os.sep in program and path.exists() and not tree.moved(Path(os.path.normpath(path))).exists():
        program = os.path.normpath(path)
        return [program, *(_moved(tree, word) for word in words)]
    return [_moved(tree, word) for word in command]


def _moved(tree: Tree, word: str) -> str:
    """`/home/user/project/train.py`, or `--config=/home/user/project/small.yaml`."""
    option, sign, value = ("", "", word) if word.startswith(os.sep) else word.rpartition("=")
    return f"{option}{sign}{tree.moved(Path(value))}" if value.startswith(os.sep) else word


def _advice(log: Path, tree: Tree, here: Path) -> str:
    """Where a file is missing that the user has: it is ignored by git."""
    for found in reversed(MISSING.findall(log.read_text(errors="replace"))):
        name = next(filter(None, found))
        path = Path(os.path.normpath(here / name))
        if path.is_relative_to(tree.folder):
            path = tree.root / path.relative_to(tree.folder)
        if path.exists() and path.is_relative_to(tree.root):
            top = Path(path.relative_to(tree.root).parts[0])
            return f"; your tree has it, so give '--link {os.path.relpath(tree.root / top, here)}'"
    return ""


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith("efprof:")]
    return (own or lines or ["nothing"])[-1]


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Politely first: the recorder passes the signal on and closes its files; then all that is left of its group."""
    try:
        _send(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS_TO_END)
    finally:  # by a second Ctrl-C as well
        _send(process, signal.SIGKILL)
        process.wait()


def _send(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
