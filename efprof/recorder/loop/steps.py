"""Where one step ends and the next begins, which stage of it the training is in, and what is written of each."""

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch

from efprof.artifacts.steps import StepRecord
from efprof.recorder.budget.sampling import Sampling
from efprof.recorder.loop.device import UNKNOWN, DeviceClock, Memory, ResidentSet
from efprof.recorder.loop.open_step import OpenStep, add_passes, record_of
from efprof.recorder.loop.step_ends import OptimizerCycle, ParameterProbe
from efprof.recorder.loop.training_thread import Pass
from efprof.recorder.numbers.step_numbers import learning_rate_of
from efprof.recorder.session.sites import callers

Listener = Callable[..., None]


class Listeners(list[Listener]):
    """Called like one function: each in turn, in the order in which they came."""

    def __call__(self, *what: Any) -> None:
        for listener in self:
            listener(*what)


MAX_SPANS = 50_000
"""Kept of one step: a program that only looks at gradients never ends it."""

_MODULE_CALL = torch.nn.Module._call_impl.__code__
_COMPILED_CALLS = str(Path(__file__).parents[1] / "hooks" / "module_calls.py")


class Steps:
    """Begins and finishes steps; `open` is the one that is being recorded.

    A step runs from one fetch of a batch to the next one after an optimizer has stepped; in a loop without a loader, or
    with several updates on each batch, from one forward pass to the next; where the user marks steps, from mark to
    mark.
    """

    def __init__(self, memory: Memory, write: Callable[[OpenStep, StepRecord], None], sampling: Sampling) -> None:
        self.open: OpenStep | None = None
        self.closed: OpenStep | None = None
        """The one that its loader's end closed, which trained nothing so far.

        It goes on where a pass comes next in a loop that a loader feeds: a batch was fetched ahead, as Accelerate does.
        """
        self.num_finished = 0
        self.updated_ns = 0
        """When an optimizer stepped last in a full step."""
        self.began = Listeners()
        self.dropped = Listeners()
        self.ended = Listeners()
        self.manual_updates_found = Listeners()
        self.passes: list[Pass] = []
        """Of other threads, that no step has taken so far."""
        self.has_helpers = False
        """Whether a step has ever taken some: light steps see none of them."""
        self.cycle = OptimizerCycle()
        self.probe: ParameterProbe | None = ParameterProbe()
        """None once a torch optimizer has stepped."""
        self.clock: DeviceClock | None = None
        self.has_loader = False
        """Whether a loader was asked for a batch."""
        self.num_shared = 0
        """On how many of the last batches, one after another, an optimizer stepped more than once."""
        self.has_marks = False
        self.is_disturbed = False
        self.last = OpenStep(number=-1, start_ns=0, epoch_ns=0)
        """The last full step."""
        self.successions = set[tuple[int, int]]()
        """Of two optimizers that stepped one after the other in any full step: one may do so now and then."""
        self.passes_by_hand = 0
        """Backward passes of the last full step, in a program that updates its parameters by hand; 0 in any other."""
        self.can_switch_to_light = False
        """Whether the last full steps were such as light ones can be told by."""
        self._memory = memory
        self._sampling = sampling
        self._resident = ResidentSet()
        self._write = write
        self.passed_on = (0, 0)
        """When a step ended or began last, and how long the readings of its CPU time took then."""

    @property
    def shares_batches(self) -> bool:
        """Whether several updates, each a step of its own, are usually made on one batch.

        Of several optimizers, one may just have stepped once more for once: that shows at the next batch.
        """
        return self.num_shared > (not self.cycle.is_alone)

    @property
    def is_fed(self) -> bool:
        return self.has_loader and not self.shares_batches

    def step_for_fetch(self, at: int) -> OpenStep:
        step = self.open
        if step is None:
            return self.begin(at)
        if self.probe is not None:
            self._note_manual_update(step, at)
        if not self.has_marks and step.stepped:
            if self.is_fed:
                self.num_shared = 0
            return self.finish_and_begin(at)
        if step.has_evaluation and not step.has_gradients:
            self.drop()  # what was fetched so far fed an evaluation: it belongs to no step
            return self.begin(at)
        return step

    def step_for_pass(self, at: int) -> OpenStep:
        step, was_fed = self.open, self.last.batches.num_fetches > 0
        if step is None and self.closed is not None and was_fed and not self.closed.has_evaluation:
            step, self.closed = self.closed, None
            self.open, self.has_loader = step, True
        if step is None:
            return self.begin(at)
        has_evaluated = step.has_evaluation and step.batches.num_fetches and not step.has_gradients
        if step.number and has_evaluated and not (was_fed or self.shares_batches):
            self.has_loader = False  # it fed an evaluation, which was broken off, in a loop that trains without one
            self.drop()
            return self.begin(at)
        if self.has_marks:
            return step
        if self.is_fed and step.batches.num_fetches:  # not where another thread reads the loader
            return step
        if self.probe is not None:
            self._note_manual_update(step, at)
        is_whole = step.stepped and self.cycle.is_complete(step.stepped)
        return self.finish_and_begin(at) if is_whole else step

    def end_whole(self, at: int) -> None:
        """What comes now belongs to no step that is whole, as an evaluation of the trained module."""
        step = self.open
        if step is not None and step.stepped and not self.has_marks and self.cycle.is_complete(step.stepped):
            self.finish(step, at)

    def step_for_update(self, optimizer: int, at: int) -> OpenStep:
        self.probe = None
        step = self.open
        if step is not None and (optimizer not in step.stepped or self.has_marks):
            return step
        if step is not None:
            # Two steps of one optimizer without a fetch between them: this loop does not feed from its loader, or it
            # shares a batch between several updates.
            self.num_shared += self.has_loader
            self.has_loader = False
            if optimizer == step.stepped[-1]:
                self.cycle.is_strict = False
        last = step.spans[-1][2] if step is not None and step.spans else 0
        return self.finish_and_begin(min((began for _, began, _ in self.passes if began >= last), default=at))

    def data_ended(self, step: OpenStep) -> None:
        """The loader has no more batches: what comes until the next one is asked for belongs to no step."""
        batches = step.batches
        ended = batches.loaders.pop() if batches.loaders else None
        is_fed_by_another = any(loader != ended for loader in batches.loaders) and not step.has_evaluation
        if step.has_gradients or self.has_marks or is_fed_by_another:
            return
        self.open, self.closed = None, step
        self.has_loader = False  # unless it starts again: it may have fed an evaluation, or have been read ahead

    def updated(self, step: OpenStep, optimizer: int, at: int) -> None:
        self.note_memory(step, "post_optimizer_step", at)
        self.updated_ns = at
        step.stepped.append(optimizer)
        self.cycle.stepped(optimizer)

    def updated_within_backward(self, optimizer: torch.optim.Optimizer) -> bool:
        """A hook of a gradient steps it, one for each parameter: whether for the first time in this step."""
        step = self.open
        if step is None or id(optimizer) in step.stepped:
            return False
        self.probe = None
        if not step.stepped:
            step.numbers.learning_rate = learning_rate_of(optimizer)
        self.updated_ns = perf_counter_ns()
        step.stepped.append(id(optimizer))
        self.cycle.stepped(id(optimizer))
        return True

    def note_memory(self, step: OpenStep, boundary: str, at: int) -> None:
        if not step.is_light and len(step.memory) < MAX_SPANS and (reading := self._memory.read()) is not UNKNOWN:
            step.memory.append((boundary, at, reading))

    def finish_and_begin(self, at: int) -> OpenStep:
        if self.open is not None:
            self.finish(self.open, at)
        return self.begin(at)

    def begin(self, at: int) -> OpenStep:
        step = OpenStep(number=self.num_finished, start_ns=at, epoch_ns=epoch_ns(at))
        step.is_light = not self._sampling.is_full(step.number)
        self.open, self.closed = step, None
        self._take_passes(at)  # which were for no step
        if not step.is_light:
            self.began(step)
        if self.is_disturbed:
            self.is_disturbed = False
            step.start_ns, step.epoch_ns = perf_counter_ns(), time.time_ns()
            self.passed_on = (0, 0)
        step.start_cpu_ns, reading_ns = read_cpu_ns()
        self.passed_on = (at, reading_ns + self.passed_on_ns(at))
        return step

    def passed_on_ns(self, entered: int) -> int:
        """For how long another program has had the core, if at all, since the recorder was entered."""
        at, reading_ns = self.passed_on
        return reading_ns if at == entered else 0

    def drop(self) -> None:
        step, self.open, self.closed = self.open, None, None
        if step is not None:
            self.dropped(step)

    def finish_last(self, at: int) -> None:
        """The program ends: write the open step if it is whole, drop it otherwise."""
        if self.open is not None:
            self._note_manual_update(self.open, at)
            if self.open.stepped:
                self.finish(self.open, at)

    def finish(self, step: OpenStep, at: int) -> None:
        self.open = None
        self.num_finished += 1
        passes = self._take_passes(at)
        step.num_backwards += len(passes)
        self._learn(step)
        self.has_helpers |= bool(passes)
        self.can_switch_to_light &= not self.has_helpers
        cpu_ns, reading_ns = read_cpu_ns()
        self.passed_on = (at, reading_ns)
        record = record_of(step, at, cpu_ns - step.start_cpu_ns, self._resident.read())
        if step.device_marks:
            assert self.clock is not None
            step.late.append(self.clock.reader(record, step.device_marks))
        add_passes(record, [((began - step.start_ns) / 1000, (end - step.start_ns) / 1000) for _, began, end in passes])
        if step.window is None:
            self._sampling.note_full(step.number, at - step.start_ns, step.recorder_ns)
        try:
            self.ended(step, record)
        finally:
            self._write(step, record)  # also where Ctrl-C comes meanwhile: the step is over

    def _take_passes(self, at: int) -> list[Pass]:
        """Of other threads, those that ended by then."""
        taken = [one for one in self.passes if one[2] <= at]
        self.passes[:] = [one for one in self.passes if one[2] > at]
        return taken

    def _learn(self, step: OpenStep) -> None:
        """What light steps are told by: the order of the updates, or, where there is no optimizer, of the passes."""
        is_by_hand = step.stepped == [0] and not self.has_marks
        passes = step.num_backwards if is_by_hand else 0
        self.can_switch_to_light = self.has_marks or (
            passes == self.passes_by_hand if is_by_hand else bool(step.stepped)
        )
        self.can_switch_to_light &= step.num_backwards > 0 or not is_by_hand
        self.last, self.passes_by_hand = step, passes
        self.successions.update(pairwise(step.stepped))

    def _note_manual_update(self, step: OpenStep, at: int) -> None:
        if self.probe is None or step.stepped or not step.has_gradients or not self.probe.has_updated():
            return
        self.note_memory(step, "post_optimizer_step", at)
        step.stepped.append(0)
        self.manual_updates_found(step)
        self.manual_updates_found.clear()


