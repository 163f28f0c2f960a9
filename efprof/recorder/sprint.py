"""Records steps that are all alike at a third of the cost: only instants now, everything else later.

After a heavy operator the caches are cold, and what the recorder does costs three times what it costs in a loop of
its own (measured: 120 us per step of 2.7 ms). So once a program has repeated one pattern of calls (fetch, forward,
backward, step), a stopwatch written in C takes the instant of each call, the loss and the learning rate, and every
few steps they are turned into records together. Whatever breaks the pattern ends the sprint: the state machine goes
on where the instants stop.
"""

import time
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any, Final

import torch
from msgspec.structs import replace

from efprof.artifacts.pending import MAX_MARKS, MAX_PENDING, PendingStep
from efprof.artifacts.steps import AlikeSteps
from efprof.recorder.end_readings import EndReadings
from efprof.recorder.memory import Memory
from efprof.recorder.open_step import OpenStep, last_of, num_samples
from efprof.recorder.pattern import FORWARD, Codes, Pattern
from efprof.recorder.pending_steps import PendingSteps
from efprof.recorder.signal_errors import is_of_a_signal
from efprof.recorder.sprint_steps import Interrupted, fill, interrupted_in
from efprof.recorder.steps import Steps
from efprof.recorder.stopwatches import HAS_STOPWATCH, make_stopwatch

FIRST_STEP: Final = 20
"""Up to here every step is walked, and its memory read at each boundary: many a run has no more."""

MAX_STEP_NS: Final = 200_000_000
"""What walking costs, half a millisecond after heavy operators (measured), is nothing to a longer step."""

MAX_SPRINT_NS: Final = 2_500_000_000
"""So long sprints follow each other; then a step is walked, for whoever looks at every step that is, and for the
memory at each of its boundaries."""

MARK_NS: Final = 3_500
"""What a call costs that a sprint takes note of, with the Python function around it and the caches that it finds cold:
41 us more than a bare step of 2.4 ms has, of which 10 are for writing, over 8 calls (measured by `make
bench-overhead`; 1.2 us in a loop of its own). Far too short to be measured at each."""


