"""Work in a process of its own, with a limit to its memory: what breaks there costs one sentence."""

import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path


def started(work: Callable[..., None], *arguments: object) -> BaseProcess:
    """A process that does the work."""
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: no thread of ours holds a lock
        process.start()
    return process


@contextmanager
def bounded_memory(num_bytes: int) -> Iterator[None]:
    """Let the process have no more than this on top of what it has, so that a few bytes cannot ask for all there is."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    except (ImportError, OSError):  # no Linux
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
