"""Runs scripts without the recorder, each in a fork of one process: importing torch takes longer than they do.

    python -m tests.scripts.forked FOLDER SCRIPT[:RANKS]...

What `name.py` prints becomes FOLDER/name.out, its standard error FOLDER/name.err.
"""

import os
import runpy
import signal
import socket
import sys
from pathlib import Path

import torch._dynamo  # the first optimizer would import it  # noqa: F401

from tests.support.patience import MAX_WAIT_S


def main(folder: Path, scripts: list[str]) -> None:
    for text in scripts:
        script, _, ranks = text.partition(":")
        num_ranks = int(ranks or 1)
        launch = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(num_ranks)}
        for rank in range(num_ranks):
            if os.fork() == 0:
                os.environ.update(launch | {"RANK": str(rank)} if num_ranks > 1 else {})
                run(script, folder / Path(script).stem)
                return
        statuses = [os.wait()[1] for _ in range(num_ranks)]
        if any(statuses):
            sys.exit(f"{script} failed; see {folder}")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        port: int = one.getsockname()[1]
    return port


def run(script: str, output: Path) -> None:
    signal.alarm(MAX_WAIT_S)
    for descriptor, suffix in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(output.with_suffix(suffix), os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    sys.argv = [script]
    sys.path[0] = str(Path(script).parent)  # as Python has it for a script: some import what lies beside them
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
