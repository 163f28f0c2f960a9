"""Reads each step's loss and gradients: on the CPU at once, on a device a step late and without waiting."""

import math
import time
import weakref
from collections import Counter
from typing import Any
from weakref import WeakSet

import torch

from efprof.artifacts.events import NonFiniteSeen, SuspectOperation
from efprof.artifacts.pending import NAN_NORM
from efprof.artifacts.steps import StepRecord, spelled
from efprof.recorder.canaries import Canaries
from efprof.recorder.clips import Clips
from efprof.recorder.end_readings import TOUCHED_NS
from efprof.recorder.gradients import (
    answers_late,
    device_norm,
    global_norm,
    is_a_mode_on,
    is_plain,
    is_plain_scalar,
    is_set,
    outside_modes,
    read_value,
    weighted_losses,
)
from efprof.recorder.graph import find_steep, find_suspects
from efprof.recorder.memory import ReadingPlan
from efprof.recorder.open_step import OpenStep
from efprof.recorder.session import Session
from efprof.recorder.step_numbers import StepNumbers, fill_norm, late_numbers, learning_rate_of
from efprof.recorder.swaps import watch_swaps

MAX_BAD_READS = 8
"""Steps whose bad numbers are counted as they come; a training that goes on with them has them in every step, and
counting takes two operators for each parameter."""

MAX_HELD_BACK = 16
"""Updates in a row that a gradient scaler may hold back to find its scale: from its usual first one, 2**16, it has come
down to 1 by then, and what overflows there is the training's own."""

MAX_STRIDE = 400
"""Steps between two that have all gradients read, which took 0.4 ms of a step of 9 ms (measured); in between, the norm
by which they are clipped, or one of them, tells of a bad one."""


