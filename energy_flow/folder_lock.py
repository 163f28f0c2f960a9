"""Lets one run at a time work in an output folder."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from energy_flow.errors import EnergyFlowError

if TYPE_CHECKING:
    from energy_flow.processes import Processes

_NAME = "in-use"
_LOG = logging.getLogger(__name__)


@contextmanager
def claimed(out: Path, processes: Processes) -> Iterator[None]:
    """Keep other runs out of the folder `out`, made if need be; the first process does it for all.

    The system gives the folder free when the process ends, however it ends; the file stays and means nothing then.

    Raises:
        EnergyFlowError: when another run is at work there, or the folder cannot be written to.

    """
    if not processes.is_first:
        yield
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = (out / _NAME).open("a+", encoding="utf-8")
    except OSError as error:
        raise EnergyFlowError(f"cannot write to --out {out} ({error.strerror}); name another folder") from error
    with file:
        try:
            # Of the process. A lock by `flock` is of the open file, which forked loader workers share: they live on for
            # seconds after a run that was killed, and would keep out the one that goes on from it.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            file.seek(0)
            raise EnergyFlowError(
                f"another run (process {file.read().strip() or 'unknown'}) is at work in {out}; "
                "wait for its end, or name another --out"
            ) from error
        except OSError as error:  # some network file systems
            _LOG.warning("%s cannot be locked (%s): see to it that no other run works there", out, error.strerror)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextmanager
def claimed_to_resume(out: Path, processes: Processes) -> Iterator[None]:
    """As `claimed`, for a run that goes on: a folder that is not there was mistyped, and none is made in its place.

    Raises:
        EnergyFlowError: when there is no such folder, and where `claimed` raises it.

    """
    if not out.is_dir():
        raise EnergyFlowError(f"there is no checkpoint in {out}; name the --out of a run, or train anew")
    with claimed(out, processes):
        yield
