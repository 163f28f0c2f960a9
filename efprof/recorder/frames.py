"""The frames of Python that hold variables: of functions that run, and of generators that wait."""

import gc
from collections.abc import Iterator, Set
from itertools import compress, repeat
from operator import is_
from types import FrameType, GeneratorType
from typing import Any


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those that wait for it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def waiting_generators(known: Set[int], running: Set[int]) -> list[tuple[Any, FrameType]]:
    """All but those that are known, by `id`, and those whose frames run, each with its frame.

    That is how one is found that no variable holds: `for batch in batches()` keeps its own on the interpreter's stack.
    """
    objects = gc.get_objects()
    found = [
        one for one in compress(objects, map(is_, map(type, objects), repeat(GeneratorType))) if id(one) not in known
    ]
    return [(one, frame) for one in found if (frame := one.gi_frame) is not None and id(frame) not in running]
