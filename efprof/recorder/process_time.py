"""How much CPU time the process used within a step."""

import time
from time import perf_counter_ns

MIN_INTERVAL_NS = 20_000_000
"""Asking the kernel costs 4 us after a training step (measured): a short step takes its share of several."""


class ProcessTime:
    """CPU time of all threads, asked for at the end of a step, at most once per MIN_INTERVAL_NS."""

    def __init__(self) -> None:
        self._asked_ns = 0
        self._spent_ns = 0
        self._rate = 0.0

    def restart(self) -> None:
        """What was used up to now belongs to no step."""
        self._asked_ns, self._spent_ns = perf_counter_ns(), time.process_time_ns()

    def within(self, start_ns: int, end_ns: int) -> float:
        """Nanoseconds used by a step: its share of what was used since the kernel was asked last."""
        now = perf_counter_ns()
        elapsed = now - self._asked_ns
        if elapsed >= MIN_INTERVAL_NS or not self._rate:
            spent = time.process_time_ns()
            self._rate = (spent - self._spent_ns) / max(1, elapsed)
            self._asked_ns, self._spent_ns = now, spent
        return self._rate * (end_ns - start_ns)