class StageClock:
    """Opens and closes stages of the open step; on a device it has them timed there as well."""

    def __init__(self, steps: Steps) -> None:
        self.stage: str | None = None
        self.opener: str | None = None
        """Which entry point opened the stage: it is the one to close it."""
        self._steps = steps
        self._start_ns = 0

    def open(self, step: OpenStep, stage: str, opener: str, entered: int) -> None:
        self.stage, self.opener = stage, opener
        if self._steps.clock is not None:
            self._steps.clock.open()
        self._start_ns = now = perf_counter_ns()
        step.recorder_ns += now - max(entered, step.start_ns) - self._steps.passed_on_ns(entered)

    def close(self, step: OpenStep, entered: int) -> None:
        if len(step.spans) < MAX_SPANS:
            step.spans.append((self.stage or "other", self._start_ns, entered))
            if self._steps.clock is not None:
                step.device_marks.append(self._steps.clock.close())
        self.leave()

    @property
    def reads_by_design(self) -> bool:
        """Whether a loader or an optimizer is running: both read values of tensors, on the CPU."""
        return self.stage == "data" or self.opener == "optimizer"

    def forget_forward(self, entered: int) -> None:
        step = self._steps.open
        if step is None:
            return
        self.close(step, entered)
        self.remove_last(step)
        step.has_forward = False
        if step.memory and step.memory[-1][0] == "pre_forward":
            step.memory.pop()
        if not step.batches.num_fetches and not step.has_gradients and not step.stepped:
            self._steps.drop()  # all of it was before the training

    def remove_last(self, step: OpenStep) -> None:
        step.spans.pop()
        if step.device_marks:
            step.device_marks.pop()

    def leave(self) -> None:
        self.stage = self.opener = None


def epoch_ns(at: int) -> int:
    """The time of day at an instant of `perf_counter_ns`.

    Of two readings the least: one is too high by what another program runs for between the two clocks.
    """
    return at + min(-perf_counter_ns() + time.time_ns() for _ in range(2))


def read_cpu_ns() -> tuple[int, int]:
    """What this process has used, and how long the reading took, which is no cost of recording's.

    Linux looks then whether another program is due: beside busy loops it passed the core on at nearly every reading,
    for 18 ms (measured). Else it had done so at a tick of its clock, mostly while the program itself runs.
    """
    began = perf_counter_ns()
    cpu_ns = time.process_time_ns()
    return cpu_ns, perf_counter_ns() - began


def is_in_forward() -> bool:
    """Whether the call of a module, compiled or not, is running."""
    return any(caller.f_code is _MODULE_CALL or caller.f_code.co_filename == _COMPILED_CALLS for caller in callers())
