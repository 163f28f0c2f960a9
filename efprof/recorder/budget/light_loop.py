"""Between bursts: the state machine rests, and light steps are counted by their backward passes and updates alone."""

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final

from efprof.artifacts.steps import LightLine
from efprof.recorder.budget.light_steps import LightSteps
from efprof.recorder.budget.sampling import Sampling
from efprof.recorder.hooks.method_wrapper import Switch
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.loop.steps import Steps
from efprof.recorder.loop.training_thread import TrainingThread

MOST_OVERDUE_STEPS: Final = 8
"""Steps for which a burst waits for a step that is whole as the last full one was; then any update ends one."""


class LightLoop(Switch):
    """What the entry points call in a light step; at its end it wakes the state machine where a burst is due."""

    def __init__(
        self, steps: Steps, thread: TrainingThread, sampling: Sampling, write: Callable[[LightLine], None]
    ) -> None:
        self.is_on = False
        """Whether the step is light: what has no part in it asks this before anything else."""
        self.is_burst_due = False
        """Whether the step after this one is to be recorded in full."""
        self.ends_with_update = True
        """Whether the step is over with an optimizer's update, not with a backward pass."""
        self.steps = LightSteps(write)
        self.woken: list[Callable[[bool], None]] = []
        """Told whether all calls are seen from now on, or hardly any; at an instant when no module's hook runs."""
        self._steps = steps
        self._thread = thread
        self._sampling = sampling
        self._num_overdue = 0
        self.steps.settled.append(sampling.note_light)

    def rest(self, step: OpenStep) -> None:
        """The open step, in which gradients are computed or applied now, is a light one: see no more of it."""
        steps = self._steps
        steps.open = steps.closed = None
        self.steps.begin(step, steps.last_stepped, steps.last_site, steps.last_loader, steps.passes_by_hand)
        self._num_overdue = 0
        self._look_ahead()
        self.is_on = True
        self.ends_with_update = not steps.passes_by_hand
        for listener in self.woken:
            listener(False)

    def backward_entered(self, tensors: Any, gradients: Any) -> None:
        """`torch.autograd.backward` was called."""
        if self._thread.is_ours:
            self.steps.backward_entered(tensors, gradients)
        else:
            self._steps.others.backward_began()

    def backward_left(self) -> None:
        """It returned or raised."""
        if self._thread.is_ours:
            self.pass_ended()
        else:
            self._steps.others.backward_ended()

    def pass_ended(self) -> None:
        """It was our thread's."""
        if self.steps.backward_left():
            if self.steps.number + 1 >= self._sampling.look_at:
                self._look_ahead()
            if self.is_burst_due:
                self.wake()

    def updated(self, optimizer: int, *, is_held_back: bool = False) -> None:
        """This optimizer, or graph, by its `id`, has stepped, or was held back."""
        self.steps.updated(optimizer, is_held_back)
        self.after_update()

    def after_update(self) -> None:
        """Wake where a burst is due."""
        if self.steps.number + 1 >= self._sampling.look_at:
            self._look_ahead()
        if not self.is_burst_due:
            return
        self._num_overdue += 1
        is_whole = not self._steps.is_fed and self.steps.stepped == self._steps.last_stepped
        if is_whole or self._num_overdue > MOST_OVERDUE_STEPS:
            self.wake()

    def fetch_began(self, *, is_start: bool) -> None:
        """A batch is asked for, or a loader starts: that may begin a step recorded in full."""
        if not self.steps.stepped or self.steps.has_passes or self._steps.has_marks:
            return
        if is_start:
            self.steps.is_interrupted = True  # an evaluation may follow
            self._sampling.ask_for_burst()
            self._look_ahead()
        if self.is_burst_due and (is_start or self._steps.is_fed):
            self.wake()

    def step_marked(self) -> None:
        """The program says that the step ends here."""
        if not self.steps.stepped:
            self.steps.updated(0)
        self.steps.close()
        if self._sampling.wants_full(self.steps.number):
            self._end()
        elif self.steps.number >= self._sampling.look_at:
            self._look_ahead()

    def wake(self) -> None:
        """The open step is whole, if it has an update: what comes next is recorded in full."""
        if self.steps.stepped:
            self.steps.close()
        self._end()

    def _look_ahead(self) -> None:
        entered = perf_counter_ns()
        self.steps.settle()
        self.is_burst_due = self._sampling.is_due_after(self.steps.number)
        self.steps.charge(perf_counter_ns() - entered)

    def _end(self) -> None:
        self.steps.write()
        self._steps.num_finished = self.steps.number
        self.is_on = self.is_burst_due = False
        for listener in self.woken:
            listener(True)
