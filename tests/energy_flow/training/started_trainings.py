"""Starts `energy-flow` in processes that have torch imported already, alone or as one of several."""

import multiprocessing
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from tests.support.ports import kept_port, torchrun_variables
from tests.support.waiting import MAX_WAIT_S


def options(config: str, out: Path, settings: Sequence[str], *more: str) -> list[str]:
    """The arguments of a training that writes to `out`."""
    assignments = (part for setting in settings for part in ("--set", setting))
    return ["train", "--config", config, "--out", str(out), *assignments, *more]


class Started:
    """A command under way, or over."""

    def __init__(self, process: ForkServerProcess, folder: Path) -> None:
        self.process, self._folder = process, folder
        self.port: socket.socket | None = None
        """Kept for it."""

    @property
    def printed(self) -> str:
        return (self._folder / "1").read_text()

    @property
    def said(self) -> str:
        """On standard error."""
        return (self._folder / "2").read_text()

    def end(self, after_s: float = MAX_WAIT_S) -> int:
        """Kill it after so many seconds, if it has not come to its end; its exit code."""
        self.process.join(after_s)
        self.process.kill()
        self.process.join()
        if self.port is not None:
            self.port.close()
        return self.process.exitcode


class Starter:
    """Starts commands, each of whose output goes to files of its own below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._num_started = folder, 0
        self._context = multiprocessing.get_context("forkserver")
        # The optimizer imports torch._dynamo when it is first made, for a second.
        self._context.set_forkserver_preload(["torch._dynamo", "energy_flow.training.energy_trainer"])
        first = self._context.Process(target=_do_nothing)  # which waits for the imports
        first.start()
        first.join()

    def start(
        self,
        arguments: list[str],
        *,
        inside: Path | None = None,
        environment: Mapping[str, str] | None = None,
        dies_at: "InSave | None" = None,
        main: "Callable[[list[str]], None] | None" = None,
    ) -> Started:
        """Start `energy-flow`, or another `main`, with `arguments`, `inside` a folder or this process's own."""
        self._num_started += 1
        said = self._folder / str(self._num_started)
        said.mkdir()
        process = self._context.Process(
            target=_run, args=(main or _energy_flow, arguments, said, inside or Path.cwd(), environment or {}, dies_at)
        )
        process.start()
        return Started(process, said)

    def start_two(
        self,
        arguments: list[str],
        *,
        first_dies_at: "InSave | None" = None,
        main: "Callable[[list[str]], None] | None" = None,
    ) -> list[Started]:
        """Two processes of one run, which know each other by the variables that torchrun sets."""
        port = kept_port()
        of_first, of_second = torchrun_variables(port, 2)
        first = self.start(arguments, environment=of_first, dies_at=first_dies_at, main=main)
        second = self.start(arguments, environment=of_second, main=main)
        first.port = second.port = port
        return [first, second]


class InSave:
    """At this manieth operation on files below `folder`."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number, self.folder = number, str(folder)


def _do_nothing() -> None:
    pass


def _energy_flow(arguments: list[str]) -> None:
    from energy_flow import train

    sys.argv = ["energy-flow", *arguments]
    train.main()


def _run(
    main: Callable[[list[str]], None],
    arguments: list[str],
    said: Path,
    inside: Path,
    environment: Mapping[str, str],
    dies_at: InSave | None,
) -> None:
    """Be that command, in a process of its own."""
    for number in (1, 2):
        os.dup2(os.open(said / str(number), os.O_WRONLY | os.O_CREAT), number)
    os.chdir(inside)
    os.environ.update(environment)
    warnings.simplefilter("error")
    if dies_at is not None:
        sys.addaudithook(_killer(dies_at))
    main(arguments)


def _killer(dies_at: InSave) -> Callable[[str, Sequence[Any]], None]:
    rest = dies_at.number

    def count(event: str, arguments: Sequence[Any]) -> None:
        nonlocal rest
        if event in ("open", "os.mkdir", "os.rename", "os.rmdir") and dies_at.folder in str(arguments[0]):
            rest -= 1
            if rest == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return count
