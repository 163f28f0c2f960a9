"""Watches GradScaler: the loss before it was scaled, the scale itself, and the steps that were held back."""

import functools
from typing import Any

import torch

from efprof.recorder.hooks import replace
from efprof.recorder.session import Session


def start(session: Session) -> None:
    """Wrap `scale`, `step` and `update`; the scalers of torch.amp, torch.cuda.amp and torch.cpu.amp share them."""
    kind, watch = torch.amp.GradScaler, _ScalerWatch(session)
    note_scaled = session.shell.guarded("loss_scaling", watch.note_scaled)
    note_step = session.shell.guarded("loss_scaling", watch.note_step)
    note_scale = session.shell.guarded("loss_scaling", watch.note_scale)
    scale, step, update = kind.scale, kind.step, kind.update

    @functools.wraps(scale)
    def watched_scale(self: Any, outputs: Any) -> Any:
        scaled = scale(self, outputs)
        if scaled is not outputs:  # one that is not enabled gives back what it got
            note_scaled(outputs, scaled)
        return scaled

    @functools.wraps(step)
    def watched_step(self: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        result = step(self, optimizer, *args, **kwargs)
        if getattr(self, "_enabled", True):
            note_step(optimizer)
        return result

    @functools.wraps(update)
    def watched_update(self: Any, *args: Any, **kwargs: Any) -> None:
        update(self, *args, **kwargs)
        if getattr(self, "_scale", None) is not None:
            note_scale(self)

    new = {"scale": watched_scale, "step": watched_step, "update": watched_update}
    session.undo_at_end([replace(kind, name, function) for name, function in new.items()])


class _ScalerWatch:
    """Leaves what it sees in the loop and its open step, where the numbers of the step are read from."""

    def __init__(self, session: Session) -> None:
        self._loop = session.loop

    def note_scaled(self, outputs: Any, scaled: Any) -> None:
        """Backward will be called on `scaled`; the loss to show is `outputs`."""
        if self._loop.is_ours and isinstance(outputs, torch.Tensor):
            self._loop.unscaled_loss = (id(scaled), outputs.detach())
            self._loop.watch.takes_numbers = False  # the stopwatch would read the scaled one

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """After `scaler.step`: where the optimizer did not step, the scaler held it back."""
        self._loop.optimizer_skipped(optimizer)

    def note_scale(self, scaler: Any) -> None:
        """Keep the scale as the tensor it is: reading it would wait for the device."""
        step, scale = self._loop.step, scaler._scale
        if step is not None and self._loop.is_ours and isinstance(scale, torch.Tensor):
            step.scale = scale.detach().clone()
