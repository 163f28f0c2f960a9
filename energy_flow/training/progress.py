"""The progress of training as one line on a terminal, drawn over in place."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TextIO

from energy_flow.logs import EverySeconds
from energy_flow.training.device_monitor import format_bytes

_DRAW_SECONDS: Final = 0.1
"""Ten draws a second: more is not seen, and costs."""

_NARROW_TERMINAL: Final = 80
"""Columns where the terminal does not say."""

_ERASE: Final = "\r\x1b[K"
"""To the line's beginning, and erase to its end."""

_MEMORY_OF_RATE: Final = 0.9
"""Share of the earlier seconds per batch that the new average keeps: it follows the last ten batches or so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Where training is, as the line shows it."""

    elapsed_s: float
    epoch: int
    batch: int  # of its epoch, from 1
    batches_per_epoch: int
    seconds_per_batch: float
    loss: float | None  # the newest that has reached the host
    memory_bytes: int | None
    remaining_s: float

    def text(self, width: int) -> str:
        """The line, without the parts at its end for which `width` columns leave no room."""
        parts = [
            format_duration(self.elapsed_s),
            f"epoch {self.epoch}",
            f"batch {self.batch}/{self.batches_per_epoch}",
            f"{self.seconds_per_batch:.3g} s/batch",
            *([] if self.loss is None else [f"loss {self.loss:.4f}"]),
            *([] if self.memory_bytes is None else [format_bytes(self.memory_bytes)]),
            f"{format_duration(self.remaining_s)} left",
        ]
        while len(parts) > 1 and len("  ".join(parts)) > width:
            parts.pop()
        return "  ".join(parts)[: max(0, width)]


class ProgressLine:
    """Draws a line over itself at most ten times a second; what is written to it appears above.

    It has what a logging handler needs of a stream, so log lines can go through it and never tear it.
    """

    def __init__(
        self,
        mode: Literal["auto", "on", "off"],
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Draw on `stream`, standard error unless named; `auto` draws only on a terminal, and one that can erase."""
        self.stream = sys.stderr if stream is None else stream
        self.is_drawn = mode == "on" or (mode == "auto" and _can_erase(self.stream))
        self._often = EverySeconds(_DRAW_SECONDS, clock=clock)
        self._shown = ""
        self._lock = threading.Lock()

    def is_due(self) -> bool:
        """Whether a new line would be drawn now; asking takes the turn."""
        return self.is_drawn and self._often.is_due()

    def draw(self, progress: Progress) -> None:
        """Put `progress` in the place of what stands there."""
        with self._lock:
            self._shown = progress.text(_width(self.stream) - 1)  # a full line makes some terminals begin a new one
            self._put(_ERASE + self._shown)

    def write(self, text: str) -> None:
        """Write whole lines above the progress line."""
        with self._lock:
            self.stream.write(_ERASE + text + self._shown if self._shown else text)

    def flush(self) -> None:
        """Bring what was written to the terminal."""
        self.stream.flush()

    def clear(self) -> None:
        """Leave nothing of the line behind."""
        with self._lock:
            if self._shown:
                self._shown = ""
                self._put(_ERASE)

    def _put(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except OSError:  # the terminal is gone; training goes on without the line
            self.is_drawn = False


class BatchProgress:
    """Counts the batches of a run, estimates the time that is left, and draws both on a line."""

    def __init__(
        self,
        line: ProgressLine,
        *,
        first_batch: int,
        num_batches: int,
        batches_per_epoch: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`first_batch` batches of `num_batches` are behind a run that goes on from a checkpoint."""
        self.line = line
        self._done, self._num_batches, self._per_epoch = first_batch, num_batches, batches_per_epoch
        self._clock = clock
        self._start = self._last = clock()
        self._rate: float | None = None

    def start(self) -> None:
        """Batches begin now: what came before since the last one counts to none."""
        self._last = self._clock()

    def batch_done(self, *, loss: float | None, memory_bytes: int | None) -> None:
        """Count a batch, and draw the line if it is time to."""
        now = self._clock()
        seconds, self._last = now - self._last, now
        kept = 0.0 if self._rate is None else _MEMORY_OF_RATE
        self._rate = kept * (self._rate or 0.0) + (1 - kept) * seconds
        epoch, place = divmod(self._done, self._per_epoch)
        self._done += 1
        if self.line.is_due():
            progress = Progress(
                elapsed_s=now - self._start,
                epoch=epoch + 1,
                batch=place + 1,
                batches_per_epoch=self._per_epoch,
                seconds_per_batch=self._rate,
                loss=loss,
                memory_bytes=memory_bytes,
                remaining_s=self._rate * max(0, self._num_batches - self._done),
            )
            self.line.draw(progress)


def format_duration(seconds: float) -> str:
    """`0:07`, `12:30`, `3:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _can_erase(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _NARROW_TERMINAL
    except (OSError, ValueError):  # no terminal, under `on`
        return _NARROW_TERMINAL
