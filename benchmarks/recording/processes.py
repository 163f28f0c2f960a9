"""A worker process and the socket by which it is told to run blocks of steps."""

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from benchmarks.recording.blocks import BlockRequest, BlockTimes, SwitchRequest, SwitchTimes

ROOT = Path(__file__).parents[2]

START_TIMEOUT_S = 120
"""Importing torch takes ten times as long on a busy machine; a launcher that failed never connects."""

KEEPS_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
"""The C library keeps what a step frees. Else it gives the convolutions' 16 MiB back in each step: 4,000 page faults,
which take a third of it and differ so much that 20 ms are 15 to 28 (measured)."""


class Worker:
    """A process that waits while others run theirs."""

    def __init__(self, connection: socket.socket) -> None:
        with connection:  # the lines keep it open
            self._lines = connection.makefile("rwb")

    def close(self) -> None:
        """Hang up, by which it ends."""
        self._lines.close()

    def run(self, request: BlockRequest) -> BlockTimes:
        """Have it run one block; raises RuntimeError if it died."""
        return msgspec.json.decode(self._ask(request), type=BlockTimes)

    def switch(self, request: SwitchRequest) -> SwitchTimes:
        """Have it run the sides by turns; raises RuntimeError if it died."""
        return msgspec.json.decode(self._ask(request), type=SwitchTimes)

    def _ask(self, request: BlockRequest | SwitchRequest) -> bytes:
        self._lines.write(msgspec.json.encode(request) + b"\n")
        self._lines.flush()
        answer = self._lines.readline()
        if not answer:
            raise RuntimeError("its process ended in the middle of a block")
        return answer


@contextmanager
def started(launcher: Sequence[str], loop: str, device: str, more: Sequence[str] = ()) -> Iterator[Worker]:
    """A worker started by this launcher, which is given the worker's arguments; everything it writes is thrown away."""
    with tempfile.TemporaryDirectory(prefix="efprof-benchmark-", ignore_cleanup_errors=True) as home:
        places = {"{home}": home, "{port}": str(_free_port()), "{other_port}": str(_free_port())}
        words = [*launcher, loop, f"{home}/socket", "--device", device, *more]
        for place, value in places.items():
            words = [word.replace(place, value) for word in words]
        with socket.socket(socket.AF_UNIX) as server, Path(home, "output").open("w") as output:
            server.bind(f"{home}/socket")
            server.listen(1)
            server.settimeout(1.0)
            process = subprocess.Popen(words, cwd=ROOT, env=_environment(home), stdout=output, stderr=output)
            worker = Worker(_accept(server, process, Path(home, "output")))
            try:
                yield worker
            finally:
                worker.close()
                process.wait(timeout=START_TIMEOUT_S)


def _accept(server: socket.socket, process: subprocess.Popen[bytes], output: Path) -> socket.socket:
    """Raises RuntimeError, with what it wrote last, where the launcher ended or never started the worker."""
    for _ in range(START_TIMEOUT_S):
        if process.poll() is not None:
            break
        with suppress(TimeoutError):
            return server.accept()[0]
    process.terminate()
    raise RuntimeError(f"its worker did not start:\n{output.read_text(errors='replace')[-1000:]}")


def _environment(home: str) -> dict[str, str]:
    ours = {"EFPROF_HOME": f"{home}/efprof", "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6"}
    return {**os.environ, **ours, **KEEPS_MEMORY}


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port
