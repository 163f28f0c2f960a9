"""The numbers of an open step, and how those that lie on a device come without anybody waiting for it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from efprof.artifacts.steps import StepRecord, spelled
from efprof.recorder.gradients import read_value, root_of_squares


@dataclass(slots=True)
class StepNumbers:
    """The numbers of an open step so far, and what the device owes for them."""

    loss: float | None = None
    gradient_norm: float | None = None
    num_gradients: int = 0
    gradient_bytes: int = 0
    num_nan: int | None = None
    num_inf: int | None = None
    learning_rate: float | None = None
    is_guarded: bool = False
    device_losses: tuple[torch.Tensor, ...] = ()
    device_norms: tuple[torch.Tensor, ...] = ()

    def add_norm(self, norm: float) -> None:
        """Of one optimizer's gradients."""
        self.gradient_norm = norm if self.gradient_norm is None else root_of_squares((self.gradient_norm, norm))


def learning_rate_of(optimizer: torch.optim.Optimizer) -> float | None:
    """The first group's; a tensor on a device is left alone."""
    rate = optimizer.param_groups[0].get("lr")
    if type(rate) is torch.Tensor and rate.is_cpu and rate.numel() == 1:
        return float(read_value(rate))
    return float(rate) if isinstance(rate, int | float) else None


def late_numbers(
    record: StepRecord,
    owed: StepNumbers,
    scale: torch.Tensor | None,
    note_bad: Callable[[StepRecord, str, float], None],
) -> Callable[[], bool]:
    """Start copying to the host; the result fills the record once the copies' event has passed.

    `note_bad` is told of what is not finite, but for gradients that a scaler holds back or an optimizer skips itself.
    """
    num_losses, num_norms = len(owed.device_losses), len(owed.device_norms)
    copies, event = copied([*owed.device_losses, *owed.device_norms, *([] if scale is None else [scale])])

    def arrived() -> bool:
        if not event.query():
            return False
        values = [float(read_value(copy)) for copy in copies]
        loss, norm = sum(values[:num_losses]), root_of_squares(values[num_losses : num_losses + num_norms])
        if num_losses:
            record.loss = spelled(loss)
        if num_norms:
            fill_norm(record, owed, norm)
        if scale is not None:
            record.scaler_scale = values[-1]
        if not math.isfinite(loss):
            note_bad(record, "loss", loss)
        elif not (math.isfinite(norm) or owed.is_guarded or record.is_skipped):
            note_bad(record, "gradient", norm)
        return True

    return arrived


def copied(values: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Any]:
    """Copies in pinned memory that are whole once the event has passed."""
    copies = [
        torch.empty(value.shape, dtype=torch.float32, device="cpu", pin_memory=True).copy_(value, non_blocking=True)
        for value in values
    ]
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return copies, event


def fill_norm(record: StepRecord, numbers: StepNumbers, norm: float | None) -> None:
    """An optimizer that guards itself skips a step whose norm is not finite."""
    is_bad = norm is not None and not math.isfinite(norm)
    record.gradient_norm = spelled(norm)
    record.is_skipped |= numbers.is_guarded and is_bad
