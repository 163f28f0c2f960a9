"""Finds steps and stages in an unmodified training loop, from the calls that every loop must make.

A step runs from one fetch of a batch to the next one after an optimizer has stepped; in a loop without a
loader, from one forward pass to the next. What happens between those calls is the stage `other`.
"""

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from efprof.artifacts.steps import BoundaryMemory, ScalarReads, StageSpan
from efprof.recorder.memory import Memory, ReadingPlan, ResidentSet
from efprof.recorder.open_step import OpenStep, num_samples, record_of

Listener = Callable[..., None]


class Loop:
    """The state machine behind the hooks.

    Collectors subscribe by appending to `step_began(step)`, `fetched(step)`, `step_dropped(step)`,
    `backward_began(step, tensors)`, `optimizer_began(step, optimizer)` and `step_ended(step, record)`; `write(step,
    record)` comes last. Calls from other threads than the one that imported torch, and from forked children, are
    ignored.
    """

    def __init__(self, memory: Memory, write: Listener) -> None:
        self.step_began: list[Listener] = []
        self.fetched: list[Listener] = []
        self.step_dropped: list[Listener] = []
        self.step_ended: list[Listener] = []
        self.backward_began: list[Listener] = []
        self.optimizer_began: list[Listener] = []
        self.is_on = True
        self.step: OpenStep | None = None
        self.stage: str | None = None
        self.num_steps = 0
        self.unscaled_loss: tuple[int, torch.Tensor] | None = None
        """The `id` of the tensor that a gradient scaler made last, and what it made it from."""
        self._memory = memory
        self._plan = ReadingPlan()
        self._resident = ResidentSet()
        self._thread = threading.get_ident()
        self._stage_start_ns = 0
        self._depth = 0
        self._failed: tuple[str, int] | None = None
        self._has_loader = False
        self._is_disturbed = False
        self._write = write

    # The entry points. Each notes the time it was entered at, so that the recorder's own time can be told.

    def fetch_began(self, loader: int | None) -> None:
        """A batch is asked for."""
        entered = self._enter()
        if entered is None:
            return
        if self.stage == "optimizer":
            self._close_stage(entered)  # the optimizer raised, and the program went on
        if self.stage is not None:
            return
        step = self._between_steps(entered) or self._begin(entered)
        self._has_loader = True
        step.loader = loader if loader is not None else step.loader
        self._open_stage("data", entered)

    def fetch_ended(self, batch: object) -> None:
        """A batch arrived."""
        entered = self._enter()
        if entered is None or self.stage != "data" or self.step is None:
            return
        self._close_stage(entered)
        self.step.num_fetches += 1
        self.step.samples += num_samples(batch)
        for listener in self.fetched:
            listener(self.step)
        self._leave(entered)

    def fetch_failed(self) -> None:
        """Asking for a batch, or starting a loader, raised something else than StopIteration."""
        self.loader_started()

    def loader_started(self) -> None:
        """A loader's iterator was made: its workers run, no batch has come yet."""
        entered = self._enter()
        if entered is not None and self.stage == "data":
            self._close_stage(entered)
            self._leave(entered)

    def data_ended(self) -> None:
        """The loader has no more batches: what comes until the next one is asked for belongs to no step."""
        entered = self._enter()
        if entered is None or self.stage != "data" or self.step is None:
            return
        self._close_stage(entered)
        step = self.step
        if not step.num_backwards:
            self.step = None
            if step.num_fetches and not step.has_evaluation:
                self._has_loader = False  # read to its end without training: `batches = list(loader)`

    def forward_began(self) -> None:
        """A module was called; only the outermost call counts."""
        entered = self._enter()
        if entered is None:
            return
        self._depth += 1
        if self._depth > 1 or self.stage is not None:
            return
        if not torch.is_grad_enabled():
            if self.step is not None:
                self.step.has_evaluation = True
            return
        step = self._step_to_train(entered)
        if not step.has_forward:
            step.has_forward = True
            step.sequence = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        if not step.memory or step.memory[-1].boundary in ("post_backward", "post_optimizer_step"):
            self._note_memory("pre_forward", entered)
        self._open_stage("forward", entered)

    def forward_ended(self) -> None:
        """The module call returned or raised."""
        entered = self._enter()
        if entered is None:
            return
        self._depth = max(0, self._depth - 1)
        if self._depth or self.stage != "forward" or self.step is None:
            return
        self._close_stage(entered)
        if self.step.memory and self.step.memory[-1].boundary == "post_forward_pre_backward":
            self.step.memory.pop()
        self._note_memory("post_forward_pre_backward", entered)
        self._leave(entered)

    def backward_entered(self, tensors: Any, site: str | None) -> None:
        """`torch.autograd.backward` was called with these tensors at this line."""
        entered = self._enter()
        if entered is None or self.stage is not None:
            return
        step = self._step_to_train(entered)
        step.num_backwards += 1
        step.backward_site = site or step.backward_site
        self._note_memory("pre_backward", entered)
        for listener in self.backward_began:
            listener(step, tensors)
        self._open_stage("backward", entered)

    def backward_left(self) -> None:
        """The backward pass returned or raised."""
        self._end_stage("backward", "post_backward")

    def optimizer_entered(self, optimizer: torch.optim.Optimizer) -> None:
        """`optimizer.step` was called."""
        entered = self._enter()
        if entered is None:
            return
        if self.stage == "optimizer":
            self._close_stage(entered)  # the last call raised, and the program went on
        if self.stage is not None:
            return
        step = self.step or self._begin(entered)
        if id(optimizer) in step.stepped:
            # Two steps of one optimizer without a fetch between them: this loop does not feed from its loader.
            self._has_loader = False
            step = self._finish_and_begin(entered)
        for listener in self.optimizer_began:
            listener(step, optimizer)
        self._open_stage("optimizer", entered)

    def optimizer_left(self, optimizer: torch.optim.Optimizer) -> None:
        """`optimizer.step` returned."""
        if self._end_stage("optimizer", "post_optimizer_step") and self.step is not None:
            self.step.stepped.append(id(optimizer))

    def optimizer_skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """A gradient scaler was to step this optimizer; nothing happens here if it did."""
        entered = self._enter()
        step = self.step
        if entered is None or self.stage is not None or step is None or id(optimizer) in step.stepped:
            return
        for listener in self.optimizer_began:
            listener(step, optimizer)
        self._note_memory("post_optimizer_step", entered)
        step.stepped.append(id(optimizer))
        step.is_skipped = True
        self._leave(entered)

    def note_read(self, site: str, call: str, spent_ns: int) -> None:
        """A tensor's value was copied to Python at this line."""
        if self.step is None:
            return
        read = self.step.reads.get((site, call))
        if read is None:
            read = self.step.reads[site, call] = ScalarReads(site=site, call=call, count=0, us=0.0)
        read.count += 1
        read.us += spent_ns / 1000

    @property
    def is_ours(self) -> bool:
        """Whether this call comes from the training thread of the recorded process."""
        return self.is_on and threading.get_ident() == self._thread

    def disturb(self) -> None:
        """Something costly is done between two steps: the time until the next one begins belongs to none."""
        self._is_disturbed = True

    def stage_of(self, error: BaseException) -> str | None:
        """The stage that `error` ended, `other` for the user's code between the stages, None outside a step."""
        link: BaseException | None = error
        while link is not None and self._failed is not None:
            if id(link) == self._failed[1]:
                return self._failed[0]
            link = link.__context__
        return None if self.step is None else self.stage or "other"

    def finish(self) -> None:
        """The program ends: close the step if it is whole, drop it otherwise."""
        if self.step is not None and self.step.stepped and self.stage is None:
            self._finish(self.step, time.perf_counter_ns())
        self.is_on = False
        for listeners in (self.step_began, self.fetched, self.step_dropped, self.backward_began, self.optimizer_began):
            listeners.clear()  # the end may come within an entry point, which goes on

    # What follows is called by the entry points, in this order.

    def _enter(self) -> int | None:
        return time.perf_counter_ns() if self.is_on and threading.get_ident() == self._thread else None

    def _between_steps(self, entered: int) -> OpenStep | None:
        """The open step to go on with, or None where a new one has to begin."""
        step = self.step
        if step is None:
            return None
        if step.stepped:
            self._finish(step, entered)
            return None
        if step.has_evaluation and not step.num_backwards:
            for listener in self.step_dropped:
                listener(step)
            return None  # what was fetched so far fed an evaluation: it belongs to no step
        return step

    def _step_to_train(self, entered: int) -> OpenStep:
        step = self.step
        if step is None or (step.stepped and not self._has_loader):
            return self._finish_and_begin(entered)
        return step

    def _finish_and_begin(self, entered: int) -> OpenStep:
        if self.step is not None:
            self._finish(self.step, entered)
        return self._begin(entered)

    def _begin(self, entered: int) -> OpenStep:
        step = OpenStep(number=self.num_steps, start_ns=entered, epoch_ns=time.time_ns(), cpu_ns=time.process_time_ns())
        step.reads_boundaries = self._plan.is_due(step.number)
        self.step = step
        for listener in self.step_began:
            listener(step)
        step.reads_boundaries |= step.window is not None
        if self._is_disturbed:
            self._is_disturbed = False
            step.start_ns, step.epoch_ns = time.perf_counter_ns(), time.time_ns()
            step.cpu_ns = time.process_time_ns()
        return step

    def _note_memory(self, boundary: str, entered: int) -> None:
        step = self.step
        assert step is not None
        if step.reads_boundaries or boundary == "post_optimizer_step":
            before = time.perf_counter_ns()
            allocated, reserved = self._memory.read()
            step.reading_ns += time.perf_counter_ns() - before
            at_us = max(0, entered - step.start_ns) / 1000
            step.memory.append(BoundaryMemory(boundary, at_us, allocated, reserved))

    def _open_stage(self, stage: str, entered: int) -> None:
        self.stage, self._failed = stage, None
        self._leave(entered)
        self._stage_start_ns = time.perf_counter_ns()

    def _close_stage(self, entered: int) -> None:
        assert self.step is not None
        assert self.stage is not None
        start = self.step.start_ns
        span = StageSpan(self.stage, max(0, self._stage_start_ns - start) / 1000, (entered - start) / 1000)
        self.step.spans.append(span)
        # Seen from the `finally` of a hook: the error that ends the stage. Its id, since holding it would hold frames.
        error = sys.exception()
        self._failed = None if error is None else (self.stage, id(error))
        self.stage = None

    def _end_stage(self, stage: str, boundary: str) -> bool:
        entered = self._enter()
        if entered is None or self.stage != stage or self.step is None:
            return False
        self._close_stage(entered)
        self._note_memory(boundary, entered)
        self._leave(entered)
        return True

    def _leave(self, entered: int) -> None:
        if self.step is not None:
            self.step.recorder_ns += max(0, time.perf_counter_ns() - max(entered, self.step.start_ns))

    def _finish(self, step: OpenStep, entered: int) -> None:
        self.step = None
        self.num_steps += 1
        record = record_of(step, entered, self._resident)
        if step.reads_boundaries and step.window is None:
            self._plan.note(step.number, step.reading_ns, entered - step.start_ns)
        for listener in self.step_ended:
            listener(step, record)
        self._write(step, record)
