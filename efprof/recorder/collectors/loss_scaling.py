"""Watches GradScaler: the loss before it was scaled, the scale itself, and the steps that were held back."""

import functools
import gc
from collections.abc import Callable
from typing import Any

import torch

from efprof.recorder.hooks import Undo, replace, updating
from efprof.recorder.loop import Loop
from efprof.recorder.session import Session


def start(session: Session) -> None:
    """Wrap the scalers' methods when the first one is made that is enabled.

    Many a program calls one that is not, at every step: that costs nothing.
    """
    kind = torch.amp.GradScaler

    @functools.cache
    def watch() -> None:
        session.undo_at_end(_watch_scalers(session))

    made_one = session.shell.guarded("loss_scaling", watch)
    if any(issubclass(type(one), kind) and _is_enabled(one) for one in gc.get_objects()):  # made before the recording
        watch()
    makers = ("__init__", "__setstate__")
    session.undo_at_end([replace(kind, name, _then(getattr(kind, name), made_one)) for name in makers])


def _then(original: Callable[..., None], made_one: Callable[[], None]) -> Callable[..., None]:
    @functools.wraps(original)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if _is_enabled(self):
            made_one()

    return make


def _is_enabled(scaler: Any) -> bool:
    return getattr(scaler, "_enabled", True)


def _watch_scalers(session: Session) -> list[Undo]:
    """The scalers of torch.amp, torch.cuda.amp and torch.cpu.amp share these methods."""
    kind = torch.amp.GradScaler
    note_scaled, note_step, note_scale = (
        session.shell.guarded("loss_scaling", functools.partial(note, session.loop))
        for note in (_note_scaled, _note_step, _note_scale)
    )
    scale, unscale, step, update = kind.scale, kind.unscale_, kind.step, kind.update
    in_update = functools.partial(updating, session.loop, session.shell)
    stage_unscale, stage_step, stage_update = in_update(unscale), in_update(step), in_update(update)

    @functools.wraps(scale)
    def watched_scale(self: Any, outputs: Any) -> Any:
        scaled = scale(self, outputs)
        if scaled is not outputs:  # one that is not enabled gives back what it got
            note_scaled(self, outputs, scaled)
        return scaled

    @functools.wraps(unscale)
    def watched_unscale(self: Any, *args: Any, **kwargs: Any) -> None:
        (stage_unscale if _is_enabled(self) else unscale)(self, *args, **kwargs)

    @functools.wraps(step)
    def watched_step(self: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if not _is_enabled(self):
            return step(self, optimizer, *args, **kwargs)
        before = session.loop.num_updates
        result = stage_step(self, optimizer, *args, **kwargs)
        note_step(optimizer, before)
        return result

    @functools.wraps(update)
    def watched_update(self: Any, *args: Any, **kwargs: Any) -> None:
        (stage_update if _is_enabled(self) else update)(self, *args, **kwargs)
        if getattr(self, "_scale", None) is not None:
            note_scale(self)

    new = {"scale": watched_scale, "unscale_": watched_unscale, "step": watched_step, "update": watched_update}
    return [replace(kind, name, function) for name, function in new.items()]


def _note_scaled(loop: Loop, scaler: Any, outputs: Any, scaled: Any) -> None:
    """Backward will be called on `scaled`; the loss to show is `outputs`."""
    if loop.is_ours:
        loop.scaled_losses.note(outputs, scaled, getattr(scaler, "_scale", None))


def _note_step(loop: Loop, optimizer: torch.optim.Optimizer, num_before: int) -> None:
    """After `scaler.step`: where no optimizer stepped, the scaler held it back.

    Any, since the one that the scaler knows may be the program's own class around another one.
    """
    if loop.num_updates == num_before:
        loop.optimizer_skipped(optimizer)


def _note_scale(loop: Loop, scaler: Any) -> None:
    """Keep the scale as the tensor it is: reading it would wait for the device."""
    if loop.is_ours:
        loop.scaled_losses.used_up()
    step, scale = loop.step, scaler._scale
    if step is not None and loop.is_ours and isinstance(scale, torch.Tensor):
        step.scale = scale.detach().clone()