class Sprint:
    """Takes marks while it is on; where `mark` returns False, the state machine has to see the call itself."""

    def __init__(
        self,
        *,
        steps: Steps,
        memory: Memory,
        windows: tuple[int, ...],
        make_pending: Callable[[], PendingSteps],
        write: Callable[[AlikeSteps], None],
        write_together: Callable[[Callable[[], None]], None],
        resume: Callable[[Interrupted], None],
        may_go_on: Callable[[], bool],
        is_broken: Callable[[], bool],
        guard: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        """`windows` are the steps at which one opens: no sprint may run over them.

        `write` appends a line to steps.jsonl; `write_together` calls a function, and has the lines that it writes
        appended with one system call; where `is_broken` says that the disk refuses, what is not written yet stays in
        steps.pending. `resume` has the state machine go on; `may_go_on` tells whether nobody waits for a step that is
        walked; `guard` makes a function harmless: where it fails, it answers None.
        """
        self.watch = make_stopwatch(
            unexpected=guard(self._note_unexpected),
            full=guard(self._go_on_or_stop),
            max_step_ns=MAX_STEP_NS,
            write_after_ns=MAX_SPRINT_NS,
        )
        self._steps = steps
        self._memory = memory
        self._windows = windows
        self._make_pending = make_pending
        self._write_line = write
        self._write_together = write_together
        self._resume = resume
        self._may_go_on = may_go_on
        self._is_broken = is_broken
        self._pattern = Pattern()
        self._log: list[int] = []
        self._nested = 0
        self._pending: PendingSteps | None = None
        self._touched: dict[int, OpenStep] = {}
        """By number, those of which something was noted that the stopwatch does not know."""
        self._may_start = False
        self._may_sprint = HAS_STOPWATCH
        self._is_writing = self._has_leftovers = self._has_written_rows = False
        self._began_ns = 0
        self._epoch_offset_ns = 0
        self.readings = EndReadings(self.watch)
        self._last_ns = 0
        """How long the last step took."""
        self._share_ns = 0
        """What writing a step took, the last time."""
        self._site: str | None = None

    @property
    def is_on(self) -> bool:
        """Whether marks are being taken."""
        return self.watch.is_on

    @property
    def step(self) -> OpenStep:
        """The open step of a sprint that is on."""
        number = self.watch.number
        step = self._touched.get(number)
        if step is None:
            step = self._touched[number] = _new_step(number)
        if step.sequence is None and self.watch.sequence >= 0:
            step.sequence = self.watch.sequence
        return step

    @property
    def site(self) -> str | None:
        """Where backward is called in the steps of this sprint."""
        noted = (step.backward_site for step in reversed(self._touched.values()))
        return next(filter(None, noted), self._site)

    def count(self, batch: object) -> None:
        """A batch arrived that the stopwatch cannot count."""
        self.step.samples += num_samples(batch)

    def is_of_pattern(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it is this one that steps; another one breaks the pattern."""
        if id(optimizer) == self._pattern.optimizer:
            return True
        self.leave()
        return False

    def read_memory(self) -> None:
        """The optimizer is done."""
        if not self._steps.reads_end:
            self.readings.cannot(self.watch.number)
            return
        step, entered = self.step, perf_counter_ns()
        step.memory.append(("post_optimizer_step", entered, self._memory.read()))
        spent_ns = perf_counter_ns() - entered
        step.recorder_ns += spent_ns
        self.readings.note(step.number, entered, spent_ns)

    def step_walked(self, step: OpenStep, total_us: float) -> None:
        """The state machine finished a step: learn its pattern."""
        if self.is_on:
            return
        self._pattern.see(tuple(self._log[:-1]), tuple(step.loaders))
        del self._log[:-1]
        may_sprint = self._may_sprint and self._may_go_on()
        self._may_start = may_sprint and self._pattern.is_settled and self._is_plain_step(step, total_us)
        if self._may_start:
            self._pattern.optimizer = step.stepped[0]
            self._site = step.backward_site

    def leave(self) -> None:
        """Write what is whole, and have the state machine go on in the midst of the step that is not."""
        if not self.is_on or self._pending is None:
            return
        self.watch.stop()
        done = self._pattern.codes[: self.watch.at]
        pending, touched = self._pending[len(self._pending)], self._touched.pop(self.watch.number, None)
        self._write()
        self._log, self._nested = list(done), self.watch.nested
        step = self._filled(pending, touched, done)
        self._steps.open = step
        self._resume(interrupted_in(pending, done, self.watch.nested))

    def end_soon(self) -> None:
        """Where one is on, with the step that is open: somebody waits for one that is walked. From any thread."""
        self.watch.limit = 1

    def close(self) -> None:
        """The recording ends."""
        self.leave()
        self._write_leftovers()
        self._may_start = self._may_sprint = False
        if self._pending is not None:
            self.watch.release()
            self._pending.close(keeps=self._is_broken())
            self._pending = None

    def _note_unexpected(self, code: int) -> bool:
        self.leave()
        self._write_leftovers()
        log = self._log
        if code == FORWARD and log and log[-1] == FORWARD:
            self._nested += 1
            return False
        if self._nested and code == FORWARD + 1:
            self._nested -= 1
            return False
        if self._may_start and len(log) == len(self._pattern.codes) and code == log[0] and self._start():
            return True
        if len(log) <= MAX_MARKS:
            log.append(code)
        return False

    def _start(self) -> bool:
        """Begin a sprint where a step of the pattern ends."""
        now, steps = perf_counter_ns(), self._steps
        self._may_start = False
        if steps.open is None or tuple(self._log) != self._pattern.codes or not steps.open.stepped:
            return False
        if self._room() < 2:  # the step that ends here is not one of them
            return False
        if self._pending is None:
            try:
                self._pending = self._make_pending()
            except OSError as error:  # a file system that maps no memory, or a full one: then every step is walked
                if is_of_a_signal(error):
                    raise
                self._may_sprint = False
                return False
            self.watch.use(self._pending.memory)
        self._log.append(self._log[0])
        steps.finish(steps.open, now)
        if not self._may_start or steps.is_disturbed:
            self._log.clear()
            return False
        self._began_ns = now
        self.readings.begin(steps.num_finished, now)
        self._begin(now)
        return True

    def _begin(self, at: int) -> None:
        watch = self.watch
        self._epoch_offset_ns = time.time_ns() - perf_counter_ns()
        watch.optimizer = self._pattern.optimizer
        watch.start(bytes(self._pattern.codes), self._steps.num_finished, at, self._epoch_offset_ns, self._room())

    def _go_on_or_stop(self, code: int) -> bool:
        """A step is over, and with it so many that they are to be written."""
        assert self._pending is not None
        self.watch.stop()
        self._write()
        if not self._may_sprint:  # the disk refused, and that ended the recording
            return False
        now, steps = perf_counter_ns(), self._steps
        is_wanted = now - self._began_ns > MAX_SPRINT_NS or steps.is_disturbed or not self._may_go_on()
        if is_wanted or self._last_ns >= MAX_STEP_NS or self._room() < 1:
            self._log = [code]
            return False
        self._begin(perf_counter_ns())
        return True

    def _room(self) -> int:
        """How many steps from the next one on may sprint: the one before a window is walked."""
        following = self._steps.num_finished
        return min([MAX_PENDING, *(first - 1 - following for first in self._windows if first > following)])

    def _write_leftovers(self) -> None:
        """A signal's handler may raise while steps are being written: the others are written when we are next here."""
        if self._has_leftovers:
            self._write()

    def _write(self) -> None:
        """Turn into records what is whole and not written yet."""
        entered, pending = perf_counter_ns(), self._pending
        if pending is None or not len(pending) or self._is_broken() or self._is_writing:
            return
        self._is_writing = self._has_leftovers = True
        try:
            self._write_pending(pending, entered)
        finally:
            self._is_writing = False

    def _write_pending(self, pending: PendingSteps, entered: int) -> None:
        count, first = len(pending), pending[0]
        last = pending[count - 1]
        cpu_ns, rss_bytes = self._steps.resources(first.start_ns, last.end_ns)
        line = AlikeSteps(
            alike=[],
            stages=self._pattern.stretches,
            cpu_share=cpu_ns / (last.end_ns - first.start_ns),
            rss_bytes=rss_bytes,
            recorder_us=(len(self._pattern.codes) * MARK_NS + self._share_ns) / 1000,
            loader=last_of(self._pattern.loaders),
        )
        self._write_together(lambda: self._finish(line))
        self._has_leftovers = self._has_written_rows = False
        if self._is_broken():
            return
        pending.clear()
        self._touched.clear()
        self._last_ns = last.end_ns - last.start_ns
        self._share_ns = (perf_counter_ns() - entered) // count

    def _finish(self, line: AlikeSteps) -> None:
        """All those of which the stopwatch knows everything go into one line."""
        steps, pendings, touched = self._steps, self._pending, self._touched
        assert pendings is not None
        rows = pendings.rows(len(self._pattern.codes))
        if not self._has_written_rows:
            if steps.others.have_spans:  # of which step, its record tells
                for row in rows:
                    touched.setdefault(row[0], _new_step(row[0]))
            lines = [replace(line, alike=alike, backward_site=site) for site, alike in self._alike(rows)]
            self._has_written_rows = True
            for line in lines:
                steps.num_finished += len(line.alike)
                self._write_line(line)
        recorder_ns, first = round(line.recorder_us * 1000), rows[0][0]
        numbers = range(first, first + len(rows)) if steps.added else sorted(touched)
        for number in numbers:
            pending = pendings[number - first]
            if number in touched:
                step = self._filled(pending, touched.pop(number), self._pattern.codes)
                step.recorder_ns += recorder_ns
                steps.complete(step, pending.end_ns)
                continue
            for listener in steps.added:
                listener(number, (pending.end_ns - pending.start_ns) / 1000)

    def _alike(self, rows: list[tuple[Any, ...]]) -> Iterator[tuple[str | None, list[tuple[Any, ...]]]]:
        """Those of which nothing else was noted, by where backward is called."""
        site, alike = self._site, []
        for row in rows:
            step = self._touched.get(row[0])
            if step is None:
                alike.append(row)
            elif step.backward_site not in {None, site}:
                if alike:
                    yield site, alike
                site, alike = step.backward_site, []
        if alike:
            yield site, alike

    def _filled(self, pending: PendingStep, touched: OpenStep | None, done: Codes) -> OpenStep:
        step = touched or _new_step(pending.number)
        fill(step, pending, self._pattern, done)
        if step.backward_site is not None:
            self._site = step.backward_site
        elif step.num_backwards:
            step.backward_site = self._site
        return step

    def _is_plain_step(self, step: OpenStep, total_us: float) -> bool:
        steps = self._steps
        return (
            step.number >= FIRST_STEP
            and total_us * 1000 < MAX_STEP_NS
            and len(step.stepped) == 1
            and step.window is None
            and tuple(step.loaders) == self._pattern.loaders
            and not (step.late or step.has_evaluation or step.is_skipped or step.scale is not None)
            and not (steps.has_marks or steps.is_disturbed or steps.clock is not None or steps.probe is not None)
        )


def _new_step(number: int) -> OpenStep:
    """When it began is filled in when the sprint is over."""
    return OpenStep(number=number, start_ns=0, epoch_ns=0, reads_boundaries=False)
