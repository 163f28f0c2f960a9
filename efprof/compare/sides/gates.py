"""Where the processes of a side wait between turns: a socket that each connects to once it trains."""

import json
import selectors
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from efprof.model import EfprofError
from efprof.processes import GATE_VARIABLE, Command, listening_socket

NAME = ".efprof-gate"
FOR_EVER = 1 << 62
"""More updates than any training makes."""
POLL_SECONDS = 0.1
"""Between two looks whether the command has ended; a message is seen at once."""


class SideEnded(EfprofError):
    """The command ended, or a rank of it, before it came to its gate."""


class TimeIsUp(EfprofError):
    """It did not come there in time."""


class Gate:
    """Of all ranks of one side; a process that trains beside these is told to go on for ever."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._server = listening_socket(self._path)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._ranks: list[Any] = []
        """The socket of each."""
        self._num_ranks = 1

    @property
    def variables(self) -> Mapping[str, str]:
        """By which a process finds it."""
        return {GATE_VARIABLE: str(self._path)}

    def close(self) -> None:
        """Who waits at it ends then; safe to call twice."""
        for key in [*(self._selector.get_map() or {}).values()]:
            self._selector.unregister(key.fileobj)
            for opened in filter(None, (key.data, key.fileobj)):
                opened.close()
        self._selector.close()
        self._path.unlink(missing_ok=True)

    def wait(self, command: Command, end: float) -> list[dict[str, Any]]:
        """What each rank says as it arrives, once all have; raises SideEnded, or TimeIsUp at that instant."""
        said: list[dict[str, Any]] = []
        while len(said) < self._num_ranks:
            if command.has_ended:
                raise SideEnded
            if time.monotonic() > end:
                raise TimeIsUp
            for key, _ in self._selector.select(POLL_SECONDS):
                if key.fileobj is self._server:
                    self._accept()
                    continue
                rank, line = key.fileobj, _line(key.data)
                if not line:
                    if rank in self._ranks:
                        raise SideEnded
                    self._selector.unregister(rank)
                    continue
                message = json.loads(line)
                if rank not in self._ranks and len(self._ranks) == self._num_ranks:
                    _tell(rank, FOR_EVER)
                    continue
                if rank not in self._ranks:
                    self._ranks.append(rank)
                    self._num_ranks = message["ranks"]
                said.append(message)
        return said

    @property
    def has_ranks(self) -> bool:
        """Whether any process has come to it."""
        return bool(self._ranks)

    def go_on(self, until: int | None) -> None:
        """To the end of that update; None ends the training."""
        for rank in self._ranks:
            _tell(rank, until)

    def _accept(self) -> None:
        connection, _ = self._server.accept()
        self._selector.register(connection, selectors.EVENT_READ, connection.makefile(encoding="utf-8"))


def _line(opened: Any) -> str:
    """Empty where its process has ended."""
    try:
        return str(opened.readline())
    except OSError:
        return ""


def _tell(rank: Any, until: int | None) -> None:
    with suppress(OSError):  # it has ended, which shows when it does not come to its gate
        rank.sendall(f"{json.dumps({'until': until})}\n".encode())
