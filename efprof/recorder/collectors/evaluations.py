"""Sees evaluations: two or more forward passes in a row, through whose outputs no backward pass goes.

A hook on the node of an output is called where a backward pass goes through it, and dies with the graph. What is not
used before the next update is evaluated, or acts: a rollout. In light steps modules are watched from a call of `eval()`
or a loader's start on, until a forward pass is used again; without either, where graphs were built between bursts that
belong to no step.
"""

import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from time import perf_counter_ns
from typing import Any, Final
from weakref import ref

import torch

from efprof.artifacts.readings import EVALUATIONS_FILE, EvaluationMemory, EvaluationRecord
from efprof.artifacts.steps import StepRecord
from efprof.recorder.budget.sampling import Budget
from efprof.recorder.hooks.patching import call_before
from efprof.recorder.loop.device import Memory
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.steps import epoch_ns
from efprof.recorder.numbers.step_numbers import parameters_of
from efprof.recorder.session.session import Session
from efprof.recorder.session.sites import Sites, callers
from efprof.recorder.session.writing import LineWriter

MIN_FORWARDS: Final = 2
"""A single one among others is a detached target, a skipped batch, a probe of shapes."""
MAX_READINGS: Final = 32
"""Forward passes of one evaluation whose memory is written, beside the last: they show whether each adds to it."""
MAX_ROW: Final = 10_000
"""Forward passes of an evaluation before training, or whose graphs are kept."""
MAX_ROLLOUTS: Final = 100
"""Written of a run: they are parts of its steps."""
MAX_CALLERS: Final = 4
MAX_OUTPUTS: Final = 8
MAX_DEPTH: Final = 3
SMALL: Final = 0.5
"""Of the input of a forward pass that is trained on: a policy acts on one observation, and learns from many."""
MAX_VAIN: Final = 1000
"""Forward passes watched in light steps for an evaluation that nothing announces: of 10 us each."""


class _Hook:
    """Called where a backward pass runs the node; it dies with the graph, and holds none of it."""

    __slots__ = ("__weakref__", "_forward")

    def __init__(self, forward: "_Forward") -> None:
        self._forward = forward

    def __call__(self, _: object) -> None:
        self._forward.is_used = True


@dataclass(kw_only=True, slots=True)
class _Forward:
    """One call of an outermost module; `size` is the number of elements of its first input."""

    parameter: ref[torch.Tensor]
    """One that an optimizer has, and its version: another one after the next update."""
    version: int
    after_step: int
    size: int
    is_training: bool
    before_bytes: int
    began_ns: int
    mark_bytes: int | None
    """The CUDA allocator's own before it; `end_mark_bytes` after it."""
    end_mark_bytes: int | None = None
    ended_ns: int = 0
    after_bytes: int = 0
    output_bytes: int = 0
    num_alive: int = 0
    is_used: bool = False
    hook: ref[_Hook] | None = None
    """None where it has no graph."""
    callers: list[str] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        return self.hook is not None and self.hook() is not None

    @property
    def is_updated(self) -> bool:
        parameter = self.parameter()
        return parameter is None or parameter._version != self.version

    def is_before_update(self, other: "_Forward") -> bool:
        return self.parameter() is other.parameter() and self.version != other.version


@dataclass(kw_only=True, slots=True)
class _Pass:
    """Forward passes in a row that were not used."""

    record: EvaluationRecord
    first: _Forward
    last: _Forward
    began_ns: int
    is_fed: bool
    """Whether a loader started for it."""
    size: int = 0
    graphs: list[int] = field(default_factory=list)
    """Bytes of each graph."""


