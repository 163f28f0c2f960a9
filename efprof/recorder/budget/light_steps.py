"""Steps of which only the loss and the instant of the update are taken, and when the next one is recorded in full.

A step is over when an optimizer steps more often than in the last full step, or after a pass of its own one that came
next in no full step; where none steps, after as many backward passes as the last full step had; where the program marks
its steps, at a mark.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any, NamedTuple

from efprof.artifacts.steps import HAS_PAUSE, IS_SKIPPED, LightLine, spelled
from efprof.recorder.budget.sampling import LightStep, Sampling
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.loop.steps import Listeners, Steps, epoch_ns
from efprof.recorder.numbers.late_values import Answer, OnDevice, Send
from efprof.recorder.numbers.step_numbers import ScaledLosses

MAX_ROWS = 256
MAX_WAIT_NS = 1_000_000_000
"""What a killed process may lose of them."""

UPDATE_BY_HAND = 0
"""Stands for the optimizer where the program updates its parameters itself."""

MAX_OVERDUE_STEPS = 8
"""Steps for which a burst waits for a step that is whole as the last full one was; then any update ends one."""

Loss = float | OnDevice

_Row = tuple[int, int, int, int, float | None, int, int]
"""One that waits to be written: its number, when it began and ended, its passes, what the host knows of its loss, its
flags and the recorder's own part of it in ns.
"""


class _LateLosses(NamedTuple):
    """Losses that a device still has to tell: of these rows of the line."""

    line: LightLine
    rows: list[int]
    answer: Answer


class LightSteps:
    """Counts light steps, and writes them together.

    A light step runs through few functions: the program's own step has just filled the caches, so each costs a
    microsecond, ten times what it costs in a loop of nothing else.
    """

    def __init__(self, loop: Steps, write: Callable[[LightLine], None]) -> None:
        self._loop = loop
        """Its last full step tells when a light one is over, and which line called backward."""
        self.read_losses: Callable[[int, Any, Any], Iterable[Loss] | None] = lambda *_: ()
        """Given the step's number and what backward is called with: its losses, now or on the device. Asked where it is
        no plain loss of one finite number on the CPU.
        """
        self.scaled = ScaledLosses()
        self.send: Send = lambda _: lambda: None
        self.note_bad: Callable[[int, float, str | None], None] = lambda *_: None
        """Told of a step, its loss that a device told and that is not finite, and the line that called backward."""
        self.listeners = Listeners()
        """Told of many steps at once, by `tell_listeners`."""
        self.watch: Callable[[int], None] | None = None
        """Told the number of each step as it ends, where its lines are watched, which makes it longer than others."""
        self.stepped: list[int] = []
        """The optimizers that stepped in the open step, by `id`."""
        self.number = 0
        self._round: list[int] = []
        self.is_interrupted = False
        """Whether something else was done in this step: its length tells nothing of the others."""
        self._write = write
        self._rows: list[_Row] = []
        self._num_told = 0
        self._on_device: list[tuple[int, OnDevice]] = []
        """Losses that lie on a device, each with the place of its row."""
        self._late: list[_LateLosses] = []
        self.waiting: list[Loss] = []
        """Of passes since the last update."""
        self._num_more = 0
        """Passes since then, less these losses: a pass may have none, or several."""
        self._losses: list[Loss] = []
        self._num_passes = 0
        self._is_skipped = False
        self._start_ns = self._written_ns = 0
        self.updated_ns = 0
        """When an optimizer stepped last."""
        self.clocked_ns = 0
        """The recorder's own time in the open step."""

    # What the loop tells.

    @property
    def has_passes(self) -> bool:
        return len(self.waiting) + self._num_more > 0

    @property
    def current(self) -> int:
        """The number of the step that what happens now most likely belongs to: one that is whole may be open still."""
        return self.number + (len(self.stepped) >= max(1, len(self._round)))

    def begin(self, step: OpenStep) -> None:
        """This step, which began as a full one, is light."""
        loop = self._loop
        self._round = loop.last.stepped if loop.has_marks else [*dict.fromkeys(loop.last.stepped)]
        self.number, self._start_ns, self.updated_ns = step.number, step.start_ns, step.start_ns
        self.stepped, self.waiting, self._losses = [], [], []
        self._num_passes = self._num_more = 0
        self._is_skipped = self.is_interrupted = False
        self.clocked_ns = 0
        self._written_ns = perf_counter_ns()

    def backward_entered(self, tensors: Any, gradients: Any) -> None:
        """`torch.autograd.backward` was called with these: anything but one finite number on the CPU, which the hook
        adds to `waiting` itself.
        """
        entered = perf_counter_ns()
        losses = tuple(self.read_losses(self.current, tensors, gradients) or ())
        self._num_more += 1 - len(losses)
        self.waiting += losses
        self.clocked_ns += perf_counter_ns() - entered

    def backward_left(self) -> bool:
        """The pass is over: whether a step ended with it, in a program that updates its parameters by hand."""
        passes = self._loop.passes_by_hand
        if not passes or len(self.waiting) + self._num_more < passes:
            return False
        self.updated(UPDATE_BY_HAND)
        return True

    def updated(self, optimizer: int, is_skipped: bool = False) -> None:
        entered = perf_counter_ns()
        stepped, waiting, num_more = self.stepped, self.waiting, self._num_more
        may_end = stepped and self._round and (waiting or num_more)
        is_again = optimizer in stepped and stepped.count(optimizer) >= self._round.count(optimizer)
        if is_again or (may_end and (stepped[-1], optimizer) not in self._loop.successions):
            self.close()
        stepped.append(optimizer)
        if waiting or num_more:
            self._losses += waiting
            self._num_passes += len(waiting) + num_more
            waiting.clear()
            self._num_more = 0
        self._is_skipped |= is_skipped
        self.updated_ns = entered
        self.clocked_ns += perf_counter_ns() - entered

    def close(self) -> None:
        number, end = self.number, self.updated_ns
        loss = self._take_losses() if self._losses else None
        flags = IS_SKIPPED * self._is_skipped + HAS_PAUSE * (self.is_interrupted or self.watch is not None)
        self._rows.append((number, self._start_ns, end, self._num_passes, loss, flags, self.clocked_ns))
        self.number += 1
        self._start_ns, self._num_passes, self.clocked_ns = end, 0, 0
        self.stepped.clear()
        self._is_skipped = self.is_interrupted = False
        if self.watch is not None:
            self.watch(number)
        if len(self._rows) >= MAX_ROWS or end - self._written_ns >= MAX_WAIT_NS:
            self.write()

    def tell_listeners(self) -> None:
        """Have those told of the steps since the last time who add them up."""
        rows, self._num_told = self._rows[self._num_told :], len(self._rows)
        if rows:
            steps = [
                LightStep(number, end - start, cost, not flags & HAS_PAUSE)
                for number, start, end, _, _, flags, cost in rows
            ]
            self.listeners(steps)

    # Writing.

    def write(self) -> None:
        entered = perf_counter_ns()
        self.tell_listeners()
        self.write_arrived()
        if self._rows:
            epoch = epoch_ns(0)
            line = LightLine(
                light=[
                    (number, epoch + start, (end - start) / 1000, num_passes, spelled(loss), flags)
                    for number, start, end, num_passes, loss, flags, _ in self._rows
                ],
                recorder_us=sum(row[-1] for row in self._rows) / 1000 / len(self._rows),
                backward_site=self._loop.last.backward_site,
                loader=self._loop.last.batches.loader,
            )
            self._write(line)
            if self._on_device:
                answer = self.send([loss for _, loss in self._on_device])
                self._late.append(_LateLosses(line, [place for place, _ in self._on_device], answer))
            self._rows, self._on_device, self._num_told = [], [], 0
        self._written_ns = perf_counter_ns()
        self.clocked_ns += self._written_ns - entered

    @property
    def awaits_device(self) -> bool:
        return bool(self._late)

    def write_arrived(self) -> None:
        """Write the lines again whose losses the device has told meanwhile: of two lines of a step the later counts."""
        while self._late and (values := self._late[0].answer()) != []:
            line, places, _ = self._late.pop(0)
            losses = defaultdict[int, float](float)
            for place, value in zip(places, values or (), strict=False):
                losses[place] += value
            for place, on_device in losses.items():
                row = line.light[place]
                loss = on_device + float(row[4] or 0.0)
                line.light[place] = (row[0], row[1], row[2], row[3], spelled(loss), row[5])
                if spelled(loss) != loss:
                    self.note_bad(row[0], loss, line.backward_site)
            self._write(line)

    def _take_losses(self) -> float | None:
        """What the host knows of the open step's; the device tells its part late."""
        place, losses, self._losses = len(self._rows), self._losses, []
        values = [loss for loss in losses if not isinstance(loss, OnDevice)]
        self._on_device += [(place, loss) for loss in losses if isinstance(loss, OnDevice)]
        return sum(values) if values else None


