"""Does the same with many files at once: a process for each processor, or the workers of a Dask cluster."""

import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, TypeVar

from efprof.artifacts.child import FORK, started
from efprof.artifacts.processors import num_processors
from efprof.model import EfprofError, UnreadableInput

R = TypeVar("R")

Work = Callable[[], R]
"""Raises UnreadableInput where its file cannot be read; for a cluster it can be pickled."""

DASK: Final = "dask://"
RETRIES_HERE: Final = 1
"""A killed process may have been one of many that memory was short for; a second time it is the file."""
RETRIES_ON_A_CLUSTER: Final = 2
CONNECT_S: Final = "30s"


def carry_out(works: Sequence[tuple[str, Work[R]]], engine: str | None) -> list[R | UnreadableInput]:
    """What each work gives, which comes with the name of its file; raises EfprofError where there is no such engine.

    `engine` is `dask://scheduler:8786`, or None for processes of this machine.
    """
    if not works:
        return []
    if engine is None:
        return in_processes(works, num_processors())
    if not engine.startswith(DASK):
        raise EfprofError(f"--engine {engine} is no engine: write the address of a scheduler, dask://HOST:8786.")
    return _on_dask(works, engine)


def in_processes(works: Sequence[tuple[str, Work[R]]], num_processes: int) -> list[R | UnreadableInput]:
    """Each work in a forked process of its own, at most so many at once; one that is killed is tried again once."""
    todo = deque((place, RETRIES_HERE) for place in range(len(works)))
    running: dict[Connection, tuple[BaseProcess, int, int]] = {}
    answers: dict[int, R | UnreadableInput] = {}
    try:
        while todo or running:
            while todo and len(running) < num_processes:
                place, retries = todo.popleft()
                ours, theirs = FORK.Pipe(duplex=False)
                running[ours] = started(_answer, works[place][1], theirs), place, retries
                theirs.close()
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                process, place, retries = running.pop(ready)
                with ready:
                    answer = _received(ready)
                process.join()
                if answer is not None:
                    answers[place] = answer[0]
                elif retries and (process.exitcode or 0) < 0:
                    todo.append((place, retries - 1))
                else:
                    how = f"its reader ended with {process.exitcode}, as where memory is short"
                    answers[place] = UnreadableInput(f"{works[place][0]} cannot be read: {how}.")
    finally:
        for process, *_ in running.values():
            process.kill()
            process.join()
    return [answers[place] for place in range(len(works))]


def _answer(work: Work[Any], answer: Connection) -> None:
    answer.send((_result(work),))


def _result(work: Work[R]) -> R | UnreadableInput:
    try:
        return work()
    except UnreadableInput as error:
        return error


def _received(answer: Connection) -> tuple[Any] | None:
    """None where the process ended before all of its answer was sent."""
    try:
        received: tuple[Any] = answer.recv()
    except (EOFError, OSError):
        return None
    return received


def _on_dask(works: Sequence[tuple[str, Work[R]]], engine: str) -> list[R | UnreadableInput]:
    """Each work on some worker, with the same files and the same efprof there; waits for workers to come."""
    try:
        from distributed import Client
    except ImportError:
        raise EfprofError(f"--engine {engine} needs Dask: install it by 'pip install efprof[dask]'.") from None
    try:
        client = Client(engine.removeprefix(DASK), timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        raise EfprofError(f"no scheduler of Dask answers at {engine} ({error}).") from None
    with client:
        futures = [
            client.submit(_apart, pickle.dumps(work), retries=RETRIES_ON_A_CLUSTER, pure=False) for _, work in works
        ]
        return [_of_future(name, future) for (name, _), future in zip(works, futures, strict=True)]


def _apart(work: bytes) -> bytes:
    """In a process of its own: a worker has threads, which a fork does not survive, and memory that others need."""
    command = [sys.executable, "-m", __name__]
    return subprocess.run(command, input=work, stdout=subprocess.PIPE, check=True).stdout


def _of_future(name: str, future: Any) -> Any:
    error = future.exception()  # waits; a worker that is killed has its works done by others
    if error is not None:
        return UnreadableInput(f"{name} cannot be read by the cluster: {type(error).__name__}, {error}.")
    return pickle.loads(future.result())  # noqa: S301 -- pickled by `_apart`


if __name__ == "__main__":
    sys.stdout.buffer.write(pickle.dumps(_result(pickle.load(sys.stdin.buffer))))  # noqa: S301 -- of `_apart`
