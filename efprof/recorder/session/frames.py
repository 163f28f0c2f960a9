"""The frames of Python that hold variables: of functions that run, and of generators that wait."""

from collections.abc import Iterator, Set
from types import CodeType, FrameType
from typing import Any


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those that wait for it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_running(code: CodeType, frame: FrameType | None) -> bool:
    """Whether this frame, or one that waits for it, runs this code."""
    return any(caller.f_code is code for caller in callers(frame))


def waiting(generators: list[Any], known: Set[int], running: Set[int]) -> list[tuple[Any, FrameType]]:
    """All but those that are known, by `id`, and those whose frames run, each with its frame.

    That is how one is found that no variable holds: `for batch in batches()` keeps its own on the interpreter's stack.
    """
    found = [one for one in generators if id(one) not in known]
    return [(one, frame) for one in found if (frame := one.gi_frame) is not None and id(frame) not in running]
