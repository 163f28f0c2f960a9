"""Work in a process of its own, with a limit to its memory: what breaks there costs one sentence."""

import multiprocessing
import resource
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

FORK: Final = multiprocessing.get_context("fork")


class ChildEnded(Exception):
    """It has sent nothing: it was killed, or it broke; the message says how it ended."""


def answer_of(work: Callable[..., None], *arguments: object, longest_s: float | None = None) -> Any:
    """What `work(*arguments, answer)` sends by the connection `answer`.

    Raises ChildEnded where it sends nothing, within `longest_s` seconds if they are given.
    """
    ours, theirs = FORK.Pipe(duplex=False)
    process = started(work, *arguments, theirs)
    theirs.close()
    try:
        if not ours.poll(longest_s):
            process.kill()
            raise ChildEnded(f"was stopped after {longest_s:,.0f} seconds")
        return ours.recv()
    except EOFError:
        process.join()
        raise ChildEnded(f"ended with {process.exitcode}, as where memory is short") from None
    finally:
        ours.close()
        process.join()


def started(work: Callable[..., None], *arguments: object) -> BaseProcess:
    """A process that does the work."""
    process = FORK.Process(target=work, args=arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: no thread of ours holds a lock
        process.start()
    return process


@contextmanager
def bounded_memory(num_bytes: int) -> Iterator[None]:
    """Let the process have no more than this on top of what it has, so that a few bytes cannot ask for all there is."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    except OSError:  # no Linux
        yield
        return
    limit = pages * resource.getpagesize() + num_bytes
    if soft != resource.RLIM_INFINITY:
        limit = min(limit, soft)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
