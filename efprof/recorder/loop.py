"""Finds the stages of an unmodified training loop, from the calls that every loop must make.

What happens between those calls is the stage `other`; where a step begins is `Steps`' business.
"""

from threading import get_ident
from time import perf_counter_ns
from typing import Any

import torch

from efprof.recorder.memory import Memory
from efprof.recorder.open_step import num_samples
from efprof.recorder.step_numbers import learning_rate_of
from efprof.recorder.steps import Listener
from efprof.recorder.turns import Turns


class Loop(Turns):
    """The state machine behind the hooks.

    The entry points are written for speed before looks: each runs with cold caches after a heavy operator, where
    one more Python call costs about a microsecond (measured).
    """

    def __init__(self, memory: Memory, write: Listener) -> None:
        super().__init__(memory, write)
        self._nested_backwards = 0
        self._trained: int | None = None
        """The outermost module that gradients were computed for last, by its `id`."""

    # Fetching.

    def fetch_began(self, loader: int | None, *, is_start: bool = False) -> None:
        """A batch is asked for, or the loader starts."""
        if get_ident() != self.thread and not self.take_turn():
            return
        self.leave_sprint()
        entered = perf_counter_ns()
        if self.stage is not None and not self.leave_optimizer(entered):
            return
        steps = self.steps
        if is_start:
            steps.drop_what_was_looked_at(loader)
        step = steps.open if self._has_closure else None
        step = step or steps.before_fetch(entered)
        if step.had_loader is None:
            step.had_loader = steps.has_loader or (steps.shares_batches and not is_start)
        steps.has_loader = True
        if not is_start:
            step.loaders.append(loader)
        self.open_stage(step, "data", "fetch", entered)

    def fetch_ended(self, batch: object) -> None:
        """A batch arrived."""
        if get_ident() != self.thread:
            return
        self.leave_sprint()
        step = self.steps.open
        if self.opener != "fetch" or step is None or get_ident() != self.thread:
            return
        entered = perf_counter_ns()
        self.close_stage(step, entered)
        step.num_fetches += 1
        step.samples_unused, step.samples_aside = num_samples(batch), 0
        step.samples += step.samples_unused
        for listener in self.fetched:
            listener(step)
        step.recorder_ns += perf_counter_ns() - entered

    def fetch_broke_off(self) -> None:
        """A loader's iterator was made, its workers run and no batch has come yet; or asking for a batch raised."""
        self.leave_sprint()
        step = self.steps.open
        if self.opener == "fetch" and step is not None and get_ident() == self.thread:
            self.close_stage(step, perf_counter_ns())

    def data_ended(self) -> None:
        """The loader has no more batches."""
        self.leave_sprint()
        step = self.steps.open
        if self.opener != "fetch" or step is None or get_ident() != self.thread:
            return
        self.close_stage(step, perf_counter_ns())
        self.steps.data_ended(step)

    # Forward.

    def forward_began(self, module: torch.nn.Module | None = None) -> None:
        """A module was called; only the outermost call counts."""
        steps = self.steps
        if get_ident() != self.thread and not (torch.is_grad_enabled() and self.take_turn()):
            steps.others.forward_began()
            return
        self._depth += 1
        if self._depth > 1 or (self.stage is not None and self.opener not in ("user", "optimizer")):
            return
        entered = perf_counter_ns()
        if not torch.is_grad_enabled():
            if module is not None and not module.training and id(module) == self._trained:
                steps.before_evaluation(entered)
            if steps.open is not None:
                steps.open.evaluate(module)
            return
        self._trained = id(module)
        self.hosts.called(module)
        if self.opener == "optimizer":
            self.leave_optimizer(entered)
        step = self.step_to_train(entered)
        if module is not None and not module.training:
            step.has_evaluation = True
        if not step.has_forward:
            step.has_forward = True
            step.sequence = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        if self.stage is None:
            if not step.memory or step.memory[-1][0] in ("post_backward", "post_optimizer_step"):
                steps.note_memory(step, "pre_forward", entered)
            self.open_stage(step, "forward", "forward", entered)

    def forward_ended(self) -> None:
        """The module call returned or raised."""
        steps = self.steps
        if get_ident() != self.thread:
            steps.others.forward_ended()
            return
        self._depth = depth = max(0, self._depth - 1)
        step = steps.open
        if depth or self.opener != "forward" or step is None:
            return
        entered = perf_counter_ns()
        self.close_stage(step, entered)
        if step.memory and step.memory[-1][0] == "post_forward_pre_backward":
            step.memory.pop()
        steps.note_memory(step, "post_forward_pre_backward", entered)
        step.recorder_ns += perf_counter_ns() - entered

    # Backward.

    def backward_entered(self, tensors: Any, gradients: Any, site: str | None) -> None:
        """`torch.autograd.backward` was called with these tensors, and gradients for them or None, at this line."""
        steps = self.steps
        if get_ident() != self.thread and not self.take_turn():
            steps.others.backward_began()
            return
        entered = perf_counter_ns()
        if self.opener == "backward":
            self._nested_backwards += 1  # reentrant checkpointing calls backward from within backward
        if self.stage is not None and self.opener != "user" and not self.leave_optimizer(entered):
            return
        step = self.step_to_train(entered)
        step.num_backwards += 1
        step.note_fed()
        step.backward_site = site or step.backward_site
        if steps.probe is not None:
            steps.probe.watch_loss(tensors)
        steps.note_memory(step, "pre_backward", entered)
        for listener in self.backward_began:
            listener(step, tensors, gradients)
        if self.stage is None:
            self.open_stage(step, "backward", "backward", entered)

    def gradients_entered(self, inputs: Any) -> None:
        """`torch.autograd.grad` was called for these; within a forward pass, as for forces, it is part of that."""
        self.leave_sprint()
        steps = self.steps
        if get_ident() != self.thread and not self.take_turn():
            steps.others.backward_began()
            return
        entered = perf_counter_ns()
        if self.opener == "backward":
            self._nested_backwards += 1
        if self.stage is not None and not self.leave_optimizer(entered):
            return
        step = self.step_to_train(entered)
        step.num_gradient_calls += 1
        if steps.probe is not None:
            steps.probe.watch_inputs(inputs)
        self.open_stage(step, "backward", "backward", entered)

    def backward_left(self) -> None:
        """The backward pass returned or raised."""
        steps = self.steps
        if get_ident() != self.thread:
            steps.others.backward_ended()
            return
        step = steps.open
        if self.opener != "backward" or step is None:
            return
        if self._nested_backwards:
            self._nested_backwards -= 1
            return
        entered = perf_counter_ns()
        self.close_stage(step, entered)
        steps.note_memory(step, "post_backward", entered)
        if step.stepped and not self._has_closure:  # within backward: there is no later end of the update
            steps.note_memory(step, "post_optimizer_step", entered)
        if steps.probe is not None:
            steps.probe.note_backward()
        if self._has_closure:
            self.open_stage(step, "optimizer", "optimizer", entered)  # the closure's part is over
            return
        step.recorder_ns += perf_counter_ns() - entered
        for listener in self.backward_ended:
            listener()

    # Update.

    def optimizer_entered(self, optimizer: torch.optim.Optimizer, has_closure: bool = False) -> None:
        """`optimizer.step` was called."""
        if get_ident() != self.thread and not self.take_over(optimizer):
            return
        entered = perf_counter_ns()
        self.note_optimizer(optimizer)
        if self.opener == "optimizer" and self.steps.open is not None:
            self.close_stage(self.steps.open, entered)  # the last call raised, and the program went on
        if self.opener == "backward":
            self._step_within_backward(optimizer)
        self.leave_function(entered)
        self.leave_host(optimizer, entered)
        if self.stage is not None and self.opener not in ("user", "update"):
            return
        if has_closure:
            self.steps.end_whole(entered)  # as where L-BFGS takes over from another optimizer
        step = self.steps.to_update(id(optimizer), entered)
        self._has_closure = has_closure
        if not has_closure:
            for listener in self.optimizer_began:
                listener(step, optimizer)
        if self.stage is None:
            self.open_stage(step, "optimizer", "optimizer", entered)

    def _step_within_backward(self, optimizer: torch.optim.Optimizer) -> None:
        """A hook of a gradient steps it, as soon as the gradient is there: one optimizer for each parameter."""
        step, steps = self.steps.open, self.steps
        if step is not None and id(optimizer) not in step.stepped:
            steps.probe = None
            if not step.stepped:
                step.learning_rate = learning_rate_of(optimizer)
            step.stepped.append(id(optimizer))
            steps.cycle.stepped(id(optimizer))

    def turn_to(self, optimizer: torch.optim.Optimizer) -> None:
        """It was taken for the optimizer of the sprint, which it broke off: begin its stage again."""
        if self.opener == "optimizer":
            self.stage = self.opener = None
        self.optimizer_entered(optimizer)

    def optimizer_left(self, optimizer: torch.optim.Optimizer) -> None:
        """`optimizer.step` returned."""
        step = self.steps.open
        if get_ident() != self.thread or step is None:
            return
        if self.opener not in ("optimizer", "update", "user") and not self._has_closure:
            return
        entered = perf_counter_ns()
        if self.opener == "optimizer":
            self.close_stage(step, entered)
        if self._has_closure:
            self._has_closure = False
            for listener in self.optimizer_began:  # only now are there gradients
                listener(step, optimizer)
        self.steps.updated(step, id(optimizer), entered)
        step.recorder_ns += perf_counter_ns() - entered

    def optimizer_skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """A gradient scaler was to step this optimizer; nothing happens here if it did."""
        self.leave_sprint()
        step = self.steps.open
        if get_ident() != self.thread or step is None or id(optimizer) in step.stepped:
            return
        self.steps.probe = None
        step.held_back += (id(optimizer),)  # before its gradients are looked at: it tells that nobody applies them
        for listener in self.optimizer_began:
            listener(step, optimizer)
        self.steps.updated(step, id(optimizer), perf_counter_ns())

    def replayed(self, graph: int, graphs: set[int], entered: int) -> None:
        """A CUDA graph, by its `id`, that holds a whole update was launched; its stages cannot be told apart.

        It shares its step with others of the `graphs`, but with no optimizer that stepped by itself.
        """
        self.leave_sprint()
        steps = self.steps
        if steps.open is not None and not graphs.issuperset(steps.open.stepped):
            steps.finish(steps.open, entered)
        step = steps.to_update(graph, entered)
        step.num_backwards += 1
        self.steps.updated(step, graph, entered)

    def update_began(self) -> bool:
        """Gradients are clipped or unscaled, or a schedule moves on; whether that opened the stage `optimizer`."""
        self.leave_sprint()
        step = self.steps.open
        if self.stage is not None or step is None or not step.has_gradients or get_ident() != self.thread:
            return False
        self.open_stage(step, "optimizer", "update", perf_counter_ns())
        return True

    def gradients_clipped(self, norm: torch.Tensor, max_norm: float) -> None:
        """`clip_grad_norm_` has computed the norm from before the clipping, to this one at most."""
        if get_ident() == self.thread:
            for listener in self.clipped:
                listener(norm, max_norm)

    def update_ended(self) -> None:
        """What `update_began` opened ends."""
        if self.opener == "update" and self.steps.open is not None:
            self.close_stage(self.steps.open, perf_counter_ns())
