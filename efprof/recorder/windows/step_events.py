"""Reckons the events of a profiler's window, and what they cost, from what one step before it calls."""

import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from time import thread_time_ns
from types import FrameType
from typing import Any, NamedTuple

import torch

MAX_EVENTS = 300_000
"""Of a window: so many take some 6 s, 0.8 GiB of memory and 120 MB of raw trace (measured: 20 us, 400 bytes each)."""

MAX_MORE = 3
MIN_EVENTS = 20_000
"""A window that has so many times the events that were reckoned, and more than these, holds something else."""

OPERATORS_PER_NODE = 10
OPERATORS_PER_CALL = 2
"""Operators that run for each node of autograd's graph, its backward included, and for each call of a C function of
torch's. Of nine loops the five with more than 4,000 operators in a step ran 0.8 to 2.1 times what both say; an
optimizer runs one a call."""

EVENTS_PER_OPERATOR = 1.5
"""In a full window, where what an operator allocates and frees has events too."""

EVENTS_ON_DEVICE = 2
"""Its launch and its kernel."""

FIRST_EVENT_NS = {False: 22_000.0, True: 8_000.0}
"""What an event of a full window costs, and of a lean one, where no window has shown it."""

IN_STEP_NS = 1_500
"""Of that, what passes within the step (measured: 1 to 3 us)."""

START_NS = {False: 100_000_000, True: 5_000_000}
"""What a full window and a lean one cost beside their events."""

COUNT_NS, COUNT_C_NS = 250, 500
"""What it costs to count a call, or its return, and what a call of a C function costs more (measured)."""

THREADS_CALL_NS = 200
"""What a call takes that another thread makes, at least: Python has a window look at all of its threads."""

MIN_EVENT_NS = 1_000.0

MIN_LEARNED = 10_000
"""Events of a window that shows what one costs."""

MAX_AGE = 100
"""Steps for which a count holds."""


class Calls(NamedTuple):
    """What ran so far: calls, those of C functions of torch's, nodes of autograd's graph, and the thread's CPU time;
    that of the program's other threads that run Python.
    """

    calls: int = 0
    of_torch: int = 0
    nodes: int = 0
    cpu_ns: int = 0
    threads_ns: int = 0

    def since(self, before: "Calls") -> "Calls":
        return Calls(*(now - then for now, then in zip(self, before, strict=True)))


class StepEvents:
    """Counts one step's calls by `sys.setprofile`, which slows the step by 0.2 us a call."""

    def __init__(self) -> None:
        self.is_counting = self.has_more = False
        self._counted = Counter[str]()
        self._began = self._fetched = Calls()
        self._step, self._after_fetch = Calls(), Calls()
        self._number = -MAX_AGE
        self._event_ns = dict(FIRST_EVENT_NS)

    def begin(self) -> bool:
        """Count from here on; False where a profiler of the program's is on."""
        if sys.getprofile() is None:
            self._counted.clear()
            self._began = self._fetched = self._now()
            self.is_counting = True
            sys.setprofile(self._note)
        return self.is_counting

    def fetch_ended(self) -> None:
        if self.is_counting and self._fetched == self._began:
            self._fetched = self._now()

    def end(self, number: int) -> None:
        """The step of this number is over, and was counted whole."""
        now = self._now()
        self._step, self._after_fetch, self._number = now.since(self._began), now.since(self._fetched), number
        self.has_more = max(self._counted.values(), default=0) > MAX_EVENTS
        self.stop()

    def stop(self) -> None:
        self.is_counting = False
        if sys.getprofile() == self._note:
            sys.setprofile(None)

    def are_known(self, number: int) -> bool:
        """Whether a step was counted that is not long before this one."""
        return number - self._number <= MAX_AGE

    def own_ns(self, num_steps: int, *, skips_fetch: bool) -> int:
        """The CPU time of so many steps by themselves, in the thread that trains."""
        return max(0, num_steps * (self._after_fetch if skips_fetch else self._step).cpu_ns)

    @property
    def counting_ns(self) -> int:
        """What counting has cost."""
        num_events = self._counted.total() - self._counted["of torch"]
        return num_events * COUNT_NS + self._counted["c_call"] * COUNT_C_NS

    @property
    def has_fetch(self) -> bool:
        return self._after_fetch != self._step

    def in_window(self, num_steps: int, *, is_lean: bool, skips_fetch: bool) -> int:
        step = self._after_fetch if skips_fetch else self._step
        operators = OPERATORS_PER_NODE * step.nodes + OPERATORS_PER_CALL * step.of_torch
        on_device = EVENTS_ON_DEVICE if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]
        if is_lean:
            return round(num_steps * operators * (1 + on_device))
        calls = step.calls + max(0, step.threads_ns) / THREADS_CALL_NS
        return round(num_steps * (calls + operators * (EVENTS_PER_OPERATOR + on_device)))

    def cost_ns(self, num_events: int, *, is_lean: bool) -> int:
        return START_NS[is_lean] + round(num_events * self._event_ns[is_lean])

    def learn(self, num_events: int, cost_ns: int, *, is_lean: bool) -> None:
        """A window had so many events, and cost so much."""
        if num_events >= MIN_LEARNED:
            self._event_ns[is_lean] = max(MIN_EVENT_NS, (cost_ns - START_NS[is_lean]) / num_events)

    def _now(self) -> Calls:
        nodes = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        num_calls = self._counted["call"] + self._counted["c_call"]
        cpu_ns, threads_ns = thread_time_ns() - self.counting_ns, _other_threads_ns()
        return Calls(num_calls, self._counted["of torch"], nodes, cpu_ns, threads_ns)

    def _note(self, _: FrameType, event: str, function: Any) -> None:
        self._counted[event] += 1
        if event == "c_call":
            is_method = issubclass(type(getattr(function, "__self__", None)), torch.Tensor)
            self._counted["of torch"] += is_method or str(function.__module__).startswith("torch")
        if self._counted[event] > MAX_EVENTS or not self.is_counting:  # too many; or it was stopped in another thread
            sys.setprofile(None)


def _other_threads_ns() -> int:
    """CPU time of those that run Python; one that has ended since is left out."""
    total = 0
    for thread in threading.enumerate():
        file = Path(f"/proc/self/task/{thread.native_id}/schedstat")
        if thread is not threading.current_thread():
            with suppress(OSError):
                total += int(file.read_text(encoding="ascii").split()[0])
    return total
