"""Finds the stages of an unmodified training loop, from the calls that every loop must make.

What happens between those calls is the stage `other`; where a step begins is `Steps`' business, and the stage
`optimizer` that of `updates`. In light steps the state machine rests, and `LightLoop` has its place.
"""

from collections import Counter
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import DataLoader

from efprof.artifacts.steps import LightLine
from efprof.recorder.budget.light_steps import LightLoop
from efprof.recorder.budget.sampling import Sampling
from efprof.recorder.loop.device import Memory
from efprof.recorder.loop.open_step import OpenStep, num_elements
from efprof.recorder.loop.step_ends import TrainerModules
from efprof.recorder.loop.steps import Listener, Listeners, StageClock, Steps, is_in_forward
from efprof.recorder.loop.training_thread import TrainingThread
from efprof.recorder.numbers.step_numbers import ScaledLosses

QUIET_STEPS = 2
"""Steps that must have compiled nothing before one is looked at closely: a compiler makes a million calls."""


class Loop:
    """The state machine behind the hooks.

    Collectors subscribe to its lists. Those of a step are called for steps recorded in full: `step_began(step)`,
    `fetched(step)`, `step_dropped(step)`, `backward_began(step, tensors, gradients, retains_graph, creates_graph)`,
    `backward_ended()`, `clip_began(parameters, bound)`, `clipped(norm, parameters)`, `scaler_step_began(optimizer,
    scale)`, `unscaling_began(optimizer, scale)`, `optimizer_began(step, optimizer)`, `schedule_moved(schedule)`,
    `step_ended(step, record)`. In light steps too: `loader_began(loader)`, `loader_started(loader, iterator)` and
    `loader_ended(iterator, number)`, where a DataLoader is to be gone through, has its iterator, has no more
    batches; and, while modules are watched, `module_began(module, inputs)` and `module_ended(result)` of the
    outermost.
    """

    def __init__(
        self, memory: Memory, write: Listener, write_light: Callable[[LightLine], None], sampling: Sampling
    ) -> None:
        """`write(step, record)` is called last for each full step."""
        self.sampling = sampling
        self.steps = Steps(memory, write, sampling)
        self.clock = StageClock(self.steps)
        self.thread = TrainingThread(
            self.steps.passes, is_idle=lambda: self.steps.open is None, go_on=self._go_on_in_thread
        )
        self.light = LightLoop(self.steps, sampling, write_light)
        sampling.may_be_light = lambda: self.steps.can_switch_to_light
        self.scaled_losses = ScaledLosses()
        self.trainer_modules = TrainerModules()
        self.watch_modules: Callable[[bool], None] = lambda _: None
        """Have the outermost calls of modules seen from now on, or no longer, in light steps too."""
        self.loader_numbers: WeakKeyDictionary[DataLoader[object], int] = WeakKeyDictionary()
        self.is_updating = False
        """Whether a function runs that makes up the stage `optimizer` beside the optimizer's own step."""
        self.has_nested_steps = False
        """Whether an optimizer's step was seen to call another's, or its parent class's."""
        self.has_closure = False
        """Whether an optimizer is running that computes its gradients itself, by calling back."""
        self.num_updates = 0
        self.updates_of = Counter[int]()
        """By the optimizer's `id`, without those that were held back."""
        self.compiled_at = -QUIET_STEPS - 1
        """The step in which `torch.compile` last began to compile something."""
        self.step_began = self.steps.began
        self.step_dropped = self.steps.dropped
        self.step_ended = self.steps.ended
        self.step_ended.append(self.thread.note_step)
        self.fetched = Listeners()
        self.forward_called = Listeners()
        self.module_began = Listeners()
        self.module_ended = Listeners()
        self.compilation_began = Listeners()
        self.window_begins = Listeners()
        self.backward_began = Listeners()
        self.backward_ended = Listeners()
        self.optimizer_began = Listeners()
        self.clip_began = Listeners()
        self.clipped = Listeners()
        self.scaler_step_began = Listeners()
        """Of a gradient scaler: told is the scale that the gradients still have, None where they were divided by it."""
        self.unscaling_began = Listeners()
        """The same of a call of `unscale_` by the program."""
        self.schedule_moved = Listeners()
        self.loader_began = Listeners()
        self.loader_started = Listeners()
        self.loader_ended = Listeners()
        self._depth = 0
        self._trained: int | None = None
        """The outermost module that gradients were computed for last, by its `id`."""

    # What the rest of the recorder asks, and tells.

    @property
    def has_compiled(self) -> bool:
        """Whether something was compiled in this step or in one of the two before it."""
        return self.number - self.compiled_at <= QUIET_STEPS

    def note_compilation(self) -> None:
        """Within a step, or before the next one begins."""
        step = self.steps.open
        self.compiled_at = self.number + (step is not None and bool(step.stepped))
        self.compilation_began()

    @property
    def step(self) -> OpenStep | None:
        return self.steps.open

    @property
    def num_steps(self) -> int:
        return self.light.steps.number if self.light.is_on else self.steps.num_finished

    @property
    def updated_ns(self) -> int:
        """When an optimizer stepped last, by `perf_counter_ns`."""
        return max(self.steps.updated_ns, self.light.steps.updated_ns)

    @property
    def number(self) -> int:
        if self.light.is_on:
            return self.light.steps.current
        return self.steps.open.number if self.steps.open is not None else self.num_steps

    # What it tells the recording to do.

    def mark_interrupted(self) -> None:
        """Something costly is done between two steps: the time until the next one begins belongs to none."""
        self.steps.is_disturbed = self.light.steps.is_interrupted = True

    def finish(self) -> None:
        """The program ends: close the step if it is whole, drop it otherwise."""
        if self.light.is_on:
            self.light.switch_to_full()
        elif self.clock.stage is None:
            self.steps.finish_last(perf_counter_ns())
        self.thread.stop()
        for listeners in vars(self).values():
            if isinstance(listeners, Listeners) and listeners is not self.step_ended:
                listeners.clear()  # the end may come within an entry point, which goes on

    # Fetching.

    def fetch_began(self, loader: int | None, *, is_start: bool = False) -> None:
        if get_ident() != self.thread.ident and not self.thread.goes_on_in_caller():
            return
        entered = perf_counter_ns()
        if self.light.is_on:
            self.light.fetch_began(is_start=is_start)
            if self.light.is_on:
                return
        if self.clock.stage is not None and not self._leave_optimizer(entered):
            return
        steps = self.steps
        step = steps.open if self.has_closure else None
        step = step or steps.step_for_fetch(entered)
        steps.has_loader = True
        if not is_start:
            step.batches.loaders.append(loader)
        self.clock.open(step, "data", "fetch", entered)

    def fetch_ended(self, batch: object) -> None:
        entered = perf_counter_ns()
        if (step := self.fetch_left()) is not None:
            step.batches.add(batch)
            self.fetched(step)
            step.recorder_ns += perf_counter_ns() - entered

    def fetch_left(self) -> OpenStep | None:
        """The step whose loader was started, or asked for a batch, which is over now; None where none of ours was."""
        step = self.steps.open
        if self.clock.opener != "fetch" or step is None or get_ident() != self.thread.ident:
            return None
        self.clock.close(step, perf_counter_ns())
        return step

    def data_ended(self) -> None:
        if (step := self.fetch_left()) is not None:
            self.steps.data_ended(step)

    # Forward.

    def forward_began(self, module: torch.nn.Module | None = None, inputs: tuple[Any, ...] = ()) -> None:
        if self.light.is_on:
            return
        steps = self.steps
        if not self.thread.is_training_thread and not (torch.is_grad_enabled() and self.thread.goes_on_in_caller()):
            return
        self._depth += 1
        is_within = self._depth > 1 or (self.clock.stage is not None and self.clock.opener not in ("user", "optimizer"))
        if is_within or self.thread.is_capturing:  # nothing of ours may get into the graph
            return
        self.forward_called()
        entered = perf_counter_ns()
        if not torch.is_grad_enabled():
            if module is not None and not module.training and id(module) == self._trained:
                steps.end_whole(entered)
            if steps.open is not None:
                steps.open.has_evaluation = True
                if steps.open.has_gradients and module is not None and not module.training:
                    steps.open.batches.set_aside()  # between accumulated batches
            return
        self._trained = id(module)
        self.trainer_modules.called(module)
        if self.clock.opener == "optimizer":
            self._leave_optimizer(entered)
        step = self.step_for_pass(entered)
        if module is not None and not module.training:
            step.has_evaluation = True
        if not step.has_forward:
            step.has_forward = True
            step.sequence = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        step.num_elements += num_elements(inputs)
        if self.clock.stage is None:
            if not step.memory or step.memory[-1][0] in ("post_backward", "post_optimizer_step"):
                steps.note_memory(step, "pre_forward", entered)
            self.clock.open(step, "forward", "forward", entered)

    def forward_ended(self) -> None:
        if self.light.is_on or not self.thread.is_training_thread:
            return
        steps = self.steps
        self._depth = depth = max(0, self._depth - 1)
        step = steps.open
        if depth or self.clock.opener != "forward" or step is None:
            return
        entered = perf_counter_ns()
        self.clock.close(step, entered)
        if step.memory and step.memory[-1][0] == "post_forward_pre_backward":
            step.memory.pop()
        steps.note_memory(step, "post_forward_pre_backward", entered)
        step.recorder_ns += perf_counter_ns() - entered

    # Backward.

    def backward_entered(
        self, tensors: Any, gradients: Any, site: str | None, retains_graph: bool = False, creates_graph: bool = False
    ) -> None:
        """The thread that trains calls `torch.autograd.backward`."""
        steps = self.steps
        entered = perf_counter_ns()
        if self.clock.stage is not None and self.clock.opener != "user" and not self._leave_optimizer(entered):
            return
        step = self.step_for_pass(entered)
        if step.is_light and not self.has_closure:
            self.switch_to_light(step)
            self.light.steps.backward_entered(tensors, gradients)
            return
        step.num_backwards += 1
        step.backward_site = site or step.backward_site
        if steps.probe is not None:
            steps.probe.watch_loss(tensors)
        steps.note_memory(step, "pre_backward", entered)
        self.backward_began(step, tensors, gradients, retains_graph, creates_graph)
        if self.clock.stage is None:
            self.clock.open(step, "backward", "backward", entered)

    def gradients_entered(self, inputs: Any) -> None:
        """`torch.autograd.grad` was called for these; within a forward pass, as for forces, it is part of that."""
        if self.light.is_on or not self.thread.trains_in_caller():
            return
        steps = self.steps
        entered = perf_counter_ns()
        if self.clock.stage is not None and not self._leave_optimizer(entered):
            return
        step = self.step_for_pass(entered)
        step.num_gradient_calls += 1
        if steps.probe is not None:
            steps.probe.watch_inputs(inputs)
        self.clock.open(step, "backward", "backward", entered)

    def backward_left(self) -> None:
        if get_ident() != self.thread.ident:
            self.thread.backward_ended_elsewhere(is_light=self.light.is_on)
            return
        if self.light.is_on:
            self.light.pass_ended()
            return
        steps = self.steps
        step = steps.open
        if self.clock.opener != "backward" or step is None:
            return
        entered = perf_counter_ns()
        self.clock.close(step, entered)
        steps.note_memory(step, "post_backward", entered)
        if step.stepped and not self.has_closure:  # within backward: there is no later end of the update
            steps.note_memory(step, "post_optimizer_step", entered)
        if steps.probe is not None:
            steps.probe.note_backward()
        self.backward_ended()
        step.recorder_ns += perf_counter_ns() - entered
        if self.has_closure:
            self.clock.open(step, "optimizer", "optimizer", perf_counter_ns())  # the closure's part is over

    # What the entry points have in common.

    def switch_to_light(self, step: OpenStep) -> None:
        self.clock.leave()
        self._depth = 0
        self.light.switch_to_light(step)

    def leave_forward(self, entered: int) -> bool:
        """Close the stage `forward` where Ctrl-C ended it: of that torch tells no hook."""
        step = self.steps.open
        if self.clock.opener != "forward" or step is None or get_ident() != self.thread.ident or is_in_forward():
            return False  # of the stack of our thread another one, of autograd's, sees nothing
        self._depth = 0
        self.clock.close(step, entered)
        return True

    def forget_forward(self, entered: int) -> None:
        """What began as a forward pass is none."""
        self._depth = 0
        self.clock.forget_forward(entered)

    def _go_on_in_thread(self) -> None:
        """In another one than before: a step that is not whole is left."""
        self._depth, self.has_closure = 0, False
        self.clock.leave()
        if self.light.is_on:
            self.light.switch_to_full()
        self.steps.finish_last(perf_counter_ns())
        self.steps.drop()

    def step_for_pass(self, entered: int) -> OpenStep:
        step = self.steps.open
        step = step if step is not None and self.has_closure else self.steps.step_for_pass(entered)
        step.batches.train_on_last()
        return step

    def _leave_optimizer(self, entered: int) -> bool:
        """Close the stage `optimizer` where its closure, or the program after an error in it, goes on."""
        if self.leave_forward(entered):
            return True
        step = self.steps.open
        if self.clock.opener == "backward":  # of a thread that trains no more: within a pass nobody comes here
            self.clock.leave()
            return True
        if self.clock.opener != "optimizer" or step is None:
            return False
        self.clock.close(step, entered)
        if self.has_closure and not (len(step.spans) > 1 and step.spans[-2][0] == "backward"):
            self.clock.remove_last(step)  # nothing was done yet between the call of `step` and that of its closure
        return True
