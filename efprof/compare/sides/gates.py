"""Where the processes of a side wait between turns: a socket that each connects to once it trains."""

import json
import os
import selectors
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from efprof.model import EfprofError
from efprof.processes import Command

VARIABLE = "EFPROF_GATE"
NAME = "gate"
FOR_EVER = 1 << 62
"""More steps than any training has."""
POLL_SECONDS = 0.1
"""Between two looks whether the command has ended; a message is seen at once."""


class SideEnded(EfprofError):
    """The command ended, or a rank of it, before it came to its gate."""


class TimeIsUp(EfprofError):
    """It did not come there in time."""


class Gate:
    """Of all ranks of one side; a process that trains beside these is told to go on for ever."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="efprof-")  # the path of a socket has 107 letters at most
        self._path = Path(self._folder.name) / NAME
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(os.fspath(self._path))
        self._server.listen()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._ranks: list[Any] = []
        """The socket of each."""
        self._num_ranks = 1

    @property
    def variables(self) -> Mapping[str, str]:
        """By which a process finds it."""
        return {VARIABLE: str(self._path)}

    def close(self) -> None:
        for key in [*self._selector.get_map().values()]:
            self._selector.unregister(key.fileobj)
            for opened in filter(None, (key.data, key.fileobj)):
                opened.close()
        self._selector.close()
        self._folder.cleanup()

    def wait(self, command: Command, end: float) -> list[dict[str, Any]]:
        """What each rank says as it arrives, once all have; raises SideEnded, or TimeIsUp at that instant."""
        said: list[dict[str, Any]] = []
        while len(said) < self._num_ranks:
            if command.has_ended:
                raise SideEnded("it ended")
            if time.monotonic() > end:
                raise TimeIsUp("it was not there in time")
            for key, _ in self._selector.select(POLL_SECONDS):
                if key.fileobj is self._server:
                    self._accept()
                    continue
                line = key.data.readline()
                if not line:
                    raise SideEnded("a process of it ended")
                message = json.loads(line)
                self._num_ranks = message["ranks"]
                rank: Any = key.fileobj
                if rank not in self._ranks and len(self._ranks) == self._num_ranks:
                    _tell(rank, FOR_EVER)
                    continue
                if rank not in self._ranks:
                    self._ranks.append(rank)
                said.append(message)
        return said

    def go_on(self, until: int | None) -> None:
        """To the end of that step; None ends the training."""
        for rank in self._ranks:
            _tell(rank, until)

    def _accept(self) -> None:
        connection, _ = self._server.accept()
        self._selector.register(connection, selectors.EVENT_READ, connection.makefile(encoding="utf-8"))


def _tell(rank: socket.socket, until: int | None) -> None:
    try:
        rank.sendall(f"{json.dumps({'until': until})}\n".encode())
    except OSError:
        raise SideEnded("a process of it ended") from None
