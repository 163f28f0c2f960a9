"""Where an operator is called: the user's line, a library's below it, the module; within backward, of its forward one.

An autograd node has the sequence number that was its thread's when the forward operation ran.
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from efprof.recorder.session.sites import Sites, callers

NUM_BEFORE = 12


class Place(NamedTuple):
    """Where an operation was called: the user's line, a library's below it, and the innermost module."""

    site: str | None
    library_site: str
    module: Any
    is_users: bool = False
    """Of an operation within backward: whether the user's own code calls it there."""


class Places:
    """Asked at every operator, so that each line is looked up once."""

    def __init__(self, sites: Sites) -> None:
        self.modules: list[Any] = []
        """Those whose forward pass runs, the innermost last."""
        self.before = deque[str](maxlen=NUM_BEFORE)
        """The nodes that ran last."""
        self._sites = sites
        self._forward: dict[tuple[int, int], Place] = {}
        """By the thread and its sequence number."""
        self._lines: dict[tuple[CodeType, int], str] = {}
        self._thread = threading.get_ident()

    def now(self) -> Place:
        """Of the operation that is called now; within backward, of the forward one behind it."""
        node: Any = torch._C._current_autograd_node()
        if node is None:
            found = self._of_frames(callers())
            number: int = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
            self._forward.setdefault((threading.get_ident(), number), found)
            return found
        if not self.before or self.before[-1] != node.name():
            self.before.append(node.name())
        found = self._of_frames(_within_pass())
        if found.site is not None:  # a backward, a hook, or a forward pass once more: the user's own
            return found._replace(is_users=True)
        keys = ((thread, int(node._sequence_nr())) for thread in (self._thread, threading.get_ident()))
        return next((self._forward[key] for key in keys if key in self._forward), found)

    def optimizer(self) -> tuple[str, float | None]:
        """The optimizer whose own update calls the operation, and its `eps`; a closure is the program's."""
        for frame in callers():
            if isinstance(one := frame.f_locals.get("self"), torch.optim.Optimizer):
                return type(one).__name__, one.param_groups[0].get("eps")
            if self._sites.is_user_code(frame.f_code):
                break
        return "", None

    def _of_frames(self, frames: Iterable[FrameType]) -> Place:
        library, module = "", self.modules[-1] if self.modules else None
        for frame in frames:
            line = self._line(frame)
            if line.startswith("+"):
                return Place(line[1:], library, module)
            library = library or line
        return Place(None, library, module)

    def _line(self, frame: FrameType) -> str:
        """Led by a plus where the user wrote it; empty of torch, of Python and of efprof."""
        key = frame.f_code, frame.f_lasti
        if key not in self._lines:
            line = self._sites.of_line(frame.f_code, frame.f_lineno)
            is_other = "-packages/" in line and "-packages/torch/" not in line and __name__ not in frame.f_globals
            self._lines[key] = f"+{line}" if self._sites.is_user_code(frame.f_code) else line if is_other else ""
        return self._lines[key]


def _within_pass() -> Iterator[FrameType]:
    """The frames from here to where autograd was told to run its nodes."""
    for frame in callers():
        if frame.f_code.co_name == "_engine_run_backward":
            return
        yield frame
