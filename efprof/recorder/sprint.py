"""Records steps that are all alike at a third of the cost: only instants now, everything else later.

After a heavy operator the caches are cold, and what the recorder does costs three times what it costs in a loop of
its own (measured: 120 us per step of 2.7 ms). So once a program has repeated one pattern of calls (fetch, forward,
backward, step), a stopwatch written in C takes the instant of each call, the loss and the learning rate, and every
few steps they are turned into records together. Whatever breaks the pattern ends the sprint: the state machine goes
on where the instants stop.
"""

import time
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final

import torch

from efprof.artifacts.pending import MAX_MARKS, MAX_PENDING
from efprof.artifacts.steps import AlikeSteps
from efprof.recorder.end_readings import EndReadings
from efprof.recorder.memory import Memory
from efprof.recorder.open_step import OpenStep, num_samples
from efprof.recorder.pattern import FORWARD, STEP, Pattern
from efprof.recorder.pending_steps import PendingSteps
from efprof.recorder.signal_errors import is_of_a_signal
from efprof.recorder.sprint_steps import Interrupted
from efprof.recorder.sprinted_steps import SprintedSteps
from efprof.recorder.steps import Steps
from efprof.recorder.stopwatches import HAS_STOPWATCH, make_stopwatch

FIRST_STEP: Final = 20
"""Up to here every step is walked, and its memory read at each boundary: many a run has no more."""

MAX_STEP_NS: Final = 200_000_000
"""What walking costs, half a millisecond after heavy operators (measured), is nothing to a longer step."""

MAX_SPRINT_NS: Final = 2_500_000_000
"""So long sprints follow each other; then a step is walked, for whoever looks at every step that is, and for the
memory at each of its boundaries."""


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
        self._resume = resume
        self._may_go_on = may_go_on
        self._is_broken = is_broken
        self._pattern = Pattern()
        self._written = SprintedSteps(
            watch=self.watch,
            steps=steps,
            pattern=self._pattern,
            write=write,
            write_together=write_together,
            is_broken=is_broken,
        )
        self._log: list[int] = []
        self._nested = 0
        self._may_start = False
        self._may_sprint = HAS_STOPWATCH
        self._began_ns = 0
        self._epoch_offset_ns = 0
        self.readings = EndReadings(self.watch)

    @property
    def is_on(self) -> bool:
        """Whether marks are being taken."""
        return self.watch.is_on

    @property
    def step(self) -> OpenStep:
        """The open step of a sprint that is on."""
        return self._written.open_step

    @property
    def site(self) -> str | None:
        """Where backward is called in the steps of this sprint."""
        return self._written.site

    def count(self, batch: object) -> None:
        """A batch arrived that the stopwatch cannot count."""
        self.step.samples += num_samples(batch)

    def is_of_pattern(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it is this one's turn to step; another one breaks the pattern."""
        turn = self._pattern.codes[: self.watch.at].count(STEP) - 1
        if id(optimizer) == self._pattern.optimizers[turn]:
            return True
        self.leave()
        return False

    def read_memory(self) -> None:
        """The optimizer is done."""
        step, entered = self.step, perf_counter_ns()
        step.memory.append(("post_optimizer_step", entered, self._memory.read()))
        step.resident_bytes = self._steps.resident_bytes(entered)
        spent_ns = perf_counter_ns() - entered
        step.recorder_ns += spent_ns
        self.readings.note(step.number, entered, spent_ns)

    def step_walked(self, step: OpenStep, total_us: float) -> None:
        """The state machine finished a step: learn its pattern."""
        if self.is_on:
            return
        self._pattern.see(tuple(self._log[:-1]), tuple(step.loaders), tuple(step.stepped))
        del self._log[:-1]
        may_sprint = self._may_sprint and self._may_go_on()
        self._may_start = may_sprint and self._pattern.is_settled and self._is_plain_step(step, total_us)
        if self._may_start:
            self._written.site_before = step.backward_site

    def leave(self) -> None:
        """Write what is whole, and have the state machine go on in the midst of the step that is not."""
        if not self.is_on:
            return
        self.watch.stop()
        done, nested = self._pattern.codes[: self.watch.at], self.watch.nested
        step, interrupted = self._written.write_up_to(done)
        self._log, self._nested = list(done), nested
        self._steps.open = step
        for optimizer in step.stepped:  # it is the next one's turn; of whole rounds nothing is to be known
            self._steps.cycle.stepped(optimizer)
        self._resume(interrupted)

    def end_soon(self) -> None:
        """Where one is on, with the step that is open: somebody waits for one that is walked. From any thread."""
        self.watch.limit = 1

    def close(self) -> None:
        """The recording ends."""
        self.leave()
        self._written.write_leftovers()
        self._may_start = self._may_sprint = False
        if self._written.pending is not None:
            self.watch.release()
            self._written.pending.close(keeps=self._is_broken())
            self._written.pending = None

    def _note_unexpected(self, code: int) -> bool:
        self.leave()
        self._written.write_leftovers()
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
        if self._written.pending is None:
            try:
                self._written.pending = self._make_pending()
            except OSError as error:  # a file system that maps no memory, or a full one: then every step is walked
                if is_of_a_signal(error):
                    raise
                self._may_sprint = False
                return False
            self.watch.use(self._written.pending.memory)
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
        codes, optimizers = bytes(self._pattern.codes), self._pattern.optimizers
        watch.start(codes, optimizers, self._steps.num_finished, at, self._epoch_offset_ns, self._room())

    def _go_on_or_stop(self, code: int) -> bool:
        """A step is over, and with it so many that they are to be written."""
        self.watch.stop()
        self._written.write()
        if not self._may_sprint:  # the disk refused, and that ended the recording
            return False
        now, steps = perf_counter_ns(), self._steps
        is_wanted = now - self._began_ns > MAX_SPRINT_NS or steps.is_disturbed or not self._may_go_on()
        if is_wanted or self._written.last_ns >= MAX_STEP_NS or self._room() < 1:
            self._log = [code]
            return False
        self._begin(perf_counter_ns())
        return True

    def _room(self) -> int:
        """How many steps from the next one on may sprint: the one before a window is walked."""
        following = self._steps.num_finished
        return min([MAX_PENDING, *(first - 1 - following for first in self._windows if first > following)])

    def _is_plain_step(self, step: OpenStep, total_us: float) -> bool:
        steps = self._steps
        return (
            step.number >= FIRST_STEP
            and total_us * 1000 < MAX_STEP_NS
            and step.window is None
            and tuple(step.loaders) == self._pattern.loaders
            and tuple(step.stepped) == self._pattern.optimizers
            and not (step.late or step.has_evaluation or step.is_skipped or step.scale is not None)
            and not (steps.has_marks or steps.is_disturbed or steps.clock is not None or steps.probe is not None)
        )