class Numbers:
    """Adds up the open step's numbers, and fills them into its record."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._watch = session.loop.watch
        self._watch.takes_numbers = True
        self._has_walked = False
        self._loss: weakref.ref[torch.Tensor] | None = None
        self._clips = Clips(self._watch)
        self._plan = ReadingPlan(max_stride=MAX_STRIDE)
        self._step_ns = 0
        self.canaries = Canaries(self._watch)
        self._normless: WeakSet[torch.optim.Optimizer] = WeakSet()
        """Those whose gradients are all sharded or sparse."""
        self._held_back: Counter[int] = Counter()
        """How often in a row, by the optimizer's first parameter: a class around one has the same."""
        self._num_held_back = 0
        """That of the optimizer whose gradients are being noted."""
        self._num_bad_reads: Counter[bool] = Counter()
        """By whether the optimizer was held back: a scaler that finds its scale uses up nothing of the others."""

    def note_loss(self, step: OpenStep, tensors: Any, gradients: Any) -> None:
        """Add what backward is called on; where it is bad, look for its birth before backward frees the graph."""
        losses = weighted_losses(tensors, gradients)
        self._clips.backward_began()
        if not is_a_mode_on():
            for loss, gradient in losses:
                self._note_loss(step, loss, gradient)
            return
        with outside_modes():
            for loss, gradient in losses:
                if type(loss) is torch.Tensor:  # what others do, a mode may be needed for
                    self._note_loss(step, loss, gradient)

    def _note_loss(self, step: OpenStep, loss: torch.Tensor, gradient: torch.Tensor | None) -> None:
        """`gradient` multiplies the loss: -1 makes a score of it."""
        opened = _numbers_of(step)
        shown = self._session.loop.scaled_losses.unscaled(loss)
        factor = 1.0 if gradient is None or not gradient.is_cpu else float(read_value(gradient))
        self._watch.takes_numbers = shown is loss and is_plain_scalar(loss)
        if not shown.is_cpu:
            if answers_late(shown):
                # A copy: the program may average the loss over its ranks, in place, before it is read.
                copied = shown.detach().reshape(()).to(torch.float32, copy=True)
                opened.device_losses += (copied if gradient is None else copied * gradient.detach().reshape(()),)
            return
        self._loss = weakref.ref(loss)
        value = factor * float(read_value(shown))
        if not self._watch.add_loss(value):
            opened.loss = value if opened.loss is None else opened.loss + value
        if not self._has_walked and not math.isfinite(value):
            self._has_walked = True
            self._note_bad(step, "loss", value, find_suspects(loss, step.sequence or 0))

    def note_clip(self, norm: torch.Tensor, max_norm: float) -> None:
        """Gradients of this norm were clipped to that one at most."""
        self._clips.note(self._session.step_number, norm, max_norm)

    def note_gradients(self, step: OpenStep, optimizer: torch.optim.Optimizer) -> None:
        """Note the learning rate; where this step can afford it, count the gradients about to be applied and more."""
        if not is_a_mode_on():
            self._note_gradients(step, optimizer)
            return
        with outside_modes():
            self._note_gradients(step, optimizer)

    def _note_gradients(self, step: OpenStep, optimizer: torch.optim.Optimizer) -> None:
        opened = _numbers_of(step)
        # An optimizer that was given this flag skips a bad step by itself, on the device.
        found_inf = getattr(optimizer, "found_inf", None)
        opened.is_guarded |= found_inf is not None
        self._num_held_back = self._count_held_back(optimizer, id(optimizer) in step.held_back or is_set(found_inf))
        if opened.learning_rate is None and step.learning_rate is None:
            # Of the first optimizer, which may have stepped in a sprint that another one broke off.
            rate = learning_rate_of(optimizer)
            opened.learning_rate = None if rate is not None and self._watch.note_rate(rate) else rate
        clip_norm = None if optimizer in self._normless else self._clips.take(step.number)
        if opened.is_read is None:
            opened.is_read = self._plan.is_due(step.number)
            opened.lacks_norm = bool(step.stepped) and step.gradient_norm is None  # of one that stepped in a sprint
        if not opened.is_read and self._is_known(opened, optimizer, clip_norm):
            self.canaries.share(optimizer)
            return
        before = time.perf_counter_ns()
        self._read_gradients(step, optimizer, clip_norm)
        self._plan.note(step.number, time.perf_counter_ns() - before + TOUCHED_NS, self._step_ns)
        self._watch.read_due = self._plan.next_step
        self.canaries.share(optimizer)

    def _count_held_back(self, optimizer: torch.optim.Optimizer, is_held_back: bool) -> int:
        if not (is_held_back or self._held_back):  # as in nearly every step of nearly every program
            return 0
        key = next((id(parameter) for group in optimizer.param_groups for parameter in group["params"]), 0)
        if not is_held_back:
            self._held_back.pop(key, None)
            return 0
        self._held_back[key] += 1
        return self._held_back[key]

    def _is_known(self, opened: StepNumbers, optimizer: torch.optim.Optimizer, clip_norm: torch.Tensor | None) -> bool:
        """Whether the gradients need not be read: they are fine, or as bad as they were in earlier steps."""
        if clip_norm is not None and not clip_norm.is_cpu:
            opened.device_norms += (clip_norm,) if answers_late(clip_norm) else ()
            return True
        if clip_norm is not None:
            value: float | None = read_value(clip_norm)
        elif optimizer not in self.canaries:
            return False
        else:
            canary = self.canaries[optimizer]
            if canary is None:  # on a device, or sharded: no gradient can be looked at alone
                opened.lacks_norm |= optimizer not in self._normless
                return True
            value = self.canaries.read(canary)
        if value is None or not (math.isfinite(value) or self._is_counted_enough()):
            return False
        if clip_norm is not None or not math.isfinite(value):
            self._add_norm(opened, abs(value))
        else:
            opened.lacks_norm = True
        return True

    def _add_norm(self, opened: StepNumbers, norm: float) -> None:
        if not self._watch.note_norm(NAN_NORM if math.isnan(norm) else norm):
            opened.add_norm(norm)

    def _is_counted_enough(self) -> bool:
        if self._num_held_back == MAX_HELD_BACK:
            return self._has_walked
        return self._num_bad_reads[self._num_held_back > 0] >= MAX_BAD_READS

    def _read_gradients(self, step: OpenStep, optimizer: torch.optim.Optimizer, clip_norm: torch.Tensor | None) -> None:
        opened = _numbers_of(step)
        parameters = [
            parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.grad is not None
        ]
        opened.num_gradients += len(parameters)
        dense = [parameter.grad for parameter in parameters if is_plain(parameter.grad)]
        opened.gradient_bytes += sum(gradient.nbytes for gradient in dense)
        self.canaries.choose(optimizer, parameters)
        if not dense:
            self._normless.add(optimizer)
            return
        self._normless.discard(optimizer)
        if all(gradient.is_cpu for gradient in dense):
            norm = global_norm(dense)
            if clip_norm is not None and self._clips.are_of_all(read_value(clip_norm), norm):
                norm = read_value(clip_norm)
            self._add_norm(opened, norm)
            self._count_bad(step, dense, norm)
        elif answers_late(dense[0]):
            opened.device_norms += (device_norm(dense) if clip_norm is None else clip_norm,)

    def finish(self, step: OpenStep, record: StepRecord) -> None:
        """Fill the record in, now or when the device has answered."""
        # A step that was held up, by a checkpoint or an evaluation, must not make the next ones pay for long readings.
        length_ns = int(record.total_us * 1000)
        self._step_ns = min(length_ns, 2 * self._step_ns) if self._step_ns else length_ns
        opened: StepNumbers | None = step.numbers
        if opened is None:
            return
        if opened.num_gradients:
            record.num_gradients, record.gradient_bytes = opened.num_gradients, opened.gradient_bytes
            record.num_nan, record.num_inf = opened.num_nan, opened.num_inf
        if opened.learning_rate is not None:
            record.learning_rate = opened.learning_rate
        if opened.loss is not None:
            record.loss = spelled(opened.loss + (step.loss or 0.0))
        if step.gradient_norm is not None:
            opened.add_norm(step.gradient_norm)
        fill_norm(record, opened, opened.gradient_norm)
        is_on_device = step.scale is not None and answers_late(step.scale)
        if step.scale is not None and step.scale.is_cpu:
            record.scaler_scale = float(read_value(step.scale))
        if opened.device_losses or opened.device_norms or is_on_device:
            step.owe(late_numbers(record, opened, step.scale if is_on_device else None, self._note_late))

    def _count_bad(self, step: OpenStep, gradients: list[torch.Tensor], norm: float) -> None:
        opened = _numbers_of(step)
        opened.num_nan, opened.num_inf = opened.num_nan or 0, opened.num_inf or 0
        if math.isfinite(norm):
            return
        self._num_bad_reads[self._num_held_back > 0] += 1
        with torch.no_grad():
            opened.num_nan += sum(int(read_value(torch.isnan(gradient).sum())) for gradient in gradients)
            opened.num_inf += sum(int(read_value(torch.isinf(gradient).sum())) for gradient in gradients)
        if not (self._has_walked or 0 < self._num_held_back < MAX_HELD_BACK):
            self._has_walked = True
            known = self._watch.loss if self._watch.number == step.number and self._watch.loss else self._loss
            loss = None if known is None else known()
            self._note_bad(step, "gradient", norm, [] if loss is None else find_steep(loss, step.sequence or 0))

    def _note_bad(self, step: OpenStep, what: str, value: float, suspects: list[SuspectOperation]) -> None:
        self._note(step.number, what, value, step.backward_site or self._session.sprint.site, suspects)

    def _note_late(self, record: StepRecord, what: str, value: float) -> None:
        """The device has told; by now backward has freed the graph that would show its birth."""
        if not self._has_walked:
            self._has_walked = True
            self._note(record.step, what, value, record.backward_site, [])

    def _note(self, number: int, what: str, value: float, site: str | None, suspects: list[SuspectOperation]) -> None:
        self._session.ask_for_window("non-finite")
        self._session.note(
            NonFiniteSeen(at_ns=time.time_ns(), step=number, what=what, value=str(value), site=site, suspects=suspects)
        )


def start(session: Session) -> None:
    """Listen to backward passes, gradient clipping and optimizer steps."""
    numbers, loop = Numbers(session), session.loop
    session.subscribe(loop.backward_began, "numbers", numbers.note_loss)
    session.subscribe(loop.optimizer_began, "numbers", numbers.note_gradients)
    session.subscribe(loop.step_ended, "numbers", numbers.finish)
    session.subscribe(loop.clipped, "numbers", numbers.note_clip)
    session.undo_at_end(watch_swaps(session.shell.guarded("numbers", numbers.canaries.forget)))


def _numbers_of(step: OpenStep) -> StepNumbers:
    if step.numbers is None:
        step.numbers = StepNumbers()
    opened: StepNumbers = step.numbers
    return opened
