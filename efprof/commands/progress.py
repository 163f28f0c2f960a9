"""What a command is doing, for who waits at a terminal longer than a second; standard output stays as it is."""

import sys
import time
from types import TracebackType
from typing import Final, Self

PATIENCE_S: Final = 1.0
_CLEARED: Final = "\r\x1b[K"


class Progress:
    """One line on standard error that is written over again, and is gone at the end."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._is_shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._is_shown:
            print(_CLEARED, end="", file=sys.stderr, flush=True)

    def say(self, what: str) -> None:
        """It does this from now on."""
        if sys.stderr.isatty() and time.monotonic() - self._start >= PATIENCE_S:
            self._is_shown = True
            print(f"{_CLEARED}{what} ...", end="", file=sys.stderr, flush=True)
