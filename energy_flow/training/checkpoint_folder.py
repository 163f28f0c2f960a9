"""The folders of a run's checkpoints: OUT/checkpoints/step-000500, each of them whole, or not there at all."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from energy_flow.errors import EnergyFlowError

_FOLDER = "checkpoints"
_NAME = re.compile(r"step-(\d+)(\.replaced)?")


def find_checkpoints(out: Path) -> list[Path]:
    """The folders of the run's checkpoints, newest first."""
    return sorted((folder for folder in (out / _FOLDER).glob("step-*") if _NAME.fullmatch(folder.name)), key=_age)


def discard_checkpoints(out: Path) -> None:
    """Remove all checkpoints at once: a run that begins anew in `out` must never be resumed from an earlier one's."""
    doomed = out / f".{_FOLDER}.discarded"
    try:
        shutil.rmtree(doomed, ignore_errors=True)  # what a killed run left of them
        with contextlib.suppress(FileNotFoundError):
            (out / _FOLDER).rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
    except OSError as error:
        raise EnergyFlowError(f"cannot remove the earlier run's {out / _FOLDER} ({error.strerror})") from error


def write_folder(out: Path, step: int, write_files: Callable[[Path], None]) -> Path:
    """Let `write_files` fill a folder, which gets its name only once it is whole and on the disk; return it.

    Raises:
        OSError: and whatever `write_files` raises; the checkpoints that were there are left as they were.

    """
    folder = out / _FOLDER / f"step-{step:06d}"
    partial = _partial(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    for leftover in folder.parent.glob(".step-*.partial"):  # of a writer that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        partial.mkdir()
        write_files(partial)
        for path in (*partial.iterdir(), partial):
            _force_to_disk(path)
        if folder.exists():  # a folder that is not empty cannot be renamed over: one of the two always has a name
            aside = folder.with_name(f"{folder.name}.replaced")
            _remove(aside)
            folder.rename(aside)
        partial.rename(folder)
        _force_to_disk(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def remove_all_but_newest(newest: Path, keep: int) -> None:
    """Keep `newest` and what came before it; a later one is of a history that this one has replaced."""
    found = find_checkpoints(newest.parents[1])
    kept = [folder for folder in found if _age(folder) >= _age(newest) and not _age(folder).is_replaced][:keep]
    for folder in found:
        if folder not in kept:
            _remove(folder)


def _force_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    """Take its name away first: a folder with a name is whole."""
    with contextlib.suppress(OSError):  # what cannot be removed now is tried again after the next checkpoint
        shutil.rmtree(folder.rename(_partial(folder)))


def _partial(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.partial")


class _Age(NamedTuple):
    minus_step: int
    is_replaced: bool


def _age(folder: Path) -> _Age:
    name = _NAME.fullmatch(folder.name)
    assert name is not None
    return _Age(-int(name[1]), name[2] is not None)
