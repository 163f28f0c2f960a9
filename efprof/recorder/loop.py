"""Finds the stages of an unmodified training loop, from the calls that every loop must make.

What happens between those calls is the stage `other`; where a step begins is `Steps`' business.
"""

import sys
import threading
from threading import get_ident
from time import perf_counter_ns
from typing import Any

import torch

from efprof.recorder.memory import Memory
from efprof.recorder.open_step import OpenStep, num_samples
from efprof.recorder.sprint import Interrupted, Sprint
from efprof.recorder.steps import Listener, Steps

NOBODY = -1
"""No thread has this number: while it stands for the training's, every entry point returns at once."""


class Loop:
    """The state machine behind the hooks.

    Collectors subscribe by appending to `step_began(step)`, `fetched(step)`, `step_dropped(step)`,
    `backward_began(step, tensors)`, `optimizer_began(step, optimizer)` and `step_ended(step, record)`; `write(step,
    record)` comes last. One thread trains: the one that imported torch, or another one that steps an optimizer
    where that one never did. Forked children are ignored.

    The entry points are written for speed before looks: each runs with cold caches after a heavy operator, where
    one more Python call costs about a microsecond (measured).
    """

    def __init__(self, memory: Memory, write: Listener) -> None:
        self.steps = Steps(memory, write)
        self.step_began = self.steps.began
        self.step_dropped = self.steps.dropped
        self.step_ended = self.steps.ended
        self.fetched: list[Listener] = []
        self.backward_began: list[Listener] = []
        self.optimizer_began: list[Listener] = []
        self.stage: str | None = None
        self.sprint: Sprint | None = None
        self.unscaled_loss: tuple[int, torch.Tensor] | None = None
        """The `id` of the tensor that a gradient scaler made last, and what it made it from."""
        self._opener: str | None = None
        """Which entry point opened the stage: it is the one to close it."""
        self._thread = get_ident()
        self._paused: int | None = None
        self._stage_start_ns = 0
        self._depth = 0
        self._nested_backwards = 0
        self._trained: int | None = None
        """The outermost module that gradients were computed for last, by its `id`."""
        self._has_closure = False
        """Whether an optimizer is running that computes its gradients itself, by calling back."""
        self._failed: tuple[str, int] | None = None

    # Fetching.

    def fetch_began(self, loader: int | None) -> None:
        """A batch is asked for."""
        if self.sprint is not None and self.sprint.is_on:
            self.sprint.leave()
        if get_ident() != self._thread:
            return
        entered = perf_counter_ns()
        if self.stage is not None and not self._leave_optimizer(entered):
            return
        steps = self.steps
        step = steps.open if self._has_closure else None
        step = step or steps.before_fetch(entered)
        steps.has_loader = True
        if loader is not None:
            step.loader = loader
        self._open_stage(step, "data", "fetch", entered)

    def fetch_ended(self, batch: object) -> None:
        """A batch arrived."""
        if self.sprint is not None and self.sprint.is_on:
            self.sprint.leave()
        step = self.steps.open
        if self._opener != "fetch" or step is None or get_ident() != self._thread:
            return
        entered = perf_counter_ns()
        self._close_stage(step, entered)
        step.num_fetches += 1
        step.samples += num_samples(batch)
        for listener in self.fetched:
            listener(step)
        step.recorder_ns += perf_counter_ns() - entered

    def fetch_broke_off(self) -> None:
        """A loader's iterator was made, its workers run and no batch has come yet; or asking for a batch raised."""
        if self.sprint is not None and self.sprint.is_on:
            self.sprint.leave()
        step = self.steps.open
        if self._opener == "fetch" and step is not None and get_ident() == self._thread:
            self._close_stage(step, perf_counter_ns())

    def data_ended(self) -> None:
        """The loader has no more batches."""
        if self.sprint is not None and self.sprint.is_on:
            self.sprint.leave()
        step = self.steps.open
        if self._opener != "fetch" or step is None or get_ident() != self._thread:
            return
        self._close_stage(step, perf_counter_ns())
        self.steps.data_ended(step)

    # Forward.

    def forward_began(self, module: torch.nn.Module | None = None) -> None:
        """A module was called; only the outermost call counts."""
        steps = self.steps
        if get_ident() != self._thread:
            steps.others.forward_began()
            return
        self._depth += 1
        if self._depth > 1 or (self.stage is not None and self._opener not in ("user", "optimizer")):
            return
        entered = perf_counter_ns()
        if not torch.is_grad_enabled():
            if module is not None and not module.training and id(module) == self._trained:
                steps.before_evaluation(entered)
            if steps.open is not None:
                steps.open.has_evaluation = True
            return
        self._trained = id(module)
        if self._opener == "optimizer":
            self._leave_optimizer(entered)
        step = self._step_to_train(entered)
        if module is not None and not module.training:
            step.has_evaluation = True
        if not step.has_forward:
            step.has_forward = True
            step.sequence = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        if self.stage is None:
            if not step.memory or step.memory[-1][0] in ("post_backward", "post_optimizer_step"):
                steps.note_memory(step, "pre_forward", entered)
            self._open_stage(step, "forward", "forward", entered)

    def forward_ended(self) -> None:
        """The module call returned or raised."""
        steps = self.steps
        if get_ident() != self._thread:
            steps.others.forward_ended()
            return
        self._depth = depth = max(0, self._depth - 1)
        step = steps.open
        if depth or self._opener != "forward" or step is None:
            return
        entered = perf_counter_ns()
        self._close_stage(step, entered)
        if step.memory and step.memory[-1][0] == "post_forward_pre_backward":
            step.memory.pop()
        steps.note_memory(step, "post_forward_pre_backward", entered)
        step.recorder_ns += perf_counter_ns() - entered

    # Backward.

    def backward_entered(self, tensors: Any, site: str | None) -> None:
        """`torch.autograd.backward` was called with these tensors at this line."""
        steps = self.steps
        if get_ident() != self._thread:
            steps.others.backward_began()
            return
        entered = perf_counter_ns()
        if self._opener == "backward":
            self._nested_backwards += 1  # reentrant checkpointing calls backward from within backward
        if self.stage is not None and self._opener != "user" and not self._leave_optimizer(entered):
            return
        step = self._step_to_train(entered)
        step.num_backwards += 1
        step.backward_site = site or step.backward_site
        if steps.probe is not None:
            steps.probe.watch_loss(tensors)
        steps.note_memory(step, "pre_backward", entered)
        for listener in self.backward_began:
            listener(step, tensors)
        if self.stage is None:
            self._open_stage(step, "backward", "backward", entered)

    def gradients_entered(self, inputs: Any) -> None:
        """`torch.autograd.grad` was called for these; within a forward pass, as for forces, it is part of that."""
        if self.sprint is not None and self.sprint.is_on:
            self.sprint.leave()
        steps = self.steps
        if get_ident() != self._thread:
            steps.others.backward_began()
            return
        entered = perf_counter_ns()
        if self._opener == "backward":
            self._nested_backwards += 1
        if self.stage is not None and not self._leave_optimizer(entered):
            return
        step = self._step_to_train(entered)
        step.num_gradient_calls += 1
        if steps.probe is not None:
            steps.probe.watch_inputs(inputs)
        self._open_stage(step, "backward", "backward", entered)

    def backward_left(self) -> None:
        """The backward pass returned or raised."""
        steps = self.steps
        if get_ident() != self._thread:
            steps.others.backward_ended()
            return
        step = steps.open
        if self._opener != "backward" or step is None:
            return
        if self._nested_backwards:
            self._nested_backwards -= 1
            return
        entered = perf_counter_ns()
        self._close_stage(step, entered)
        steps.note_memory(step, "post_backward", entered)
        if steps.probe is not None:
            steps.probe.note_backward()
        if self._has_closure:
            self._open_stage(step, "optimizer", "optimizer", entered)  # the closure's part is over
        else:
            step.recorder_ns += perf_counter_ns() - entered

    # Update.

    def optimizer_entered(self, optimizer: torch.optim.Optimizer, has_closure: bool = False) -> None:
        """`optimizer.step` was called."""
        if get_ident() != self._thread and not self._take_over():
            return
        entered = perf_counter_ns()
        if self._opener == "optimizer" and self.steps.open is not None:
            self._close_stage(self.steps.open, entered)  # the last call raised, and the program went on
        if self.stage is not None and self._opener not in ("user", "update"):
            return
        step = self.steps.to_update(id(optimizer), entered)
        self._has_closure = has_closure
        if not has_closure:
            for listener in self.optimizer_began:
                listener(step, optimizer)
        if self.stage is None:
            self._open_stage(step, "optimizer", "optimizer", entered)

    def turn_to(self, optimizer: torch.optim.Optimizer) -> None:
        """It was taken for the optimizer of the sprint, which it broke off: begin its stage again."""
        if self._opener == "optimizer":
            self.stage = self._opener = None
        self.optimizer_entered(optimizer)

    def optimizer_left(self, optimizer: torch.optim.Optimizer) -> None:
        """`optimizer.step` returned."""
        step = self.steps.open
        if get_ident() != self._thread or step is None:
            return
        if self._opener not in ("optimizer", "update", "user") and not self._has_closure:
            return
        entered = perf_counter_ns()
        if self._opener == "optimizer":
            self._close_stage(step, entered)
        if self._has_closure:
            self._has_closure = False
            for listener in self.optimizer_began:  # only now are there gradients
                listener(step, optimizer)
        self.steps.updated(step, id(optimizer), entered)
        step.recorder_ns += perf_counter_ns() - entered

    def optimizer_skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """A gradient scaler was to step this optimizer; nothing happens here if it did."""
        if self.sprint is not None and self.sprint.is_on:
            self.sprint.leave()
        step = self.steps.open
        if get_ident() != self._thread or step is None or id(optimizer) in step.stepped:
            return
        self.steps.probe = None
        for listener in self.optimizer_began:
            listener(step, optimizer)
        self.steps.updated(step, id(optimizer), perf_counter_ns())
        step.is_skipped = True

    def replayed(self, graph: int, entered: int) -> None:
        """A CUDA graph, by its `id`, that holds a whole update was launched; its stages cannot be told apart."""
        if self.sprint is not None and self.sprint.is_on:
            self.sprint.leave()
        step = self.steps.to_update(graph, entered)
        step.num_backwards += 1
        self.steps.updated(step, graph, entered)

    def update_began(self) -> bool:
        """Gradients are clipped or unscaled, or a schedule moves on; whether that opened the stage `optimizer`."""
        if self.sprint is not None and self.sprint.is_on:
            self.sprint.leave()
        step = self.steps.open
        if self.stage is not None or step is None or not step.has_gradients or get_ident() != self._thread:
            return False
        self._open_stage(step, "optimizer", "update", perf_counter_ns())
        return True

    def update_ended(self) -> None:
        """What `update_began` opened ends."""
        if self._opener == "update" and self.steps.open is not None:
            self._close_stage(self.steps.open, perf_counter_ns())

    # Marks in the user's own code.

    def mark_step(self) -> None:
        """The user says that a step ends here: from now on only such marks divide steps."""
        if self.sprint is not None and self.sprint.is_on:
            self.sprint.leave()
        if get_ident() != self._thread and not self._take_over():
            return
        entered = perf_counter_ns()
        self.steps.has_marks = True
        if self.stage is not None and self.steps.open is not None:
            self._close_stage(self.steps.open, entered)
        self.steps.finish_and_begin(entered)

    def mark_stage_began(self, stage: str) -> None:
        """The user says that this stage begins here; whatever is seen within belongs to it."""
        if self.sprint is not None and self.sprint.is_on:
            self.sprint.leave()
        if get_ident() != self._thread or self.stage is not None:
            return
        entered = perf_counter_ns()
        step = self.steps.before_fetch(entered) if stage == "data" else self._step_to_train(entered)
        if stage == "data":
            self.steps.has_loader = True
        elif stage == "forward":
            self.steps.note_memory(step, "pre_forward", entered)
        self._open_stage(step, stage, "user", entered)

    def mark_stage_ended(self) -> None:
        """The stage that the user marked ends."""
        if self.sprint is not None and self.sprint.is_on:
            self.sprint.leave()
        step, stage = self.steps.open, self.stage
        if self._opener != "user" or step is None or get_ident() != self._thread:
            return
        entered = perf_counter_ns()
        self._close_stage(step, entered)
        if stage == "forward":
            self.steps.note_memory(step, "post_forward_pre_backward", entered)
        elif stage == "backward":
            step.num_backwards = max(1, step.num_backwards)
            self.steps.note_memory(step, "post_backward", entered)
        elif stage == "optimizer" and not step.stepped:
            self.steps.updated(step, 0, entered)

    # What the rest of the recorder asks.

    @property
    def step(self) -> OpenStep | None:
        """The step that is being recorded."""
        return self.steps.open

    @property
    def num_steps(self) -> int:
        """How many steps are finished."""
        return self.steps.num_finished

    @property
    def is_ours(self) -> bool:
        """Whether this call comes from the training thread of the recorded process."""
        return get_ident() == self._thread

    @property
    def reads_by_design(self) -> bool:
        """Whether a loader or an optimizer is running: both read values of tensors, on the CPU."""
        if self.sprint is not None and self.sprint.is_on:
            return self.sprint.reads_by_design
        return self.stage == "data" or self._opener == "optimizer"

    @property
    def is_in_optimizer(self) -> bool:
        """Whether an optimizer's own step is running, and not its closure."""
        return self._opener == "optimizer"

    def disturb(self) -> None:
        """Something costly is done between two steps: the time until the next one begins belongs to none."""
        self.steps.is_disturbed = True

    def pause(self) -> None:
        """See nothing until `resume`: a CUDA graph is being captured, into which nothing of ours may get."""
        if self.sprint is not None and self.sprint.is_on:
            self.sprint.leave()
        self._paused = self._thread
        self._set_thread(NOBODY)

    def resume(self) -> None:
        """See again."""
        if self._paused is not None:
            self._set_thread(self._paused)
            self._paused = None

    def stop(self) -> None:
        """See nothing any more."""
        if self.sprint is not None and self.sprint.is_on:
            self.sprint.leave()
        self._set_thread(NOBODY)
        self._paused = None

    def go_on(self, interrupted: Interrupted) -> None:
        """A sprint was broken off here."""
        self.stage, self._opener = interrupted.stage, interrupted.opener
        self._stage_start_ns, self._depth = interrupted.stage_start_ns, interrupted.depth
        self._failed = None

    def stage_of(self, error: BaseException) -> str | None:
        """The stage that `error` ended, `other` for the user's code between the stages, None outside a step."""
        if self.sprint is not None and self.sprint.is_on:
            self.sprint.leave()
        link: BaseException | None = error
        while link is not None and self._failed is not None:
            if id(link) == self._failed[1]:
                return self._failed[0]
            link = link.__context__
        return None if self.step is None else self.stage or "other"

    def finish(self) -> None:
        """The program ends: close the step if it is whole, drop it otherwise."""
        if self.sprint is not None:
            self.sprint.close()
        if self.stage is None:
            self.steps.finish_last(perf_counter_ns())
        self.stop()
        for listeners in (self.step_began, self.fetched, self.step_dropped, self.backward_began, self.optimizer_began):
            listeners.clear()  # the end may come within an entry point, which goes on

    # What follows is called by the entry points.

    def _step_to_train(self, entered: int) -> OpenStep:
        step = self.steps.open
        return step if step is not None and self._has_closure else self.steps.to_train(entered)

    def _leave_optimizer(self, entered: int) -> bool:
        """Close the stage `optimizer` where its closure, or the program after an error in it, goes on."""
        step = self.steps.open
        if self._opener != "optimizer" or step is None:
            return False
        self._close_stage(step, entered)
        if self._has_closure and not (len(step.spans) > 1 and step.spans[-2][0] == "backward"):
            step.spans.pop()  # nothing was done yet between the call of `step` and that of its closure
            if step.device_marks:
                step.device_marks.pop()
        return True

    def _open_stage(self, step: OpenStep, stage: str, opener: str, entered: int) -> None:
        self.stage, self._opener, self._failed = stage, opener, None
        if self.steps.clock is not None:
            self.steps.clock.open()
        self._stage_start_ns = now = perf_counter_ns()
        step.recorder_ns += now - max(entered, step.start_ns)

    def _close_stage(self, step: OpenStep, entered: int) -> None:
        step.spans.append((self.stage or "other", self._stage_start_ns, entered))
        if self.steps.clock is not None:
            step.device_marks = step.device_marks or []
            step.device_marks.append(self.steps.clock.close())
        # Seen from the `finally` of a hook: the error that ends the stage. Its id, since holding it would hold frames.
        error = sys.exception()
        self._failed = None if error is None else (self.stage or "other", id(error))
        self.stage = self._opener = None

    def _take_over(self) -> bool:
        """Another thread steps an optimizer: it is the one that trains if ours never did, or is no more."""
        if self._thread == NOBODY:
            return False
        is_alive = any(thread.ident == self._thread for thread in threading.enumerate())
        if is_alive and (self.num_steps or (self.step is not None and self.step.stepped)):
            return False
        if self.sprint is not None:
            self.sprint.leave()
        self._set_thread(get_ident())
        self._depth, self.stage, self._opener = 0, None, None
        return True

    def _set_thread(self, thread: int) -> None:
        self._thread = thread
        if self.sprint is not None:
            self.sprint.thread = thread
