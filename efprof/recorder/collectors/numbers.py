"""Reads each step's loss and gradients: on the CPU at once, on a device a step late and without waiting."""

import functools
import math
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from efprof.artifacts.events import NonFiniteSeen, SuspectOperation
from efprof.artifacts.steps import StepRecord
from efprof.recorder.graph import find_steep, find_suspects
from efprof.recorder.hooks import replace
from efprof.recorder.open_step import OpenStep
from efprof.recorder.session import Session

_read = torch.Tensor.item  # before the scalar_reads collector wraps it: our own reads are not the user's


@dataclass(slots=True)
class _Open:
    """The numbers of the open step so far, and what the device owes for them."""

    loss: float | None = None
    gradient_norm: float | None = None
    num_gradients: int = 0
    gradient_bytes: int = 0
    num_nan: int | None = None
    num_inf: int | None = None
    learning_rate: float | None = None
    is_guarded: bool = False
    device_losses: list[torch.Tensor] = field(default_factory=list)
    device_norms: list[torch.Tensor] = field(default_factory=list)


class Numbers:
    """Adds up the open step's numbers, and fills them into its record."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._has_walked = False
        self._loss: weakref.ref[torch.Tensor] | None = None
        self._open = _Open()
        self._clip_norm: torch.Tensor | None = None

    def begin(self, _: OpenStep) -> None:
        """Forget the step before."""
        self._open = _Open()
        self._clip_norm = None

    def note_loss(self, step: OpenStep, tensors: Any) -> None:
        """Add what backward is called on; where it is bad, look for its birth before backward frees the graph."""
        loss = tensors[0] if isinstance(tensors, list | tuple) and tensors else tensors
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            return
        shown = _unscaled(self._session.loop.unscaled_loss, loss)
        if shown.device.type != "cpu":
            self._open.device_losses.append(shown.detach().reshape(()).to(torch.float32))
            return
        self._loss = weakref.ref(loss)
        value = float(_read(shown))
        self._open.loss = value if self._open.loss is None else self._open.loss + value
        if not self._has_walked and not math.isfinite(value):
            self._has_walked = True
            self._note_bad(step, "loss", value, find_suspects(loss, step.sequence or 0))

    def note_clip(self, norm: torch.Tensor) -> None:
        """`clip_grad_norm_` computed the norm already: take it, from before the clipping."""
        self._clip_norm = norm.detach() if type(norm) is torch.Tensor else None

    def note_gradients(self, step: OpenStep, optimizer: torch.optim.Optimizer) -> None:
        """Count the gradients an optimizer is about to apply, and take their norm."""
        gradients = [
            parameter.grad
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        self._open.num_gradients += len(gradients)
        # An optimizer that was given this flag skips a bad step by itself, on the device.
        self._open.is_guarded |= getattr(optimizer, "found_inf", None) is not None
        if self._open.learning_rate is None:
            self._open.learning_rate = _learning_rate(optimizer)
        dense = [gradient for gradient in gradients if _is_plain(gradient)]
        self._open.gradient_bytes += sum(gradient.nbytes for gradient in dense)
        clip_norm, self._clip_norm = self._clip_norm, None
        if not dense:
            return
        if all(gradient.is_cpu for gradient in dense):
            norm = _norm(dense) if clip_norm is None else _read(clip_norm)
            self._open.gradient_norm = (
                norm if self._open.gradient_norm is None else _root_of_squares((self._open.gradient_norm, norm))
            )
            self._count_bad(step, dense, norm)
        else:
            self._open.device_norms.append(_device_norm(dense) if clip_norm is None else clip_norm)

    def finish(self, step: OpenStep, record: StepRecord) -> None:
        """Fill the record in, now or when the device has answered."""
        if self._open.num_gradients:
            record.num_gradients, record.gradient_bytes = self._open.num_gradients, self._open.gradient_bytes
            record.num_nan, record.num_inf = self._open.num_nan, self._open.num_inf
        record.learning_rate = self._open.learning_rate
        record.loss = _spelled(self._open.loss)
        _fill_norm(record, self._open.gradient_norm, self._open.is_guarded)
        is_on_device = step.scale is not None and step.scale.device.type != "cpu"
        if step.scale is not None and not is_on_device:
            record.scaler_scale = float(_read(step.scale))
        if self._open.device_losses or self._open.device_norms or is_on_device:
            step.late = _later(record, self._open, step.scale if is_on_device else None)

    def _count_bad(self, step: OpenStep, gradients: list[torch.Tensor], norm: float) -> None:
        self._open.num_nan, self._open.num_inf = self._open.num_nan or 0, self._open.num_inf or 0
        if math.isfinite(norm):
            return
        with torch.no_grad():
            self._open.num_nan += sum(int(_read(torch.isnan(gradient).sum())) for gradient in gradients)
            self._open.num_inf += sum(int(_read(torch.isinf(gradient).sum())) for gradient in gradients)
        if not self._has_walked:
            self._has_walked = True
            loss = self._loss() if self._loss is not None else None
            self._note_bad(step, "gradient", norm, [] if loss is None else find_steep(loss, step.sequence or 0))

    def _note_bad(self, step: OpenStep, what: str, value: float, suspects: list[SuspectOperation]) -> None:
        self._session.note(
            NonFiniteSeen(
                at_ns=time.time_ns(),
                step=step.number,
                what=what,
                value=str(value),
                site=step.backward_site,
                suspects=suspects,
            )
        )


def start(session: Session) -> None:
    """Listen to backward passes, optimizer steps and gradient clipping."""
    numbers, loop = Numbers(session), session.loop
    session.subscribe(loop.step_began, "numbers", numbers.begin)
    session.subscribe(loop.backward_began, "numbers", numbers.note_loss)
    session.subscribe(loop.optimizer_began, "numbers", numbers.note_gradients)
    session.subscribe(loop.step_ended, "numbers", numbers.finish)
    note_clip = session.shell.guarded("numbers", numbers.note_clip)
    original = torch.nn.utils.clip_grad_norm_

    @functools.wraps(original)
    def clip_grad_norm_(*args: Any, **kwargs: Any) -> torch.Tensor:
        norm = original(*args, **kwargs)
        if loop.is_ours:
            note_clip(norm)
        return norm

    session.undo_at_end(
        [
            replace(torch.nn.utils, "clip_grad_norm_", clip_grad_norm_),
            replace(torch.nn.utils.clip_grad, "clip_grad_norm_", clip_grad_norm_),
        ]
    )


def _is_plain(gradient: torch.Tensor) -> bool:
    """A sharded gradient (DTensor) would start a collective, a sparse one has no such norm."""
    return type(gradient) is torch.Tensor and gradient.layout == torch.strided and gradient.is_floating_point()


def _norm(gradients: list[torch.Tensor]) -> float:
    """The global L2 norm of gradients on the CPU."""
    with torch.no_grad():
        return _root_of_squares(_read(norm) for norm in _norms(gradients))


def _device_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """The same as a scalar on the device, so that nobody waits for it."""
    with torch.no_grad():
        device = gradients[0].device
        norms = [norm.to(device, torch.float32) for norm in _norms(gradients) if norm.device == device]
        norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return norm


def _norms(gradients: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Each gradient's own; in float32 where one is of half precision, whose norm would overflow it."""
    dtypes = {gradient.dtype for gradient in gradients}
    if torch.float64 in dtypes:
        return [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in gradients]
    return torch._foreach_norm(gradients, 2, dtype=None if dtypes == {torch.float32} else torch.float32)


