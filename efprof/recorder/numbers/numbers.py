"""Reads the loss of every step, and the gradients of those recorded in full: on the CPU at once, on a device late and
without waiting.
"""

import contextlib
import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from efprof.artifacts.events import NonFiniteSeen, NumbersUnread, SuspectOperation
from efprof.artifacts.steps import StepRecord, spelled
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.numbers.autograd_graph import find_bad_parameter, find_suspects
from efprof.recorder.numbers.late_values import LateValues, OnDevice, on_device
from efprof.recorder.numbers.step_numbers import (
    ScaledLosses,
    StepNumbers,
    device_norms,
    fill_norm,
    first_in_parts,
    global_norm,
    is_a_mode_on,
    is_plain,
    is_read_late,
    is_set,
    learning_rate_of,
    outside_modes,
    parameters_of,
    read_value,
    root_of_squares,
    weighted_losses,
)
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Guard, Note
from efprof.recorder.session.sites import Sites

MAX_BAD_READS = 8
"""Steps whose bad numbers are counted as they come; a training that goes on with them has them in every step, and
counting takes two operators for each parameter."""

MAX_SKIPPED = 16
"""Updates in a row that a gradient scaler may skip to find its scale: from its usual first one, 2**16, it has come
down to 1 by then, and what overflows there is the training's own."""


