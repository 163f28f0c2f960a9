"""What stands between the recorder and the training: an error in here never reaches the user's program."""

import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from efprof.artifacts.events import CollectorStopped
from efprof.record.writing import LineWriter


class Shell:
    """Guards every function through which training enters the recorder.

    A collector that raises is stopped: its functions do nothing from then on, one warning goes to standard
    error and one event to events.jsonl.
    """

    def __init__(self, events: LineWriter) -> None:
        self._events = events
        self._stopped: set[str] = set()

    def guarded(self, collector: str, function: Callable[..., None]) -> Callable[..., None]:
        """`function`, harmless: it swallows its own errors and stops its collector at the first."""
        stopped = self._stopped

        def call(*args: Any) -> None:
            if collector in stopped:
                return
            try:
                function(*args)
            except Exception as error:  # the recorder's shell: training must go on
                self._stop(collector, error)

        return call

    def _stop(self, collector: str, error: Exception) -> None:
        self._stopped.add(collector)
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"
        print(f"efprof: the {collector} collector stopped, training goes on: {reason}", file=sys.stderr)
        self._events.write(CollectorStopped(at_ns=time.time_ns(), step=-1, collector=collector, reason=reason))
