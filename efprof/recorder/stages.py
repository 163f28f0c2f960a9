"""Which stage of which step the training is in."""

import sys
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch

from efprof.recorder.hosts import Hosts
from efprof.recorder.memory import Memory
from efprof.recorder.open_step import OpenStep
from efprof.recorder.scaled_losses import ScaledLosses
from efprof.recorder.sprint import Sprint
from efprof.recorder.sprint_steps import Interrupted
from efprof.recorder.steps import Listener, Steps
from efprof.recorder.stopwatches import NoStopwatch

if TYPE_CHECKING:
    from efprof.recorder.stopwatch import Stopwatch

NOBODY = 0
"""No thread has this number: while it stands for the training's, every entry point returns at once."""


class Stages:
    """The state of the loop that is being recorded.

    Collectors subscribe by appending to `step_began(step)`, `fetched(step)`, `step_dropped(step)`,
    `backward_began(step, tensors, gradients)`, `clipped(norm, max_norm)`, `optimizer_began(step, optimizer)` and
    `step_ended(step, record)`; `write(step, record)` comes last. Forked children are ignored.
    """

    def __init__(self, memory: Memory, write: Listener) -> None:
        self.steps = Steps(memory, write)
        self.step_began = self.steps.began
        self.step_dropped = self.steps.dropped
        self.step_ended = self.steps.ended
        self.fetched: list[Listener] = []
        self.backward_began: list[Listener] = []
        self.backward_ended: list[Callable[[], None]] = [self.steps.skips.note_backward]
        """Told of every pass that the state machine saw the end of."""
        self.optimizer_began: list[Listener] = [self.steps.skips.note_optimizer]
        self.clipped: list[Listener] = []
        self.stage: str | None = None
        self.opener: str | None = None
        """Which entry point opened the stage: it is the one to close it."""
        self.watch: Stopwatch | NoStopwatch = NoStopwatch()
        self.scaled_losses = ScaledLosses()
        self.is_updating = False
        """Whether a function runs that makes up the stage `optimizer` beside the optimizer's own step."""
        self.hosts = Hosts()
        self.thread = get_ident()
        """The one that trains."""
        self._sprint: Sprint | None = None
        self._paused: int | None = None
        self._stage_start_ns = 0
        self._handled = 0
        self._depth = 0
        self._has_closure = False
        """Whether an optimizer is running that computes its gradients itself, by calling back."""
        self._failed: tuple[str, int] | None = None

    # What the rest of the recorder asks.

    @property
    def step(self) -> OpenStep | None:
        """The step that is being recorded."""
        sprint = self._sprint
        return sprint.step if sprint is not None and sprint.is_on else self.steps.open

    @property
    def num_steps(self) -> int:
        """How many steps are finished."""
        return self.steps.num_finished

    @property
    def is_ours(self) -> bool:
        """Whether this call comes from the training thread of the recorded process."""
        return get_ident() == self.thread

    @property
    def reads_by_design(self) -> bool:
        """Whether a loader or an optimizer is running: both read values of tensors, on the CPU."""
        return self.stage == "data" or self.opener == "optimizer"

    @property
    def is_in_optimizer(self) -> bool:
        """Whether an optimizer's own step is running, and not its closure."""
        return self.opener == "optimizer"

    def stage_of(self, error: BaseException) -> str | None:
        """The stage that `error` ended, `other` for the user's code between the stages, None outside a step."""
        self.leave_sprint()
        link: BaseException | None = error
        while link is not None and self._failed is not None:
            if id(link) == self._failed[1]:
                return self._failed[0]
            link = link.__context__
        return None if self.step is None else self.stage or "other"

    # What it tells the recording to do.

    def sprint_with(self, sprint: Sprint) -> None:
        """Leave short steps that are all alike to it."""
        self._sprint, self.watch = sprint, sprint.watch

    def leave_sprint(self) -> None:
        """Have the state machine see what comes next; another thread has no say in that."""
        if self._sprint is not None and get_ident() == self.thread:
            self._sprint.leave()

    def go_on(self, interrupted: Interrupted) -> None:
        """A sprint was broken off here."""
        self.stage, self.opener = interrupted.stage, interrupted.opener
        self._stage_start_ns, self._depth = interrupted.stage_start_ns, interrupted.depth
        self._failed = None

    def disturb(self) -> None:
        """Something costly is done between two steps: the time until the next one begins belongs to none."""
        self.steps.is_disturbed = True

    def pause(self) -> None:
        """See nothing until `resume`: a CUDA graph is being captured, into which nothing of ours may get."""
        self.leave_sprint()
        self._paused = self.thread
        self._set_thread(NOBODY)

    def resume(self) -> None:
        """See again."""
        if self._paused is not None:
            self._set_thread(self._paused)
            self._paused = None

    def stop(self) -> None:
        """See nothing any more."""
        self.leave_sprint()
        self._set_thread(NOBODY)
        self._paused = None

    def forget(self) -> None:
        """See nothing any more in a forked child: what is open is the parent's to write."""
        self.watch.stop()
        self._sprint = None
        self._set_thread(NOBODY)
        self._paused = None

    def finish(self) -> None:
        """The program ends: close the step if it is whole, drop it otherwise."""
        if self._sprint is not None:
            self._sprint.close()
        if self.stage is None:
            self.steps.finish_last(perf_counter_ns())
        self.stop()
        for listeners in (
            self.step_began, self.fetched, self.step_dropped, self.backward_began, self.clipped, self.optimizer_began,
            self.backward_ended,
        ):  # fmt: skip
            listeners.clear()  # the end may come within an entry point, which goes on

    # What the entry points call.

    def step_to_train(self, entered: int) -> OpenStep:
        """The step that a forward or backward pass starting now belongs to."""
        step = self.steps.open
        step = step if step is not None and self._has_closure else self.steps.to_train(entered)
        step.train_on_batch()
        return step

    def leave_optimizer(self, entered: int) -> bool:
        """Close the stage `optimizer` where its closure, or the program after an error in it, goes on."""
        if self.leave_function(entered):
            return True
        step = self.steps.open
        if self.opener != "optimizer" or step is None:
            return False
        self.close_stage(step, entered)
        if self._has_closure and not (len(step.spans) > 1 and step.spans[-2][0] == "backward"):
            self._take_back(step)  # nothing was done yet between the call of `step` and that of its closure
        return True

    def leave_function(self, entered: int) -> bool:
        """Close the stage `forward` of a compiled function where that returns, or goes on with what is seen."""
        step = self.steps.open
        if self.opener != "function" or step is None:
            return False
        self.close_stage(step, entered)
        self.steps.note_memory(step, "post_forward_pre_backward", entered)
        return True

    def leave_host(self, optimizer: torch.optim.Optimizer, entered: int) -> None:
        """Have the stage `forward` not begun where this optimizer shows that it was none."""
        step = self.steps.open
        if self.opener != "forward" or step is None or not self.hosts.has_found(optimizer):
            return
        self.close_stage(step, entered)
        self._take_back(step)
        self._depth, step.has_forward = 0, False
        if step.memory and step.memory[-1][0] == "pre_forward":
            step.memory.pop()
        if not step.num_fetches and not step.has_gradients and not step.stepped:
            self.steps.drop()  # all of it was before the training

    def open_stage(self, step: OpenStep, stage: str, opener: str, entered: int) -> None:
        """A stage begins; its entry point was entered at `entered`."""
        self.stage, self.opener, self._failed = stage, opener, None
        if self.steps.clock is not None:
            self.steps.clock.open()
        self._handled = id(sys.exception())
        self._stage_start_ns = now = perf_counter_ns()
        step.recorder_ns += now - max(entered, step.start_ns)

    def close_stage(self, step: OpenStep, entered: int) -> None:
        """It ended at `entered`."""
        step.spans.append((self.stage or "other", self._stage_start_ns, entered))
        if self.steps.clock is not None:
            step.device_marks = step.device_marks or []
            step.device_marks.append(self.steps.clock.close())
        # Seen from the `finally` of a hook: the error that ends the stage. Its id, since holding it would hold frames.
        error = sys.exception()
        is_new = error is not None and id(error) != self._handled  # some programs train while they handle another one
        is_new = is_new and not isinstance(error, StopIteration)  # soon forgotten, and its id is given to another one
        self._failed = (self.stage or "other", id(error)) if is_new else None
        self.stage = self.opener = None

    def _take_back(self, step: OpenStep) -> None:
        """The stage that was closed last is none."""
        step.spans.pop()
        if step.device_marks:
            step.device_marks.pop()

    def _set_thread(self, thread: int) -> None:
        self.thread = self.watch.thread = thread
        self.steps.others.is_paused = thread == NOBODY
