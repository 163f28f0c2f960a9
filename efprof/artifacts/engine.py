"""Does the same with many files at once: a process for each processor, or the workers of a Dask cluster."""

import multiprocessing
import pickle
import signal
import subprocess
import sys
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from efprof.artifacts.processors import num_processors
from efprof.model import EfprofError, UnreadableInput, with_place

R = TypeVar("R")

Work = Callable[[], R]
"""Raises UnreadableInput where its file cannot be read; for a cluster it can be pickled."""

DASK = "dask://"
RETRIES_ON_A_CLUSTER = 2
TURNS = 4
"""So many processes follow each other in the place of one, so that a slow work keeps few others waiting."""
CONNECT_S = "30s"

_is_apart = False
"""Whether this process was started for one work, and may end with it."""


def carry_out(works: Sequence[tuple[str, Work[R]]], engine: str | None) -> list[R | UnreadableInput]:
    """What each work gives, which comes with the name of its file; raises EfprofError where there is no such engine.

    `engine` is `dask://scheduler:8786`, or None for processes of this machine.
    """
    if not works:
        return []
    if engine is None:
        return in_processes(works, num_processors())
    with client_of(engine) as client:  # each on some worker, with the same files there; waits for workers to come
        futures = [
            client.submit(_apart, pickle.dumps(work), retries=RETRIES_ON_A_CLUSTER, pure=False) for _, work in works
        ]
        return [_of_future(name, future) for (name, _), future in zip(works, futures, strict=True)]


def in_processes(works: Sequence[tuple[str, Work[R]]], num_processes: int) -> list[R | UnreadableInput]:
    """Each work in a forked process, at most so many at once.

    Of several works one whose process ends without its answer is tried again: memory may have been short, and a second
    time it is the file. Where works are many a process does several, one after the other: a fork costs 25 ms of CPU. A
    process that was started for works does works of its own itself. Raises RuntimeError for an error of ours.
    """
    if _is_apart:
        return [_answer(work) for _, work in works]
    share = 1 + len(works) // (TURNS * num_processes)
    todo = deque(deque(range(len(works))[first : first + share]) for first in range(0, len(works), share))
    running: dict[Connection, tuple[BaseProcess, deque[int]]] = {}
    answers: dict[int, R | UnreadableInput] = {}
    tried = set[int]()
    try:
        while todo or running:
            while todo and len(running) < num_processes:
                places = todo.popleft()
                ours, theirs = Pipe(duplex=False)
                running[ours] = started(_do, [works[place][1] for place in places], theirs.send), places
                theirs.close()
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                process, places = running[ready]
                answer = _received(ready)
                if answer is not None:
                    answers[places.popleft()] = _checked(answer[0])
                else:
                    process.join()
                    place = places[0]
                    if place in tried or len(works) == 1:
                        how = _how_it_ended(process.exitcode or 0)
                        why = f"{works[place][0]} cannot be read: its reader {how}."
                        answers[places.popleft()] = UnreadableInput(why)
                    tried.add(place)
                    todo += [places] if places else []
                if answer is None or not places:
                    del running[ready]
                    process.join()
    finally:
        for process, _ in running.values():
            process.kill()
            process.join()
    return [answers[place] for place in range(len(works))]


def started(work: Callable[..., None], *arguments: object) -> BaseProcess:
    """A process that does the work."""
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: no thread of ours holds a lock
        process.start()
    return process


def _how_it_ended(exit_code: int) -> str:
    if exit_code == -signal.SIGALRM:
        return "took too long"
    return f"ended with {exit_code}{', as where memory is short' if exit_code < 0 else ''}"


def _do(works: Sequence[Work[Any]], send: Callable[[Any], object]) -> None:
    """Send what each gives; an error of ours by its name and place, as it might not come back as it was."""
    global _is_apart
    _is_apart = True
    try:
        for work in works:
            send(_answer(work))
    except Exception as error:
        send(RuntimeError(with_place(error)))
        raise


def _answer(work: Work[R]) -> R | UnreadableInput:
    try:
        return work()
    except UnreadableInput as error:
        return error


def _checked(result: R | RuntimeError) -> R:
    if isinstance(result, RuntimeError):
        raise result
    return result


def _received(answer: Connection) -> tuple[Any] | None:
    """None where the process ended before all of its answer was sent."""
    try:
        return (answer.recv(),)
    except (EOFError, OSError):
        return None


def client_of(engine: str) -> Any:
    """A connection to the scheduler, to be closed; raises EfprofError where there is none."""
    if not engine.startswith(DASK):
        raise EfprofError(f"--engine {engine} is no engine: write the address of a scheduler, dask://HOST:8786.")
    try:
        from distributed import Client
    except ImportError:
        raise EfprofError(f"--engine {engine} needs Dask: install it by 'pip install distributed'.") from None
    try:
        return Client(engine.removeprefix(DASK), timeout=CONNECT_S)
    except (OSError, TypeError, ValueError) as error:
        raise EfprofError(f"no scheduler of Dask answers at {engine} ({error}).") from None


def _apart(work: bytes) -> bytes:
    """In a process of its own: a worker has threads, which a fork does not survive, and memory that others need."""
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(command, input=work, stdout=subprocess.PIPE, check=False)
    if done.returncode < 0 or not done.stdout:
        done.check_returncode()
    return done.stdout


def _of_future(name: str, future: Any) -> Any:
    error = future.exception()  # waits; a worker that is killed has its works done by others
    if error is not None:
        return UnreadableInput(f"{name} cannot be read by the cluster: {type(error).__name__}, {error}.")
    return _checked(pickle.loads(future.result()))  # noqa: S301 -- pickled by `_apart`


if __name__ == "__main__":
    _do([pickle.load(sys.stdin.buffer)], lambda result: pickle.dump(result, sys.stdout.buffer))  # noqa: S301 -- of `_apart`
