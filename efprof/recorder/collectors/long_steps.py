"""Samples what the training thread does while a step lasts far longer than usual, by a thread of the recorder's.

The thread sleeps until the open step would be a long one, and wakes at most 20 times a second for that. What it sees
then of steps that stay usual is counted too: a line that they have as well is not what makes others long.
"""

import threading
from collections import Counter
from collections.abc import Iterable
from os.path import commonprefix
from time import perf_counter_ns, thread_time_ns
from typing import Any

from torch.utils.data import dataloader

from efprof.artifacts.readings import LONG_STEPS_FILE, LongStep, SampledStack, least_long_step
from efprof.recorder.budget.sampling import Budget
from efprof.recorder.collectors.worker_samples import MAX_JOIN_S
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.loop.steps import epoch_ns
from efprof.recorder.session.hidden_thread import HiddenThread
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Shell
from efprof.recorder.session.sites import Sites, callers
from efprof.recorder.session.stacks import MOST_CALLS, Call, calls_of
from efprof.recorder.session.writing import OWN_FOLDER, LineWriter

PERIOD_S = 0.02
"""Between two samples of a long step; one takes 100 us."""
FIRST_STEP = 5
"""The steps before it warm up, and tell how long a usual one is."""
MAX_STEPS = 1000
MAX_USUAL_LOOKS = 200
"""Then it samples long steps alone: a look without a sample costs a fifth."""
MAX_STACKS = 20
"""Of one step, those with the most time. The file has 5 MiB at most."""
WRITE_NS = 1_000_000_000
"""A step that is this long is written although it goes on, then after twice as long each time: it may be killed."""

Stack = tuple[tuple[str, ...], str | None]


class LongSteps:
    def __init__(self, loop: Loop, sites: Sites, shell: Shell, budget: Budget, lines: LineWriter) -> None:
        self._loop, self._sites, self._budget, self._lines = loop, sites, budget, lines
        self._guard = shell.guard_code
        self._run_guarded = shell.guarded("long_steps", self._run)
        self._thread: HiddenThread | None = None
        """Started once a usual step is known."""
        self._update_lines: list[str] = []
        """Where the optimizer stepped, in the last step that was recorded in full."""
        self._goes_on = threading.Lock()
        """Held until the end; to wait for it with a time limit costs least."""
        self._goes_on.acquire()
        self._usual = Counter[tuple[str, ...]]()
        """How often usual steps were seen at a line, by where it leaves those of the update."""
        self._times_ns = Counter[Stack]()
        self._step = LongStep(step=0, started_ns=0)
        self._updated_ns = self._seen_ns = self._write_ns = 0

    def optimizer_began(self, step: OpenStep, *_: Any) -> None:
        self._update_lines = self._lines_of(Call(one.f_code, one.f_lineno, one.f_globals) for one in callers())
        if self._thread is None and step.number >= FIRST_STEP:
            self._lines.write(LongStep(step=step.number, started_ns=step.epoch_ns))
            self._thread = HiddenThread(self._run_guarded)

    def at_end(self) -> None:
        self._goes_on.release()
        if self._thread is not None:
            self._thread.join(MAX_JOIN_S)

    def _run(self) -> None:
        num_long = num_looks = 0
        wait_s = PERIOD_S
        while num_long < MAX_STEPS and not self._goes_on.acquire(timeout=wait_s):
            now, updated_ns = perf_counter_ns(), self._loop.updated_ns
            usual_ns = self._loop.sampling.length_ns
            if updated_ns != self._updated_ns:
                num_long += self._end_step()
                self._step = LongStep(step=self._loop.number, started_ns=epoch_ns(updated_ns))
                self._updated_ns = updated_ns
                self._seen_ns = updated_ns + round(usual_ns)
                self._write_ns = updated_ns + WRITE_NS
            left_ns = updated_ns + least_long_step(usual_ns, unit_per_ms=1e6) - now
            if left_ns <= 0 or num_looks < MAX_USUAL_LOOKS:
                self._sample(now)
            if now >= self._write_ns:
                self._write()
                self._write_ns += now - updated_ns
            wait_s = max(PERIOD_S, left_ns / 1e9)
            num_looks += 1
        self._end_step()
        self._budget.spend("long steps", thread_time_ns())

    def _sample(self, now: int) -> None:
        """Not of what the recorder does, nor where no thread trains, as while a CUDA graph is captured."""
        calls = calls_of(self._loop.thread.ident)
        if 0 < len(calls) < MOST_CALLS and not any(call.code is self._guard for call in calls):
            lines = self._lines_of(calls)
            left = tuple(lines[len(commonprefix([lines, self._update_lines])) :])  # noqa: RUF071 - of lists
            inner = next((call for call in calls if not call.file.startswith(OWN_FOLDER)), calls[-1])
            inside = None if self._sites.is_user_code(inner.code) else inner.full_name
            self._times_ns[(*left[:1], *left[1:][-1:]), inside] += max(0, now - self._seen_ns)
        self._seen_ns = max(now, self._seen_ns)

    def _lines_of(self, calls: Iterable[Call]) -> list[str]:
        """The user's, outermost first, without those that ask a loader for a batch: any loop has one."""
        lines, is_asking = [], False
        for call in calls:
            is_asking |= call.file == dataloader.__file__
            if self._sites.is_user_code(call.code):
                if call.line and not is_asking:  # an instruction may belong to no line
                    lines.append(self._sites.of_line(call.code, call.line))
                is_asking = False
        return lines[::-1]

    def _end_step(self) -> bool:
        """Returns whether the step was a long one. Of others the samples count that a usual step can have."""
        is_long = self._write()
        if not is_long:
            most_ns = 2 * self._loop.sampling.length_ns
            self._usual.update(lines[:1] for (lines, _), spent in self._times_ns.items() if spent <= most_ns)
        self._times_ns.clear()
        return is_long

    def _write(self) -> bool:
        """Write the open step if it is a long one; nothing of one in which something is compiled."""
        usual_ns = self._loop.sampling.length_ns
        if self._times_ns.total() < least_long_step(usual_ns, unit_per_ms=1e6) - usual_ns:
            return False
        num_usual = max(1, self._usual.total())
        self._step.stacks = [
            SampledStack(lines, inside, spent_ns / 1e9, self._usual[lines[:1]] / num_usual)
            for (lines, inside), spent_ns in self._times_ns.most_common(MAX_STACKS)
        ]
        if self._loop.compiled_at < self._step.step:
            self._lines.write(self._step)
        return True


def start(session: Session) -> None:
    lines = session.lines(LONG_STEPS_FILE)
    long_steps = LongSteps(session.loop, session.sites, session.shell, session.budget, lines)
    session.attach("long_steps", long_steps)
