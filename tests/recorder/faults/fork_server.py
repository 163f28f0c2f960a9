"""Runs training scripts in processes of their own without paying for the import of torch each time.

Run as a program it is the server: it has imported torch, and forks a process for every order it reads; the child
starts recording as the start-up hook would have it, where it is to be recorded, and then is the script, until its end.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.support.waiting import MAX_WAIT_S

ROOT = Path(__file__).parents[3]

SCRIPT = "train.py"


@dataclass(kw_only=True)
class Child:
    """The script `place/train.py` that runs, or ran, recorded into `folder`."""

    pid: int
    place: Path
    folder: Path
    server: "ForkServer"
    code: int | None = None

    def wait(self) -> int:
        """The code it ended with; -n where signal n ended it, SIGKILL after MAX_WAIT_S."""
        if self.code is None:
            killer = threading.Timer(MAX_WAIT_S, os.kill, (self.pid, signal.SIGKILL))
            killer.start()
            self.code = int(self.server.read_line())
            killer.cancel()
        return self.code

    @property
    def script(self) -> Path:
        return self.place / SCRIPT

    @property
    def output(self) -> str:
        path = self.place / "output"
        return path.read_text() if path.exists() else ""

    @property
    def errors(self) -> str:
        """Without what triton 3.9 (of torch 2.15) says of objects that a child of ours never collects."""
        return (self.place / "errors").read_text().partition("nanobind: leaked")[0]

    def end_by(self, number: signal.Signals) -> int:
        os.kill(self.pid, number)
        return self.wait()


class ForkServer:
    """One child at a time: wait for the last one before starting the next."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, place: Path, folder: Path, *, options: str, environment: Mapping[str, str] | None = None) -> Child:
        """Start `place/train.py`; `options` are those of the recording, as the environment hands them on, if any."""
        assert self._process.stdin is not None
        order = {"place": str(place), "options": options, "environment": environment or {}}
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return Child(pid=int(self.read_line()), place=place, folder=folder, server=self)

    def read_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=MAX_WAIT_S)
        self._process.stdout.close()


def serve() -> None:
    """Fork for every line of standard input; the child's number goes out first, its exit code when it has ended."""
    import_what_a_child_needs()
    gc.freeze()  # or each child would look through all of torch for garbage when it ends
    orders = sys.stdin
    while line := orders.readline():
        pid = os.fork()
        if pid == 0:
            become(json.loads(line))
            return
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def import_what_a_child_needs() -> None:
    """Torch and all of the recorder, once for all children."""
    import torch._dynamo  # noqa: F401 - torch itself does at the first optimizer, for a second

    import efprof.recorder.session.endings  # noqa: F401
    from efprof.recorder.session.session import collector_candidates

    for name in collector_candidates():
        importlib.import_module(name)


def become(order: dict[str, Any]) -> None:
    """Start recording where there are options for it, and run the script."""
    from efprof.recorder.launch.start import start
    from efprof.recorder.session.options import VARIABLE

    os.environ.update(order["environment"])
    if order["options"]:
        os.environ[VARIABLE] = order["options"]
    os.chdir(order["place"])
    _redirect(sys.stdin, os.open(os.devnull, os.O_RDONLY))
    _redirect(sys.stdout, os.open("output", os.O_CREAT | os.O_WRONLY | os.O_TRUNC))
    _redirect(sys.stderr, os.open("errors", os.O_CREAT | os.O_WRONLY | os.O_TRUNC))
    script = str(Path(order["place"]) / SCRIPT)
    sys.argv, sys.path[0] = [script], order["place"]
    start()
    runpy.run_path(script, run_name="__main__")


def _redirect(stream: IO[str], descriptor: int) -> None:
    os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


if __name__ == "__main__":
    serve()