@dataclass(eq=False)
class Numbers:
    _scaled: ScaledLosses
    _sites: Sites
    _late: LateValues
    _tell: Callable[[NonFiniteSeen], None]
    _guard: Guard
    _note: Note
    _unread: set[str] = field(default_factory=set)
    _has_searched: bool = False
    _clipped: list[tuple[torch.Tensor, set[int]]] = field(default_factory=list)
    """Norms from before clipping, each with the `id`s of its gradients, since the last backward pass began."""
    _skipped: Counter[int] = field(default_factory=Counter)
    """How often in a row, by the optimizer's first parameter: a class around one has the same."""
    _num_skipped: int = 0
    """That of the optimizer whose gradients are being noted."""
    _num_bad_reads: Counter[bool] = field(default_factory=Counter)
    """By whether the optimizer was skipped: a scaler that finds its scale uses up nothing of the others."""

    def backward_began(self, step: OpenStep, tensors: Any, gradients: Any, *_: object) -> None:
        """Add what backward is called on; where it is bad, look for its birth before backward frees the graph."""
        self._clipped.clear()  # what is clipped next may be the same gradients, to which others were added
        opened = step.numbers
        in_parts = first_in_parts(tensors)
        if in_parts is not None:
            self._note_unread(step.number, "losses", in_parts)
        for value in self.losses(step.number, tensors, gradients, step.sequence, step.backward_site):
            if isinstance(value, OnDevice):
                opened.device_losses += (value,)
            else:
                opened.loss = value if opened.loss is None else opened.loss + value

    def losses(
        self, number: int, tensors: Any, gradients: Any, sequence: int | None = None, site: str | None = None
    ) -> list[float | OnDevice]:
        """Each of them, times what it is given as its gradient; of those on a device a copy that lies there."""
        losses, values = weighted_losses(tensors, gradients), list[float | OnDevice]()
        if is_a_mode_on():  # what other kinds of tensors do, a mode may be needed for
            losses = [(loss, gradient) for loss, gradient in losses if type(loss) is torch.Tensor]
        with _without_modes():
            for loss, gradient in losses:
                unscaled = self._scaled.unscaled(loss)
                if unscaled.is_cpu:
                    # A gradient of -1 makes a score of it.
                    factor = 1.0 if gradient is None or not gradient.is_cpu else float(read_value(gradient))
                    values.append(value := factor * float(read_value(unscaled)))
                    if not self._has_searched and not math.isfinite(value):
                        suspects = find_suspects(loss, sequence or 0)
                        site = site or self._sites.of_caller()
                        self.note_bad(number, value, site, "loss", suspects)
                elif is_read_late(unscaled):
                    # A copy: the program may average the loss over its ranks, in place, before it is read.
                    copied = unscaled.detach().reshape(()).to(torch.float32, copy=True)
                    values.append(on_device(copied if gradient is None else copied * gradient.detach().reshape(())))
        return values

    def clipped(self, norm: torch.Tensor, clipped: Any) -> None:
        if type(norm) is torch.Tensor:
            parameters = [clipped] if isinstance(clipped, torch.Tensor) else clipped
            self._clipped.append((norm, {id(one.grad) for one in parameters if one.grad is not None}))

    def scaler_step_began(self, optimizer: torch.optim.Optimizer, scale: torch.Tensor | None) -> None:
        """Norms from before clipping are of the gradients as they were scaled; a fused optimizer divides them later."""
        if scale is None or not self._clipped or getattr(optimizer, "_step_supports_amp_scaling", False):
            return
        ids = {id(one.grad) for one in parameters_of(optimizer) if one.grad is not None}
        with _without_modes():
            self._clipped = [
                (norm.detach() / scale.to(norm.device) if of == ids else norm, of)
                for norm, of in self._clipped
                if norm.device.type == scale.device.type  # nobody waits for the other
            ]

    def optimizer_began(self, step: OpenStep, optimizer: torch.optim.Optimizer) -> None:
        opened = step.numbers
        # An optimizer that was given this flag skips a bad step by itself, on the device.
        found_inf = getattr(optimizer, "found_inf", None)
        opened.is_guarded |= found_inf is not None
        with _without_modes():
            is_skipped = id(optimizer) in step.skipped or is_set(found_inf)
            self._num_skipped = self._count_skipped(optimizer, is_skipped)
            if not opened.learning_rate:  # of several optimizers one may be at 0 while another learns
                rate = learning_rate_of(optimizer)
                opened.learning_rate = opened.learning_rate if rate is None else rate
            self._read_gradients(step, optimizer)

    def _count_skipped(self, optimizer: torch.optim.Optimizer, is_skipped: bool) -> int:
        if not (is_skipped or self._skipped):  # as in nearly every step of nearly every program
            return 0
        key = next(map(id, parameters_of(optimizer)), 0)
        if not is_skipped:
            self._skipped.pop(key, None)
            return 0
        self._skipped[key] += 1
        return self._skipped[key]

    def _is_finding_scale(self) -> bool:
        """Whether this optimizer's updates are skipped as a scaler that finds its scale skips them."""
        return 0 < self._num_skipped < MAX_SKIPPED

    def _is_counted_enough(self) -> bool:
        if self._num_skipped == MAX_SKIPPED:
            return self._has_searched
        return self._num_bad_reads[self._num_skipped > 0] >= MAX_BAD_READS

    def _read_gradients(self, step: OpenStep, optimizer: torch.optim.Optimizer) -> None:
        opened = step.numbers
        gradients = [parameter.grad for parameter in parameters_of(optimizer) if parameter.grad is not None]
        opened.num_gradients += len(gradients)
        dense = [gradient for gradient in gradients if is_plain(gradient)]
        opened.gradient_bytes += sum(gradient.nbytes for gradient in dense)
        if not dense:
            for gradient in gradients[:1]:
                self._note_unread(step.number, "gradients", gradient)
            return
        ids = set(map(id, gradients))
        clip_norm = next((norm for norm, of in reversed(self._clipped) if of == ids), None)
        scale = getattr(optimizer, "grad_scale", None)  # by which a fused optimizer is still to divide them
        scale = scale.detach() if isinstance(scale, torch.Tensor) else None
        if all(gradient.is_cpu for gradient in dense) and (scale is None or scale.is_cpu):
            norm = global_norm(dense) if clip_norm is None else read_value(clip_norm)
            opened.add_norm(norm if scale is None else norm / read_value(scale))
            self._count_bad(step, dense, norm)
        elif all(is_read_late(gradient) or (gradient.is_cpu and scale is None) for gradient in dense):
            for one in device_norms(dense) if clip_norm is None else [clip_norm.detach().to(torch.float32)]:
                if one.is_cpu:
                    opened.add_norm(float(read_value(one)))
                else:
                    opened.device_norms += (on_device(one if scale is None else one / scale.to(one.device)),)
                    opened.may_be_bad += (self._is_finding_scale(),)

    def step_ended(self, step: OpenStep, record: StepRecord) -> None:
        self._clipped.clear()  # where `torch.autograd.grad` makes the gradients: others may have their `id`s by then
        opened, scale = step.numbers, step.numbers.scale
        if opened.num_gradients:
            record.num_gradients, record.gradient_bytes = opened.num_gradients, opened.gradient_bytes
            record.num_nan, record.num_inf = opened.num_nan, opened.num_inf
        if opened.loss is not None:
            record.loss = spelled(opened.loss)
        # Where a device is to tell of others, that of those on the CPU is not yet the whole.
        fill_norm(record, opened, None if opened.device_norms else opened.gradient_norm)
        if isinstance(scale, torch.Tensor) and scale.is_cpu:
            record.scaler_scale = float(read_value(scale))
        owed = [*opened.device_losses, *opened.device_norms, *([scale] if isinstance(scale, OnDevice) else [])]
        if owed:
            self._late.owe(step.late, owed, self._guard(functools.partial(self._fill, record, opened)))

    def _fill(self, record: StepRecord, opened: StepNumbers, values: list[float]) -> None:
        """With what the device tells: the losses, the norms, the scale.

        Nothing is told of gradients that may be bad or that an optimizer skips itself. By now backward has freed the
        graph that would show a birth.
        """
        num_losses, num_norms = len(opened.device_losses), len(opened.device_norms)
        norms = values[num_losses : num_losses + num_norms]
        loss = sum(values[:num_losses])
        norm = root_of_squares((opened.gradient_norm or 0.0, *norms))
        if num_losses:
            record.loss = spelled(loss)
        if num_norms:
            fill_norm(record, opened, norm)
        if isinstance(opened.scale, OnDevice):
            record.scaler_scale = values[-1]
        are_bad = (not (math.isfinite(one) or may) for one, may in zip(norms, opened.may_be_bad, strict=True))
        if not math.isfinite(loss):
            self.note_bad(record.step, loss, record.backward_site)
        elif not opened.is_guarded and any(are_bad):
            self.note_bad(record.step, norm, record.backward_site, "gradient")

    def _count_bad(self, step: OpenStep, gradients: list[torch.Tensor], norm: float) -> None:
        opened = step.numbers
        opened.num_nan, opened.num_inf = opened.num_nan or 0, opened.num_inf or 0
        if math.isfinite(norm) or self._is_counted_enough():
            return
        self._num_bad_reads[self._num_skipped > 0] += 1
        with torch.no_grad():
            opened.num_nan += sum(int(read_value(torch.isnan(gradient).sum())) for gradient in gradients)
            opened.num_inf += sum(int(read_value(torch.isinf(gradient).sum())) for gradient in gradients)
        if not (self._has_searched or self._is_finding_scale()):
            self.note_bad(step.number, norm, step.backward_site, "gradient", ())  # backward has freed the graph

    def _note_unread(self, number: int, what: str, value: torch.Tensor) -> None:
        if what not in self._unread:
            self._unread.add(what)
            self._note(NumbersUnread(step=number, what=what, type=type(value).__name__))

    def note_bad(
        self,
        number: int,
        value: float,
        site: str | None,
        what: str = "loss",
        suspects: Sequence[SuspectOperation] | None = None,
    ) -> None:
        """The first of them is told of; without suspects where it was too late to look for any."""
        if not self._has_searched:
            self._has_searched = True
            known, is_late = list(suspects or ()), suspects is None
            event = NonFiniteSeen(step=number, what=what, value=str(value), site=site, suspects=known, is_late=is_late)
            if not is_late and what == "loss":
                event.parameter = find_bad_parameter()
            self._tell(event)


def start(session: Session) -> None:
    loop, late = session.loop, session.late_values
    guard, light = session.shell.guard("numbers"), loop.light.steps

    def tell(event: NonFiniteSeen) -> None:
        session.window_requests.ask("non-finite")
        session.note(event)

    numbers = Numbers(loop.scaled_losses, session.sites, late, tell, guard, session.note)
    session.attach("numbers", numbers)
    light.read_losses = guard(numbers.losses)
    light.scaled = loop.scaled_losses
    light.send = late.send
    light.note_bad = guard(numbers.note_bad)


def _without_modes() -> contextlib.AbstractContextManager[None]:
    """The program's modes, where one is on, see nothing of what is read."""
    return outside_modes() if is_a_mode_on() else contextlib.nullcontext()
