"""Watches GradScaler: where it was made, the loss before it was scaled, the scale, the skipped steps."""

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from efprof.artifacts.events import ScalerBuilt
from efprof.recorder.hooks.loop_hooks import updating
from efprof.recorder.hooks.patching import Undo, call_after, replace
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.steps import Listeners
from efprof.recorder.loop.updates import optimizer_skipped
from efprof.recorder.numbers.late_values import on_device
from efprof.recorder.numbers.step_numbers import is_read_late, living
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Shell


def start(session: Session) -> None:
    """Wrap the scalers' methods when the first enabled one is made: one that is not enabled costs nothing."""
    kind = torch.amp.GradScaler

    @functools.cache
    def watch() -> None:
        session.undo_at_end(*_watch_scalers(session.loop, session.shell))

    def note_found(scaler: Any, site: str | None = None) -> None:
        scale, interval = float(scaler._init_scale), int(scaler._growth_interval)
        session.note(ScalerBuilt(step=session.loop.number, site=site, init_scale=scale, growth_interval=interval))

    def note_built(scaler: Any) -> None:
        note_found(scaler, session.sites.of_caller())

    watched = session.shell.guarded("loss_scaling", watch)
    built, found = (session.shell.guarded("scalers", note) for note in (note_built, note_found))
    for scaler in filter(_is_enabled, list(living(kind))):
        watched()  # made before the recording
        found(scaler)
    for name, note in {"__init__": built, "__setstate__": found}.items():
        session.undo_at_end(call_after(kind, name, functools.partial(_tell, watched, note)))


def _tell(watch: Callable[[], None], note: Callable[[Any], None], scaler: Any, *_: object) -> None:
    if _is_enabled(scaler):
        watch()
        note(scaler)


def _is_enabled(scaler: Any) -> bool:
    return getattr(scaler, "_enabled", True)


def _watch_scalers(loop: Loop, shell: Shell) -> list[Undo]:
    """The scalers of torch.amp, torch.cuda.amp and torch.cpu.amp share these methods."""
    kind, light, guarded = torch.amp.GradScaler, loop.light, shell.guarded
    thread, steps, losses = loop.thread, loop.steps, loop.scaled_losses
    note_scaled = guarded("loss_scaling", losses.note)
    note_scale = guarded("loss_scaling", functools.partial(_note_scale, loop))
    note_skipped = guarded("loss_scaling", functools.partial(optimizer_skipped, loop))
    note_step = guarded("loss_scaling", functools.partial(_note_step, loop))

    def in_stage(original: Callable[..., Any]) -> Callable[..., Any]:
        """As the rest of the stage `optimizer`."""
        watched = updating(loop, shell.guard("loop"), original)

        @functools.wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            return (watched if _is_enabled(self) else original)(self, *args, **kwargs)

        return call

    scale, unscale, step, update = kind.scale, in_stage(kind.unscale_), in_stage(kind.step), in_stage(kind.update)
    stepping = list[object]()
    """The scalers whose step runs, which may unscale by itself."""

    @functools.wraps(scale)
    def watched_scale(self: Any, outputs: Any) -> Any:
        scaled = scale(self, outputs)
        # One that is not enabled gives back what it got.
        is_training_thread = get_ident() == thread.ident or thread.is_training_thread
        if scaled is not outputs and is_training_thread and not (steps.clock is not None and thread.is_capturing):
            note_scaled(outputs, scaled, getattr(self, "_scale", None))
        return scaled

    @functools.wraps(unscale)
    def watched_unscale(self: Any, optimizer: torch.optim.Optimizer) -> None:
        if not light.is_on and not stepping and _is_enabled(self):
            note_step(self, optimizer, loop.unscaling_began)
        unscale(self, optimizer)

    @functools.wraps(step)
    def watched_step(self: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        before = loop.num_updates
        if not light.is_on and _is_enabled(self):
            note_step(self, optimizer, loop.scaler_step_began)
        stepping.append(self)
        try:
            result = step(self, optimizer, *args, **kwargs)
        finally:
            stepping.pop()
        if _is_enabled(self) and loop.num_updates == before and isinstance(optimizer, torch.optim.Optimizer):
            note_skipped(optimizer)  # the scaler has held it back
        return result

    @functools.wraps(update)
    def watched_update(self: Any, *args: Any, **kwargs: Any) -> None:
        update(self, *args, **kwargs)
        if getattr(self, "_scale", None) is not None:
            if light.is_on and get_ident() == thread.ident:
                losses.is_used_up = True
            else:
                note_scale(self)

    new = {"scale": watched_scale, "unscale_": watched_unscale, "step": watched_step, "update": watched_update}
    return [replace(kind, name, function) for name, function in new.items()]


def _note_step(loop: Loop, scaler: Any, optimizer: object, listeners: Listeners) -> None:
    is_recorded = loop.thread.is_training_thread and not (loop.steps.clock is not None and loop.thread.is_capturing)
    scale = getattr(scaler, "_scale", None)
    if is_recorded and isinstance(optimizer, torch.optim.Optimizer) and isinstance(scale, torch.Tensor):
        state = scaler._per_optimizer_states.get(id(optimizer))
        is_scaled = state is None or state["stage"] is OptState.READY
        listeners(optimizer, scale if is_scaled else None)


def _note_scale(loop: Loop, scaler: Any) -> None:
    """Keep the scale as the tensor it is: reading it would wait for the device."""
    if not loop.thread.is_training_thread or (loop.steps.clock is not None and loop.thread.is_capturing):
        return
    loop.scaled_losses.is_used_up = True
    step, scale = loop.steps.open, scaler._scale
    if step is not None and isinstance(scale, torch.Tensor):
        kept = scale.detach().clone()
        step.numbers.scale = on_device(kept) if is_read_late(kept) else kept
