"""Records short steps that are all alike at a third of the cost: only instants now, everything else later.

After a heavy operator the caches are cold, and what the recorder does costs three times what it costs in a loop of
its own (measured: 120 us per step of 2.7 ms). So once a program has repeated one pattern of calls (fetch, forward,
backward, step), each call leaves just its instant, and every few steps they are turned into records together.
Whatever breaks the pattern ends the sprint: the state machine goes on where the instants stop.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from time import perf_counter_ns
from typing import Final

import torch

from efprof.artifacts.pending import MAX_MARKS, MAX_PENDING, STAGE_CODES
from efprof.recorder.memory import Memory
from efprof.recorder.open_step import OpenStep, Span, num_samples
from efprof.recorder.pending_steps import PendingSteps
from efprof.recorder.steps import Steps

FETCH, FETCHED, FORWARD, FORWARDED, BACKWARD, BACKWARDED, STEP, STEPPED, UPDATE, UPDATED, OTHER = range(11)
"""What can be marked: even numbers begin a stage, odd ones end it. OTHER is a call that no sprint allows."""

STAGES: Final = {FETCH: 0, FORWARD: 1, BACKWARD: 2, STEP: 3, UPDATE: 3}
"""By the code that begins it, the index into STAGE_CODES."""

OPENERS: Final = {FETCH: "fetch", FORWARD: "forward", BACKWARD: "backward", STEP: "optimizer", UPDATE: "update"}

NUM_ALIKE: Final = 3
"""Steps of one pattern before the first sprint."""

FIRST_STEP: Final = 20
"""Up to here every step is walked, and its memory read at each boundary: many a run has no more."""

SHORT_STEP_NS: Final = 8_000_000
"""From here on the state machine is affordable: 120 us are 1.5 % of it, and at 20 ms the budget of 1 % holds."""

STEPS_PER_READING: Final = 4
"""Reading memory costs 8 us after a heavy step (measured), 0.5 us in a loop of its own."""

MAX_SPRINT_NS: Final = 100_000_000
"""What waits for longer than this, nobody sees who looks at a run that goes on."""

NO_PATTERN: Final = (-1,)


@dataclass(kw_only=True, slots=True)
class Interrupted:
    """Where a sprint was broken off: the state machine goes on from here."""

    step: OpenStep
    stage: str | None = None
    opener: str | None = None
    stage_start_ns: int = 0
    depth: int = 0


@dataclass(kw_only=True, slots=True)
class Pattern:
    """The calls of a step in their order, and what else its steps have in common."""

    codes: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()
    num_alike: int = 0
    optimizer: int = 0
    loader: int | None = None

    def see(self, codes: tuple[int, ...]) -> None:
        """A step had these calls."""
        if codes == self.codes:
            self.num_alike = min(2 * NUM_ALIKE, self.num_alike + 1)
            return
        self.num_alike -= 1
        if self.num_alike <= 0:
            self.codes, self.num_alike = codes, 1
            self.stages = tuple(STAGES[code] for code in codes[::2]) if _is_plain(codes) else ()

    @property
    def is_settled(self) -> bool:
        """Whether a sprint may count on it."""
        return bool(self.stages) and self.num_alike >= NUM_ALIKE


@dataclass(kw_only=True, slots=True)
class Sprint:
    """Takes marks while it is on; where `mark` returns False, the state machine has to see the call itself."""

    steps: Steps
    memory: Memory
    windows: tuple[int, ...]
    """Steps before which a window opens: no sprint may run over them."""
    make_pending: Callable[[], PendingSteps]
    write_together: Callable[[Callable[[], None]], None]
    """Calls a function, and writes the lines that it makes with one system call."""
    resume: Callable[[Interrupted], None]
    """Has the state machine go on."""
    guard: Callable[[Callable[..., bool]], Callable[..., bool]]
    """Makes a function harmless; where it fails it answers None."""
    thread: int = field(default_factory=get_ident)
    is_on: bool = False
    """Whether marks are being taken."""
    _pattern: Pattern = field(default_factory=Pattern)
    _expected: tuple[int, ...] = NO_PATTERN
    """The pattern, and its first call again; NO_PATTERN while no sprint is on."""
    _marks: list[int] = field(default_factory=list)
    _nested: int = 0
    _log: list[int] = field(default_factory=list)
    _done: list[tuple[OpenStep, list[int]]] = field(default_factory=list)
    _spare: list[OpenStep] = field(default_factory=list)
    _pending: PendingSteps | None = None
    _may_start: bool = False
    _epoch_offset_ns: int = 0
    _share_ns: int = 0
    """What turning marks into records took, per step, the last time."""
    _unexpected: Callable[[int], bool] = field(init=False)
    _next: Callable[[int], bool] = field(init=False)

    def __post_init__(self) -> None:
        """Guard what a mark may set off; a mark itself cannot fail."""
        self._unexpected, self._next = self.guard(self._note_unexpected), self.guard(self._next_step)

    # On every call, so as short as can be.

    def mark(self, code: int) -> bool:
        """A stage begins or ends; whether the sprint took note of it."""
        if get_ident() != self.thread:
            return False
        marks = self._marks
        at = len(marks)
        if code != self._expected[at]:
            return self._unexpected(code)
        if code & 1:
            if self._nested and code == FORWARDED:
                self._nested -= 1
                return True
            if sys.exception() is not None:
                return self._unexpected(OTHER)
        elif at and at == len(self._expected) - 1:
            return self._next(code)
        marks.append(perf_counter_ns())
        return True

    @property
    def reads_by_design(self) -> bool:
        """Whether a loader or an optimizer is running."""
        return bool(self._marks) and self._expected[len(self._marks) - 1] in (FETCH, STEP)

    def fetched(self, batch: object) -> None:
        """A batch arrived."""
        step = self.steps.open
        if step is not None:
            step.samples += num_samples(batch)

    def is_of_pattern(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it is this one that steps; another one breaks the pattern."""
        if id(optimizer) == self._pattern.optimizer:
            return True
        self.leave()
        return False

    def stepped(self) -> None:
        """The optimizer is done: read the memory."""
        step = self.steps.open
        assert step is not None
        entered = self._marks[-1]
        if self.steps.reads_end and step.number % STEPS_PER_READING == 0:
            step.memory.append(("post_optimizer_step", entered, self.memory.read()))
        step.recorder_ns += perf_counter_ns() - entered

    # Now and then.

    def step_walked(self, step: OpenStep, total_us: float) -> None:
        """The state machine finished a step: learn its pattern."""
        if self.is_on or self._done:
            return
        self._pattern.see(tuple(self._log[:-1]))
        del self._log[:-1]
        self._may_start = self._pattern.is_settled and self._is_plain_step(step, total_us)
        if self._may_start:
            self._pattern.optimizer, self._pattern.loader = step.stepped[0], step.loader

    def forget(self) -> None:
        """The log of calls has a gap."""
        self._log.clear()

    def leave(self) -> None:
        """Write what is whole, and have the state machine go on in the midst of the step that is not."""
        if not self.is_on:
            return
        step, marks, codes = self.steps.open, self._marks, self._expected
        assert step is not None
        self._log = list(codes[: len(marks)])
        interrupted = self._interrupted(step, marks)
        self._stop(marks[0])
        self.steps.open = step
        self.resume(interrupted)

    def close(self) -> None:
        """The recording ends."""
        self.leave()
        if self._pending is not None:
            self._pending.close()
            self._pending = None
        self._may_start = False

    def _note_unexpected(self, code: int) -> bool:
        if self.is_on:
            if self._is_in_forward() and code == FORWARD:
                self._nested += 1
                return True
            self.leave()
        log = self._log
        if log and log[-1] == FORWARD and code == FORWARD:
            self._nested += 1
            return False
        if self._nested and code == FORWARDED:
            self._nested -= 1
            return False
        if self._may_start and len(log) == len(self._pattern.codes) and code == log[0] and self._start():
            return True
        if len(log) <= MAX_MARKS:
            log.append(code)
        return False

    def _is_in_forward(self) -> bool:
        return bool(self._marks) and self._expected[len(self._marks) - 1] == FORWARD

    def _start(self) -> bool:
        """Begin a sprint where a step of the pattern ends."""
        now, steps = perf_counter_ns(), self.steps
        self._may_start = False
        if steps.open is None or tuple(self._log) != self._pattern.codes or not steps.open.stepped:
            return False
        last = steps.num_finished + 1 + MAX_PENDING
        if any(steps.num_finished < first <= last + 1 for first in self.windows):
            return False
        self._pending = self._pending or self.make_pending()
        self._log.append(self._log[0])
        steps.finish(steps.open, now)
        if not self._may_start or steps.is_disturbed:
            self._log.clear()
            return False
        self._expected, self.is_on = (*self._pattern.codes, self._pattern.codes[0]), True
        self._epoch_offset_ns = time.time_ns() - perf_counter_ns()
        self._begin(now)
        return True

    def _begin(self, at: int) -> None:
        number = self.steps.num_finished + len(self._done)
        step = self._spare.pop() if self._spare else OpenStep(number=0, start_ns=0, epoch_ns=0)
        step.number, step.start_ns, step.epoch_ns = number, at, at + self._epoch_offset_ns
        step.sequence = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        step.loader = self._pattern.loader
        step.reads_boundaries = False
        self._marks = [at]
        self.steps.open = step

    def _next_step(self, code: int) -> bool:
        now, step = perf_counter_ns(), self.steps.open
        assert step is not None
        done = self._done
        done.append((step, self._marks))  # kept by `_pending` too, in case the process is killed
        is_short = now - step.start_ns < SHORT_STEP_NS and now - done[0][0].start_ns < MAX_SPRINT_NS
        if len(done) < MAX_PENDING and is_short and self._pending is not None:
            self._pending.add(step, self._pattern.stages, self._marks, now)
            self._begin(now)
            return True
        self._stop(now)
        self._log = [code]
        return False

    def _stop(self, at: int) -> None:
        """Turn marks into records; the last step that is whole ended at `at`."""
        entered = perf_counter_ns()
        self._expected, self.is_on, self._marks, self._nested = NO_PATTERN, False, [], 0
        self.steps.open = None
        done = self._done
        if done and self._pending is not None:
            ends = [*(step.start_ns for step, _ in done[1:]), at]
            self.write_together(lambda: self._finish_all(ends))
            self._pending.clear()
            self._share_ns = (perf_counter_ns() - entered) // len(done)
        self._done = []
        self._spare = [OpenStep(number=0, start_ns=0, epoch_ns=0) for _ in range(MAX_PENDING)]

    def _finish_all(self, ends: list[int]) -> None:
        for (step, marks), end in zip(self._done, ends, strict=True):
            self._fill(step, marks)
            step.recorder_ns += self._share_ns
            self.steps.complete(step, end)

    def _fill(self, step: OpenStep, marks: list[int]) -> None:
        """What the state machine would have noted of these calls."""
        codes = self._pattern.codes[: len(marks)]
        step.spans = self._spans(marks)
        step.num_fetches, step.num_backwards = codes.count(FETCHED), codes.count(BACKWARD)
        step.has_forward = FORWARD in codes
        if STEPPED in codes:
            step.stepped = [self._pattern.optimizer]

    def _spans(self, marks: list[int]) -> list[Span]:
        stages = [STAGE_CODES[stage] for stage in self._pattern.stages]
        return list(zip(stages, marks[::2], marks[1::2], strict=False))

    def _interrupted(self, step: OpenStep, marks: list[int]) -> Interrupted:
        self._fill(step, marks)
        if len(marks) % 2 == 0:
            return Interrupted(step=step)
        code = self._pattern.codes[len(marks) - 1]
        return Interrupted(
            step=step,
            stage=STAGE_CODES[STAGES[code]],
            opener=OPENERS[code],
            stage_start_ns=marks[-1],
            depth=1 + self._nested if code == FORWARD else 0,
        )

    def _is_plain_step(self, step: OpenStep, total_us: float) -> bool:
        steps = self.steps
        return (
            step.number >= FIRST_STEP
            and total_us * 1000 < SHORT_STEP_NS
            and len(step.stepped) == 1
            and step.window is None
            and not (step.late or step.has_evaluation or step.is_skipped or step.scale is not None)
            and not (steps.has_marks or steps.is_disturbed or steps.clock is not None or steps.probe is not None)
        )


def _is_plain(codes: tuple[int, ...]) -> bool:
    """Stages that follow one another, one optimizer's step as the last but for updates, nothing that is not allowed."""
    pairs = list(zip(codes[::2], codes[1::2], strict=False))
    return (
        0 < len(codes) < MAX_MARKS
        and len(codes) % 2 == 0
        and all(begin in STAGES and end == begin + 1 for begin, end in pairs)
        and codes.count(STEP) == 1
        and BACKWARD in codes
    )
