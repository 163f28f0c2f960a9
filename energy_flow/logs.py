"""Log levels below INFO, rank-aware logging, messages that do not repeat too often, and values computed when wanted.

Production runs at INFO: a line per epoch and warnings. `runtime.log_level` turns the levels below on.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

TRAINING: Final = 18
"""What each logged step came to: loss, gradient norm."""
PERFORMANCE: Final = 15
"""Where a step's time went."""
PROFILING: Final = 12
"""What the device holds and does; still above DEBUG (10), which other libraries fill."""

LEVELS: Final = {
    "profiling": PROFILING,
    "performance": PERFORMANCE,
    "training": TRAINING,
    "info": logging.INFO,
    "warning": logging.WARNING,
}
"""By the names that `runtime.log_level` takes."""

for _name, _level in LEVELS.items():
    logging.addLevelName(_level, _name.upper())

_PACKAGE: Final = "energy_flow"


class LogStream(Protocol):
    """What log lines are written to."""

    def write(self, text: str, /) -> object:
        """Take whole lines."""

    def flush(self) -> object:
        """Bring them to where they are read."""


def set_up_logging(level_name: str, *, rank: int = 0, stream: LogStream | None = None) -> None:
    """Send what the package logs to `stream`, standard error unless named: all of rank 0, of others only warnings.

    Calling it again replaces the earlier set-up. Raises KeyError for a name that is not in `LEVELS`.
    """
    logger = logging.getLogger(_PACKAGE)
    for handler in _handlers():
        logger.removeHandler(handler)
    handler = _PackageHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(_Formatter(rank))
    logger.addHandler(handler)
    level = LEVELS[level_name]
    logger.setLevel(level if rank == 0 else max(level, logging.WARNING))
    logger.propagate = False  # a library's call of logging.warning() gives the root a handler: each line would be twice


@contextmanager
def logging_through(line: LogStream, *, instead_of: LogStream) -> Iterator[None]:
    """Within, log lines for the stream `instead_of` go to `line`, a progress line there that makes room for them."""
    handlers = [handler for handler in _handlers() if handler.stream is instead_of]
    for handler in handlers:
        handler.setStream(line)
    try:
        yield
    finally:
        for handler in handlers:
            handler.setStream(instead_of)


def log_lazily(logger: logging.Logger, level: int, template: str, values: Callable[[], tuple[object, ...]]) -> None:
    """Log `template % values()`; `values` is called only where the level is on."""
    if logger.isEnabledFor(level):
        logger.log(level, template, *values(), stacklevel=2)


class Every:
    """Due at first, and again once `num_steps` steps have passed since it was last due."""

    def __init__(self, num_steps: int) -> None:
        """Nothing has been due yet."""
        self._num_steps = num_steps
        self._last: int | None = None

    def is_due(self, step: int) -> bool:
        """Whether to speak at `step`; asking takes the turn."""
        if self._last is not None and step - self._last < self._num_steps:
            return False
        self._last = step
        return True


class EverySeconds:
    """Due at first, and again once `seconds` have passed since it was last due."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing has been due yet."""
        self._seconds, self._clock = seconds, clock
        self._last: float | None = None

    def is_due(self) -> bool:
        """Whether to speak now; asking takes the turn."""
        now = self._clock()
        if self._last is not None and now - self._last < self._seconds:
            return False
        self._last = now
        return True


class FirstSteps:
    """Due in the first `num_steps` steps after `first_step`, which is where a run begins or goes on."""

    def __init__(self, num_steps: int, *, first_step: int = 0) -> None:
        """Steps count from 1, so a run from its beginning has `first_step` 0."""
        self._last = first_step + num_steps

    def is_due(self, step: int) -> bool:
        """Whether `step` is among the first."""
        return step <= self._last


class _PackageHandler(logging.StreamHandler[LogStream]):
    """Marks the handler as ours, to be found again."""


class _Formatter(logging.Formatter):
    """The message; what is not the first rank's names its rank, and a warning says that it is one."""

    def __init__(self, rank: int) -> None:
        super().__init__("%(message)s")
        self._prefix = f"rank {rank}: " if rank else ""

    def format(self, record: logging.LogRecord) -> str:
        severity = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return self._prefix + severity + super().format(record)


def _handlers() -> list[_PackageHandler]:
    return [handler for handler in logging.getLogger(_PACKAGE).handlers if isinstance(handler, _PackageHandler)]