class LightLoop:
    """What the entry points call in a light step; at its end it wakes the state machine where a burst is due."""

    def __init__(self, steps: Steps, sampling: Sampling, write: Callable[[LightLine], None]) -> None:
        self.is_on = False
        """Whether the step is light: what has no part in it asks this before anything else."""
        self.is_burst_due = False
        """Whether the step after this one is to be recorded in full."""
        self.ends_with_update = True
        """Whether the step is over with an optimizer's update, not with a backward pass."""
        self.steps = LightSteps(steps, write)
        self.mode_listeners = Listeners()
        """Told whether all calls are seen from now on, or hardly any; at an instant when no module's hook runs."""
        self._steps = steps
        self._sampling = sampling
        self._num_overdue = 0
        self.steps.listeners.append(sampling.note_light)

    def switch_to_light(self, step: OpenStep) -> None:
        """The open step, in which gradients are computed or applied now, is a light one: see no more of it."""
        steps = self._steps
        steps.open = steps.closed = None
        self.steps.begin(step)
        self._num_overdue = 0
        self._look_ahead()
        self.is_on = True
        self.ends_with_update = not steps.passes_by_hand
        self.mode_listeners(False)

    def pass_ended(self) -> None:
        if self.steps.backward_left():
            if self.steps.number + 1 >= self._sampling.look_at:
                self._look_ahead()
            if self.is_burst_due:
                self.switch_to_full()

    def updated(self, optimizer: int, *, is_skipped: bool = False) -> None:
        """This optimizer, or graph, by its `id`, has stepped, or was skipped."""
        self.steps.updated(optimizer, is_skipped)
        self.after_update()

    def after_update(self) -> None:
        if self.steps.number + 1 >= self._sampling.look_at:
            self._look_ahead()
        if not self.is_burst_due or self._steps.has_marks:
            return
        self._num_overdue += 1
        is_whole = not self._steps.is_fed and self.steps.stepped == self._steps.last.stepped
        if is_whole or self._num_overdue > MAX_OVERDUE_STEPS:
            self.switch_to_full()

    def fetch_began(self, *, is_start: bool) -> None:
        """A batch is asked for, or a loader starts: that may begin a step recorded in full."""
        if not self.steps.stepped or self.steps.has_passes or self._steps.has_marks:
            return
        if is_start:
            self.steps.is_interrupted = True  # an evaluation may follow
            self._sampling.ask_for_burst()
            self._look_ahead()
        if self.is_burst_due and (is_start or self._steps.is_fed):
            self.switch_to_full()

    def step_marked(self) -> None:
        if not self.steps.stepped:
            self.steps.updated(0)
        self.steps.close()
        if self._sampling.wants_full(self.steps.number):
            self._end()
        elif self.steps.number >= self._sampling.look_at:
            self._look_ahead()

    def switch_to_full(self) -> None:
        """The open step is whole, if it has an update: what comes next is recorded in full."""
        if self.steps.stepped:
            self.steps.close()
        self._end()

    def _look_ahead(self) -> None:
        entered = perf_counter_ns()
        self.steps.tell_listeners()
        self.is_burst_due = self._sampling.is_due_after(self.steps.number)
        self.steps.clocked_ns += perf_counter_ns() - entered

    def _end(self) -> None:
        self.steps.write()
        self._steps.num_finished = self.steps.number
        self.is_on = self.is_burst_due = False
        self.mode_listeners(True)