class Evaluations:
    def __init__(self, *, loop: Loop, memory: Memory, sites: Sites, budget: Budget, lines: LineWriter) -> None:
        self._loop = loop
        self._memory = memory
        self._sites = sites
        self._budget = budget
        self._lines = lines
        self._row = deque[_Forward](maxlen=MAX_ROW)
        """Those of which it is not known yet whether they are used."""
        self._running: _Forward | None = None
        self._pass: _Pass | None = None
        self._parameters: dict[int, ref[torch.Tensor] | None] = {}
        """Of each module, by its `id`, one that an optimizer has."""
        self._optimized: dict[int, set[int]] = {}
        self._trained = (0, 0)
        """When the last forward pass began that was used, and its size."""
        self._loader_began_ns = 0
        self._loader_ended_ns = 0
        self._is_over = False
        """Whether a forward pass was used since the watch began."""
        self._num_rollouts = 0
        self._evaluated_step = -1
        self._num_watched = MAX_VAIN
        self._sequences = [(0, 0), (0, 0)]
        """Numbers of the last full steps, and autograd's sequence numbers there."""

    # What the loop tells.

    def watch(self, *_: object) -> None:
        """An evaluation may begin: see the calls of modules, in light steps too."""
        loop = self._loop
        if loop.light.is_on and loop.thread.is_training_thread and self._budget.affords(0):
            self.settle()
            self._is_over = False
            loop.watch_modules(True)

    def loader_began(self, _: object) -> None:
        self._loader_began_ns = perf_counter_ns()
        self.watch()

    def loader_ended(self, *_: object) -> None:
        self._loader_ended_ns = perf_counter_ns()

    def note_optimizer(self, _: object, optimizer: torch.optim.Optimizer) -> None:
        if id(optimizer) in self._optimized:
            return
        if not self._optimized:
            row = list(self._row)
            own = set(map(id, parameters_of(optimizer)))
            self._row.clear()
            self._row.extend(one for one in row if id(one.parameter()) in own)
        self._optimized[id(optimizer)] = set(map(id, parameters_of(optimizer)))
        self._parameters.clear()

    def note_step(self, _: object, record: StepRecord) -> None:
        self._sequences = [self._sequences[1], (record.step, record.sequence or 0)]

    def note_mode(self, is_full: bool) -> None:
        """Whether graphs were built in the light steps that are over which belong to none of them."""
        number, sequence = self._loop.num_steps, torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        (before, first), (last, second) = self._sequences
        nodes = second - first
        if is_full and before + 1 == last and first and nodes > 0:
            if sequence - second > (number - last + MIN_FORWARDS) * nodes:
                self._num_watched = 0
        elif self._num_watched < MAX_VAIN:
            self.watch()

    def began(self, module: torch.nn.Module, inputs: Any) -> None:
        loop, light = self._loop, self._loop.light
        if torch._C._current_graph_task_id() != -1 or loop.thread.is_capturing:
            return  # a checkpoint's part is computed again
        entered = perf_counter_ns()
        self.settle()
        self._num_watched += light.is_on
        is_over = self._is_over and self._num_watched >= MAX_VAIN
        if light.is_on and (is_over or not self._budget.affords(0)):
            loop.watch_modules(False)
        elif (parameter := self._parameter_of(module)) is not None:
            is_stepped = loop.step is not None and bool(loop.step.stepped)
            self._running = _Forward(
                parameter=ref(parameter),
                version=parameter._version,
                after_step=loop.number - 1 + is_stepped,
                size=next((one.numel() for one in _tensors_in(inputs)), 0),
                is_training=module.training,
                before_bytes=self._memory.read()[0],
                mark_bytes=self._memory.highest_mark(),
                began_ns=entered,
            )
        self._spend(entered)

    def ended(self, result: Any) -> None:
        forward, self._running = self._running, None
        if forward is None:
            return
        forward.ended_ns = entered = perf_counter_ns()
        forward.after_bytes = self._memory.read()[0]
        outputs = [*islice(_tensors_in(result), MAX_OUTPUTS)]
        forward.output_bytes = sum(one.untyped_storage().nbytes() for one in outputs)
        nodes = [one.grad_fn for one in outputs if one.grad_fn is not None]
        if nodes and not _is_compiled():
            hook = _Hook(forward)
            forward.hook = ref(hook)
            for node in nodes:
                node.register_prehook(hook)
        self._row.append(forward)
        length = len(self._row) + (self._pass.record.num_batches if self._pass else 0)
        if length >= MIN_FORWARDS:
            forward.end_mark_bytes = self._memory.highest_mark()
            if length <= MAX_CALLERS:
                forward.callers = self._callers()
            if length <= MAX_READINGS or not length & (length - 1):
                forward.num_alive = sum(one.is_alive for one in self._row)
        self._spend(entered)

    def _spend(self, entered: int) -> None:
        spent_ns = perf_counter_ns() - entered
        if self._loop.step is None:
            self._budget.spend("evaluations", spent_ns)
        else:
            self._loop.step.recorder_ns += spent_ns

    # What became of them.

    def settle(self) -> None:
        """Decide of those in the row, in their order, as far as is known."""
        row = self._row
        if not self._optimized and not self._loop.num_steps:
            return  # it is not known yet what is trained
        while row and (row[0].is_used or row[0].is_updated or not row[0].is_alive):
            forward = row.popleft()
            if forward.is_used:
                self._trained = (forward.began_ns, forward.size)
                self._close()
            else:
                self._count(forward)
        if self._pass is not None and not row and self._pass.last.is_updated:
            self._close()

    def end(self) -> None:
        self.settle()
        while self._row:
            self._count(self._row.popleft())
        self._close()

    def _count(self, forward: _Forward) -> None:
        if self._pass is not None and self._pass.last.is_before_update(forward):
            self._close()
        going = self._pass
        if going is None:
            is_fed = self._trained[0] < self._loader_began_ns < forward.began_ns
            began_ns = self._loader_began_ns if is_fed else forward.began_ns
            record = EvaluationRecord(
                after_step=forward.after_step,
                started_ns=epoch_ns(began_ns),
                total_us=0.0,
                num_batches=0,
                site=None,
                memory=[EvaluationMemory(0, forward.before_bytes)],
                peak_bytes=forward.before_bytes,
                is_peak_exact=False,
            )
            going = self._pass = _Pass(record=record, first=forward, last=forward, began_ns=began_ns, is_fed=is_fed)
        record = going.record
        record.num_batches += 1
        record.peak_bytes = max(record.peak_bytes, forward.after_bytes)
        record.callers = record.callers or forward.callers
        record.num_alive = max(record.num_alive, forward.num_alive)
        if forward.hook is not None and len(going.graphs) < MAX_READINGS:
            rise = forward.after_bytes - forward.before_bytes
            going.graphs.append(max(0, rise - forward.output_bytes))
        if record.num_batches <= MAX_READINGS:
            record.memory.append(EvaluationMemory(record.num_batches, forward.after_bytes))
        going.size = max(going.size, forward.size)
        going.last = forward

    def _close(self) -> None:
        """Write the pass, unless it is too short or tells nothing: in training mode without a graph."""
        going, self._pass = self._pass, None
        self._is_over = True
        if going is None or going.record.num_batches < MIN_FORWARDS:
            return
        record, first, last = going.record, going.first, going.last
        if first.is_training and not going.is_fed:
            record.is_rollout = 0 < going.size < SMALL * self._trained[1]
            if not record.is_rollout and not going.graphs:
                return
        is_ended = going.is_fed and self._loader_ended_ns > last.ended_ns
        ended_ns = self._loader_ended_ns if is_ended else last.ended_ns
        record.total_us = (ended_ns - going.began_ns) / 1000
        record.site = record.callers[0] if record.callers else None
        record.graph_bytes = round(median(going.graphs)) if going.graphs else None
        if record.num_batches > MAX_READINGS:
            record.memory.append(EvaluationMemory(record.num_batches, last.after_bytes))
        mark_bytes = last.end_mark_bytes
        if mark_bytes is not None and mark_bytes > (first.mark_bytes or 0):
            record.peak_bytes = mark_bytes
            record.is_peak_exact = True
        self._num_rollouts += record.is_rollout
        if not record.is_rollout:
            self._mark_step(first)
            if self._num_watched < MAX_VAIN:
                self._num_watched = 0
        if not record.is_rollout or self._num_rollouts <= MAX_ROLLOUTS:
            self._lines.write(record)

    def _mark_step(self, first: _Forward) -> None:
        """The step that it lies in tells nothing of the others' length, unless they all hold one."""
        loop, step = self._loop, self._loop.step
        before, self._evaluated_step = self._evaluated_step, first.after_step
        if first.after_step <= before + 1:
            return
        if loop.light.is_on:
            loop.light.steps.is_interrupted = True
        elif step is not None and step.start_ns <= first.began_ns:
            step.has_pause = True

    # Modules.

    def _parameter_of(self, module: torch.nn.Module) -> torch.Tensor | None:
        """One that an optimizer has; before the first update any that requires a gradient."""
        known = self._parameters.get(id(module), self)
        if known is None:
            return None
        found = None if isinstance(known, Evaluations) else known()
        if found is None:
            optimized = set().union(*self._optimized.values())
            every = (one for one in module.parameters() if one.requires_grad)
            found = next((one for one in every if not optimized or id(one) in optimized), None)
            self._parameters[id(module)] = None if found is None else ref(found)
        return found

    def _callers(self) -> list[str]:
        frames = (one for one in callers(sys._getframe()) if self._sites.is_user_code(one.f_code))
        return [self._sites.of_line(one.f_code, one.f_lineno) for one in islice(frames, MAX_CALLERS)]


def start(session: Session) -> None:
    loop, lines = session.loop, session.lines(EVALUATIONS_FILE)
    evaluations = Evaluations(
        loop=loop,
        memory=session.memory,
        sites=session.sites,
        budget=session.budget,
        lines=lines,
    )
    guard = session.shell.guard("evaluations")
    session.undo_at_end([call_before(torch.nn.Module, "eval", guard(evaluations.watch))])
    for listeners, function in (
        (loop.module_began, evaluations.began),
        (loop.module_ended, evaluations.ended),
        (loop.loader_began, evaluations.loader_began),
        (loop.loader_ended, evaluations.loader_ended),
        (loop.optimizer_began, evaluations.note_optimizer),
        (loop.backward_ended, evaluations.settle),
        (loop.step_ended, evaluations.note_step),
        (loop.light.mode_listeners, evaluations.note_mode),
    ):
        session.subscribe(listeners, "evaluations", function)
    session.on_end("evaluations", evaluations.end)


def _is_compiled() -> bool:
    """Whether autograd itself is compiled: a hook would have it compiled anew."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(module, "compiled_autograd_enabled", False))


def _tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple) and depth < MAX_DEPTH:
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(one, depth + 1)
