"""Steps and stages that the training program names itself, or that a framework's callback does for it."""

from time import perf_counter_ns

from efprof.recorder.loop.loop import Loop


class UserMarks:
    """What the program says of its loop counts more than what is seen of it."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._steps = loop.steps

    def step_ended(self) -> None:
        """A step ends here: from now on only such marks divide steps."""
        loop, steps = self._loop, self._steps
        if not loop.thread.updates_in_caller():
            return
        entered = perf_counter_ns()
        steps.has_marks = True
        if loop.light.is_on:
            loop.light.step_marked()
            return
        if loop.clock.stage is not None and steps.open is not None:
            loop.clock.close(steps.open, entered)
        steps.finish_and_begin(entered)

    def stage_began(self, stage: str) -> None:
        loop, steps = self._loop, self._steps
        thread = loop.thread
        if loop.light.is_on or loop.clock.stage is not None or not thread.is_training_thread or thread.is_capturing:
            return
        entered = perf_counter_ns()
        step = steps.step_for_fetch(entered) if stage == "data" else loop.step_for_pass(entered)
        if stage == "data":
            steps.has_loader = True
        elif stage == "forward":
            steps.note_memory(step, "pre_forward", entered)
        loop.clock.open(step, stage, "user", entered)

    def stage_ended(self) -> None:
        loop, steps = self._loop, self._steps
        step, stage = steps.open, loop.clock.stage
        if loop.clock.opener != "user" or step is None or not loop.thread.is_training_thread:
            return
        entered = perf_counter_ns()
        loop.clock.close(step, entered)
        if stage == "forward":
            steps.note_memory(step, "post_forward_pre_backward", entered)
        elif stage == "backward":
            step.num_backwards = max(1, step.num_backwards)
            steps.note_memory(step, "post_backward", entered)
        elif stage == "optimizer" and not step.stepped:
            steps.updated(step, 0, entered)

    def training_began(self) -> None:
        """From here on only marks divide steps, until the training ends."""
        self._see_all()
        self._steps.finish_last(perf_counter_ns())
        self._steps.has_marks = True
        self.begin_anew()

    def begin_unless_fetched(self) -> None:
        """What ran since the training began was none of its work, unless a loader was started."""
        step = self._steps.open
        if step is None or not step.spans:
            self.begin_anew()

    def begin_anew(self) -> None:
        """The next step begins now; one that has gradients already goes on, for it was interrupted."""
        self._see_all()
        step = self._steps.open
        if step is None or not step.has_gradients:
            self._steps.drop()
            self._steps.begin(perf_counter_ns())

    def training_ended(self) -> None:
        self._see_all()
        self._steps.finish_last(perf_counter_ns())
        self._steps.has_marks = False
        step = self._steps.open
        if step is not None and not step.has_gradients:
            self._steps.drop()

    def _see_all(self) -> None:
        if self._loop.light.is_on:
            self._loop.light.switch_to_full()
