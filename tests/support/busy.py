"""Other programs that want a core each, to see what a recording or a test makes of a busy machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LOOP = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    for _ in range(10**6): pass"
"""It ends with the process that started it, by whatever that is killed."""


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", LOOP, str(os.getpid())]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