def _root_of_squares(values: Iterable[float]) -> float:
    """NaN where one of them is NaN, which `math.hypot` would hide behind an Inf."""
    return math.sqrt(sum(value * value for value in values))


def _unscaled(scaled: tuple[int, torch.Tensor] | None, loss: torch.Tensor) -> torch.Tensor:
    """The loss as the program made it, where a gradient scaler has multiplied it since."""
    return scaled[1] if scaled is not None and scaled[0] == id(loss) else loss


def _learning_rate(optimizer: torch.optim.Optimizer) -> float | None:
    """The first group's; a tensor is left alone, since it may lie on a device."""
    rate = optimizer.param_groups[0].get("lr")
    return float(rate) if isinstance(rate, int | float) else None


def _fill_norm(record: StepRecord, norm: float | None, is_guarded: bool) -> None:
    record.gradient_norm = _spelled(norm)
    record.is_skipped |= is_guarded and norm is not None and not math.isfinite(norm)


def _later(record: StepRecord, owed: _Open, scale: torch.Tensor | None) -> Callable[[], bool]:
    """Start copying to pinned memory; the result fills the record once the copies' event has passed."""
    num_losses, num_norms = len(owed.device_losses), len(owed.device_norms)
    copies = [
        torch.empty((), dtype=torch.float32, device="cpu", pin_memory=True).copy_(value, non_blocking=True)
        for value in (*owed.device_losses, *owed.device_norms, *([] if scale is None else [scale]))
    ]
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()

    def arrived() -> bool:
        if not event.query():  # type: ignore[no-untyped-call]
            return False
        values = [float(_read(copy)) for copy in copies]
        if num_losses:
            record.loss = _spelled(sum(values[:num_losses]))
        if num_norms:
            _fill_norm(record, _root_of_squares(values[num_losses : num_losses + num_norms]), owed.is_guarded)
        if scale is not None:
            record.scaler_scale = values[-1]
        return True

    return arrived


def _spelled(value: float | None) -> float | str | None:
    """JSON has no NaN and no Inf: they are spelled out."""
    return value if value is None or math.isfinite(value) else str(value)
