"""Reads large files without Python's garbage collector, which would go through them again and again."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Decoding makes a million live objects and no garbage: collecting meanwhile doubles its time (measured)."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
