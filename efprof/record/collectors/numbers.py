"""Reads each step's loss and gradients: on the CPU at once, on a device a step late and without waiting."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch

from efprof.artifacts.events import NonFiniteSeen
from efprof.artifacts.steps import StepRecord
from efprof.record.graph import find_suspects
from efprof.record.hooks import replace
from efprof.record.loop import OpenStep
from efprof.record.session import Session

_read = torch.Tensor.item  # before the scalar_reads collector wraps it: our own reads are not the user's

NAMES = ("loss", "gradient_norm")


class Numbers:
    """The numbers of the open step, and what the device owes for the last ones."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._pending: dict[str, torch.Tensor] = {}
        self._clip_norm: torch.Tensor | None = None
        self._gradients: dict[str, int] = {}
        self._bad: dict[str, int] = {}
        self._has_walked = False

    def begin(self, _: OpenStep) -> None:
        """Forget the step before."""
        self._pending, self._clip_norm, self._gradients, self._bad = {}, None, {}, {}

    def note_loss(self, step: OpenStep, tensors: Any) -> None:
        """Add what backward is called on; where it is bad, look for its birth before backward frees the graph."""
        loss = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            return
        value = loss.detach().reshape(()).to(torch.float32)
        total = self._pending.get("loss")
        self._pending["loss"] = value if total is None else total + value
        if loss.device.type == "cpu" and not self._has_walked and not math.isfinite(_read(value)):
            self._has_walked = True
            self._note_bad(step, "loss", _read(value), find_suspects(loss, step.sequence or 0))

    def note_clip(self, norm: torch.Tensor) -> None:
        """`clip_grad_norm_` computed the norm already: take it, from before the clipping."""
        self._clip_norm = norm.detach() if isinstance(norm, torch.Tensor) else None

    def note_gradients(self, step: OpenStep, optimizer: torch.optim.Optimizer) -> None:
        """Count the gradients an optimizer is about to apply, and take their norm."""
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        dense = [gradient for gradient in gradients if gradient.layout == torch.strided]
        self._gradients = {
            "num_gradients": self._gradients.get("num_gradients", 0) + len(gradients),
            "gradient_bytes": self._gradients.get("gradient_bytes", 0)
            + sum(g.numel() * g.element_size() for g in dense),
        }
        norm = self._clip_norm if self._clip_norm is not None else _norm(dense)
        if norm is None:
            return
        self._pending["gradient_norm"] = norm
        if norm.device.type == "cpu":
            self._count_bad(step, dense, _read(norm))

    def finish(self, step: OpenStep, record: StepRecord) -> None:
        """Fill the record in, now or when the device has answered."""
        for name, count in {**self._gradients, **self._bad}.items():
            setattr(record, name, count)
        pending = self._pending
        if all(value.device.type == "cpu" for value in pending.values()):
            for name, value in pending.items():
                setattr(record, name, _spelled(_read(value)))
        else:
            step.late = _later(record, pending)

    def _count_bad(self, step: OpenStep, gradients: list[torch.Tensor], norm: float) -> None:
        self._bad = {"num_nan": 0, "num_inf": 0}
        if math.isfinite(norm):
            return
        with torch.no_grad():
            self._bad["num_nan"] = sum(int(_read(torch.isnan(gradient).sum())) for gradient in gradients)
            self._bad["num_inf"] = sum(int(_read(torch.isinf(gradient).sum())) for gradient in gradients)
        if not self._has_walked:
            self._has_walked = True
            self._note_bad(step, "gradient", norm, [])

    def _note_bad(self, step: OpenStep, what: str, value: float, suspects: list[Any]) -> None:
        self._session.note(
            NonFiniteSeen(
                at_ns=time.time_ns(),
                step=step.number,
                what=what,
                value=str(_spelled(value)),
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

    def clip_grad_norm_(*args: Any, **kwargs: Any) -> torch.Tensor:
        norm = original(*args, **kwargs)
        if loop.is_ours:
            note_clip(norm)
        return norm

    clip_grad_norm_.__wrapped__ = original  # type: ignore[attr-defined]
    session.undo_at_end(
        [
            replace(torch.nn.utils, "clip_grad_norm_", clip_grad_norm_),
            replace(torch.nn.utils.clip_grad, "clip_grad_norm_", clip_grad_norm_),
        ]
    )


def _norm(gradients: list[torch.Tensor]) -> torch.Tensor | None:
    """The global L2 norm; in float32, since the norm of half-precision gradients overflows half precision."""
    if not gradients or any(gradient.device != gradients[0].device for gradient in gradients):
        return None
    with torch.no_grad():
        norms = torch._foreach_norm(gradients, 2, dtype=torch.float32)
        norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return norm


def _later(record: StepRecord, pending: dict[str, torch.Tensor]) -> Callable[[], bool]:
    """Start copying to pinned memory; the result reads it once the copies' event has passed."""
    copies = {name: torch.empty((), dtype=torch.float32, pin_memory=True) for name in pending}
    for name, value in pending.items():
        copies[name].copy_(value, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()

    def arrived() -> bool:
        if not event.query():  # type: ignore[no-untyped-call]
            return False
        for name, copy in copies.items():
            setattr(record, name, _spelled(_read(copy)))
        return True

    return arrived


def _spelled(value: float) -> float | str:
    """JSON has no NaN and no Inf: they are spelled out."""
    return value if math.isfinite(value) else str(value)
