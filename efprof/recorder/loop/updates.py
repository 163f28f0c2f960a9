"""The entry points of the stage `optimizer`: an optimizer steps or is held back, or its gradients are clipped."""

from threading import get_ident
from time import perf_counter_ns

import torch

from efprof.recorder.loop.loop import Loop


def optimizer_entered(loop: Loop, optimizer: torch.optim.Optimizer, has_closure: bool = False) -> None:
    if not loop.thread.updates_in_caller():
        return
    if loop.light.is_on or loop.thread.is_capturing:
        return
    entered = perf_counter_ns()
    if loop.clock.opener == "optimizer" and loop.steps.open is not None:
        loop.clock.close(loop.steps.open, entered)  # the last call raised, and the program went on
    if loop.clock.opener == "backward" and loop.steps.updated_within_backward(optimizer):
        loop.num_updates += 1
    loop.leave_forward(entered)
    if loop.clock.opener == "forward" and loop.trainer_modules.has_found(optimizer):
        loop.forget_forward(entered)
    if loop.clock.stage is not None and loop.clock.opener not in ("user", "update"):
        return
    if has_closure and not loop.steps.is_fed:  # where no loader tells, it begins a step of its own
        loop.steps.end_whole(entered)  # as where L-BFGS takes over from another optimizer
    step = loop.steps.step_for_update(id(optimizer), entered)
    if step.is_light:
        loop.switch_to_light(step)
        return
    loop.has_closure = has_closure
    if not has_closure:
        loop.optimizer_began(step, optimizer)
    if loop.clock.stage is None:
        loop.clock.open(step, "optimizer", "optimizer", entered)


def optimizer_left(loop: Loop, optimizer: torch.optim.Optimizer) -> None:
    if loop.thread.is_capturing or not loop.thread.is_training_thread:
        return
    loop.updates_of[id(optimizer)] += 1
    if loop.light.is_on:
        loop.num_updates += 1
        loop.light.updated(id(optimizer))
        return
    step = loop.steps.open
    if step is None or (loop.clock.opener not in ("optimizer", "update", "user") and not loop.has_closure):
        return
    entered = perf_counter_ns()
    if loop.clock.opener == "optimizer":
        loop.clock.close(step, entered)
    if loop.has_closure:
        loop.has_closure = False
        loop.optimizer_began(step, optimizer)  # only now are there gradients
    loop.num_updates += 1
    loop.steps.updated(step, id(optimizer), entered)
    step.recorder_ns += perf_counter_ns() - entered


def optimizer_skipped(loop: Loop, optimizer: torch.optim.Optimizer) -> None:
    if not loop.thread.is_training_thread or loop.thread.is_capturing:
        return
    loop.num_updates += 1
    if loop.light.is_on:
        loop.light.updated(id(optimizer), is_skipped=True)
        return
    step = loop.steps.open
    if step is None or id(optimizer) in step.stepped:
        return
    loop.steps.probe = None
    step.skipped += (id(optimizer),)  # before its gradients are looked at: nobody applies them
    loop.optimizer_began(step, optimizer)
    loop.steps.updated(step, id(optimizer), perf_counter_ns())


def update_began(loop: Loop) -> None:
    """Gradients are clipped or unscaled, or a schedule moves on."""
    step = loop.steps.open
    if loop.clock.stage is None and step is not None and step.has_gradients and get_ident() == loop.thread.ident:
        loop.clock.open(step, "optimizer", "update", perf_counter_ns())


def update_ended(loop: Loop) -> None:
    step = loop.steps.open
    if loop.clock.opener == "update" and step is not None:
        loop.clock.close(step, perf_counter_ns())
