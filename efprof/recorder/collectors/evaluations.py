"""Sees evaluations: two or more forward passes in a row, through whose outputs no backward pass goes.

A hook on the node of an output is called where a backward pass goes through it, and dies with the graph. What is not
used before the next update is evaluated, or acts: a rollout. In light steps modules are watched from a call of `eval()`
or a loader's start on, until a forward pass is used again; without either, where graphs were built between bursts that
belong to no step.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from statistics import median
from time import perf_counter_ns, thread_time_ns
from typing import Any, NamedTuple
from weakref import ref

import torch

from efprof.artifacts.readings import EVALUATIONS_FILE, EvaluationMemory, EvaluationRecord
from efprof.recorder.budget.sampling import Budget
from efprof.recorder.collectors.backward_calls import is_autograd_compiled
from efprof.recorder.loop.device import Memory
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.loop.steps import epoch_ns
from efprof.recorder.numbers.step_numbers import nodes_of, parameters_of, tensors_in
from efprof.recorder.session.session import Session
from efprof.recorder.session.sites import Sites
from efprof.recorder.session.writing import LineWriter

MIN_FORWARDS = 2
"""A single one among others is a detached target, a skipped batch, a probe of shapes."""
MAX_READINGS = 32
"""Forward passes of one evaluation whose memory is written, beside the last: they show whether each adds to it."""
COUNTED = 256
"""After so many, lines are read and graphs that are alive counted at every 64th forward pass."""
COUNTED_ALONE = 8
"""Of so many forward passes of a long row without graphs one is looked at: a policy acts thousands of times."""
MAX_ROW = 10_000
"""Forward passes of an evaluation before training, or whose graphs are kept."""
MAX_ROLLOUTS = 100
"""Written of a run: they are parts of its steps."""
MAX_CALLERS = 4
MAX_OUTPUTS = 8
SMALL = 0.5
"""Of the input of a forward pass that is trained on: a policy acts on one observation, and learns from many."""
MAX_ANNOUNCED = 8
"""In vain: layers that are put in evaluation mode in each step announce nothing, nor do graphs that grow and shrink."""
MAX_VAIN = 1000
"""Forward passes watched in light steps for an evaluation that nothing announces. One takes 100 us to 250 us of a step
of 3 ms, which leaves nothing of ours in the caches."""

count_nodes: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
"""Of all the graphs that were built in this thread so far."""


class _Place(NamedTuple):
    """Where a parameter is held: a weak reference to itself would keep it from being swapped."""

    owner: ref[torch.nn.Module]
    name: str

    def __call__(self) -> torch.Tensor | None:
        owner = self.owner()
        # Not as an attribute, which a program that traces the module would see.
        parameters = {} if owner is None else owner._parameters
        return parameters[self.name] if self.name in parameters else None  # noqa: SIM401 - a script module has no get


@dataclass(kw_only=True, slots=True)
class _Forward:
    """One call of an outermost module; `size` is the number of elements of its first input, `is_part` whether that is
    a part of a tensor that is there, as of the data: a policy acts on what is made for it.
    """

    parameter: _Place
    """One that an optimizer has, and its version: another one after the next update."""
    version: int
    after_step: int
    size: int
    is_part: bool
    is_training: bool
    before_bytes: int
    mark_bytes: int | None
    """The CUDA allocator's own before it; `end_mark_bytes` after it."""
    began_ns: int
    started_ns: int
    """When a loader started for it, after the forward pass before; else when it began itself."""
    ended_ns: int = 0
    after_bytes: int = 0
    output_bytes: int = 0
    end_mark_bytes: int | None = None
    num_alive: int = 0
    """Graphs of the row, with its own."""
    is_used: bool = False
    hook: ref[Callable[[object], None]] | None = None
    """None where it has no graph."""
    callers: list[str] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        return self.hook is not None and self.hook() is not None

    @property
    def is_updated(self) -> bool:
        parameter = self.parameter()
        return parameter is None or parameter._version != self.version


class Evaluations:
    def __init__(self, loop: Loop, memory: Memory, sites: Sites, budget: Budget, lines: LineWriter) -> None:
        self._loop = loop
        self._memory = memory
        self._sites = sites
        self._budget = budget
        self._lines = lines
        self._running: _Forward | None = None
        self._row: list[_Forward] = []
        """Those of which it is not known yet whether they are used."""
        self._passed: list[_Forward] = []
        """Those before them that were not: the first ones and the last."""
        self._num_passed = self._num_alive = self._peak_bytes = 0
        self._optimizers = set[int]()
        self._optimized = set[int]()
        self._parameters: dict[int, _Place | None] = {}
        """Of each module, by its `id`, one that an optimizer has."""
        self._used: _Forward | None = None
        self._began_ns = self._loader_ns = 0
        """When a forward pass began last, and a loader started last."""
        self._is_over = False
        """Whether an evaluation, or a forward pass that was used, is over since the watch began."""
        self._announced = Counter[int]()
        """How often by whom, since the last evaluation."""
        self._num_rollouts = 0
        self._evaluated_step = -1
        self._num_watched = MAX_VAIN
        self._full: list[tuple[int, int]] = []
        """Of the first and the last of full steps in a row: its number, and how many nodes graphs had had before it."""
        self._light = (0, 0)
        """The same where light steps began last: within the step of this number."""
        self._per_step = inf
        """Nodes of a full step at least: one may hold an evaluation."""

    # What the loop tells.

    def announce(self, who: object) -> None:
        """A loader starts, or a module is put in evaluation mode, maybe in each step anew."""
        self._announced[id(who)] += 1
        if self._announced[id(who)] <= MAX_ANNOUNCED:
            self.watch()

    def watch(self) -> None:
        """An evaluation may begin: see the calls of modules, in light steps too."""
        loop = self._loop
        if loop.light.is_on and loop.thread.is_training_thread and self._budget.affords_evaluation():
            self.settle()
            self._is_over = False
            loop.watch_modules(True)

    def loader_began(self, loader: object) -> None:
        self._loader_ns = perf_counter_ns()
        self.announce(loader)

    def optimizer_began(self, _: object, optimizer: torch.optim.Optimizer) -> None:
        if id(optimizer) in self._optimizers:
            return
        own = set(map(id, parameters_of(optimizer)))
        if not self._optimizers:
            self._row = [one for one in self._row if id(one.parameter()) in own]
        self._optimizers.add(id(optimizer))
        self._optimized |= own
        self._parameters.clear()

    def step_began(self, step: OpenStep) -> None:
        self._full = [*self._full[:1], (step.number, count_nodes())]

    def note_mode(self, is_full: bool) -> None:
        """Whether graphs were built in the light steps that are over which belong to none of them."""
        now = (self._loop.num_steps, count_nodes())
        if not is_full:
            steps, nodes = _difference(self._full[0], self._full[-1]) if self._full else (0, 0)
            if steps and nodes:
                self._per_step = min(self._per_step, nodes / steps)
            self._full, self._light = [], now
            if self._num_watched < MAX_VAIN:
                self.watch()
            return
        steps, nodes = _difference(self._light, now)
        if (steps + MIN_FORWARDS - 1) * self._per_step < nodes:
            self._announced[id(self)] += 1
            if self._announced[id(self)] <= MAX_ANNOUNCED:
                self._num_watched = 0

    def module_began(self, module: torch.nn.Module, inputs: Any) -> None:
        loop, light = self._loop, self._loop.light
        is_computed_again = torch._C._current_graph_task_id() != -1  # as a checkpoint's part
        is_traced = torch._C._get_tracing_state() is not None or torch._C._len_torch_dispatch_stack()
        if is_computed_again or is_traced or loop.thread.is_capturing:
            return
        entered, spent_from = perf_counter_ns(), thread_time_ns()
        self.settle()
        self._num_watched += light.is_on
        is_over = self._is_over and self._num_watched >= MAX_VAIN
        if light.is_on and (is_over or not self._budget.affords_evaluation()):
            loop.watch_modules(False)
        elif self._goes_on(module):
            return
        elif (place := self._parameter_of(module)) is not None and (parameter := place()) is not None:
            is_stepped = loop.step is not None and bool(loop.step.stepped)
            first = next(iter(tensors_in(inputs)), None)
            size = 0 if first is None else first.numel()
            base = None if first is None else first._base
            self._running = _Forward(
                parameter=place,
                version=parameter._version,
                after_step=loop.number - 1 + is_stepped,
                size=size,
                is_part=base is not None and base.numel() > size,
                is_training=module.training,
                before_bytes=self._memory.read()[0],
                mark_bytes=self._memory.highest_mark(),
                began_ns=entered,
                started_ns=self._loader_ns if self._loader_ns > self._began_ns else entered,
            )
            self._began_ns = entered
        self._spend(spent_from)

    def _goes_on(self, module: torch.nn.Module) -> bool:
        """Count the forward pass, and no more, where it is one of many alike."""
        if self._num_passed < MAX_READINGS or self._num_passed % COUNTED_ALONE == 0 or torch.is_grad_enabled():
            return False
        last = self._passed[-1]
        if self._row or last.is_updated or self._parameter_of(module) is None:
            return False
        self._num_passed += 1
        last.ended_ns = perf_counter_ns()
        return True

    def module_ended(self, result: Any) -> None:
        forward, self._running = self._running, None
        if forward is None or len(self._row) >= MAX_ROW:
            return
        forward.ended_ns, spent_from = perf_counter_ns(), thread_time_ns()
        forward.after_bytes = self._memory.read()[0]
        outputs = tensors_in(result)[:MAX_OUTPUTS] if torch.is_grad_enabled() else []
        forward.output_bytes = sum(one.numel() * one.element_size() for one in outputs)
        nodes = nodes_of(outputs)
        if nodes and not is_autograd_compiled():

            def use(_: object) -> None:
                """Called where a backward pass runs the node; it dies with the graph, and holds none of it."""
                forward.is_used = True

            forward.hook = ref(use)
            for node in nodes:
                node.register_prehook(use)
        self._row.append(forward)
        length = len(self._row) + self._num_passed
        if length >= MIN_FORWARDS:
            forward.end_mark_bytes = self._memory.highest_mark()
        if length < COUNTED or not length % 64:
            for frame in islice(self._sites.user_frames(), MAX_CALLERS):
                forward.callers.append(self._sites.of_line(frame.f_code, frame.f_lineno))
            forward.num_alive = sum(one.is_alive for one in self._row)
        self._spend(spent_from)

    def _spend(self, spent_from: int) -> None:
        spent_ns = thread_time_ns() - spent_from
        if self._loop.step is None:
            self._budget.spend("evaluations", spent_ns)
        else:
            self._loop.step.recorder_ns += spent_ns

    # What became of them.

    def backward_ended(self) -> None:
        self.settle()

    def at_end(self) -> None:
        self.settle(is_last=True)

    def settle(self, *, is_last: bool = False) -> None:
        """Decide of those in the row, in their order, as far as is known."""
        row = self._row
        if not self._optimized and not self._loop.num_steps:
            return  # it is not known yet what is trained
        while row and (is_last or row[0].is_used or row[0].is_updated or not row[0].is_alive):
            forward = row.pop(0)
            if forward.is_used:
                self._used = forward
                self._close()
            else:
                self._count(forward)
        if self._passed and not row and (is_last or self._passed[-1].is_updated):
            self._close()

    def _count(self, forward: _Forward) -> None:
        if self._passed and self._passed[-1].version != forward.version:
            self._close()  # there was an update, or it is another module
        del self._passed[MAX_READINGS:]
        self._passed.append(forward)
        self._num_passed += 1
        self._num_alive = max(self._num_alive, forward.num_alive)
        self._peak_bytes = max(self._peak_bytes, forward.after_bytes)

    def _close(self) -> None:
        """Write what was not used before one that is, or an update."""
        passed, number, peak_bytes = self._passed, self._num_passed, self._peak_bytes
        num_alive = self._num_alive
        self._passed, self._num_passed, self._num_alive, self._peak_bytes = [], 0, 0, 0
        self._is_over = True
        if number < MIN_FORWARDS:
            return
        first, last, used = passed[0], passed[-1], self._used
        rises = [one.after_bytes - one.before_bytes - one.output_bytes for one in passed if one.hook]
        is_fed = first.started_ns < first.began_ns
        is_made = not (is_fed or any(one.is_part for one in passed))
        is_small = 0 < max(one.size for one in passed) < SMALL * (used.size if used else 0)
        is_rollout = is_made and is_small and (first.is_training or not rises)  # in evaluation mode without graphs
        if first.is_training:
            lines = [one.callers for one in passed]
            is_skipped = used is not None and used.callers in lines
            is_repeated = any(lines.count(line) > 1 for line in lines)
            is_rollout |= is_made and is_repeated and not is_skipped and not rises
            if not is_rollout and (is_skipped or not (is_fed or (is_repeated and rises))):
                return  # batches without an update, or unlike forward passes
        self._num_rollouts += is_rollout
        if self._num_rollouts > MAX_ROLLOUTS * is_rollout > 0:
            return
        if not is_rollout:
            self._mark(first)
        sizes = [(number if one is last else place, one.after_bytes) for place, one in enumerate(passed, 1)]
        mark_bytes = last.end_mark_bytes or 0
        is_peak_exact = mark_bytes > (first.mark_bytes or 0)
        self._lines.write(
            EvaluationRecord(
                after_step=first.after_step,
                started_ns=epoch_ns(first.started_ns),
                total_us=(last.ended_ns - first.started_ns) / 1000,
                num_batches=number,
                site=first.callers[0] if first.callers else None,
                memory=[EvaluationMemory(*size) for size in [(0, first.before_bytes), *sizes]],
                peak_bytes=mark_bytes if is_peak_exact else peak_bytes,
                is_peak_exact=is_peak_exact,
                callers=first.callers,
                graph_bytes=max(0, round(median(rises))) if rises else None,
                num_alive=num_alive,
                is_rollout=is_rollout,
            )
        )

    def _mark(self, first: _Forward) -> None:
        """The step that it lies in tells nothing of the others' length, unless they all hold one."""
        light, step, before = self._loop.light, self._loop.step, self._evaluated_step
        self._evaluated_step = first.after_step
        self._announced.clear()
        if self._num_watched < MAX_VAIN:
            self._num_watched = 0
        if first.after_step > before + 1:
            light.steps.is_interrupted |= light.is_on
            if step is not None and step.start_ns <= first.began_ns:
                step.has_pause = True

    def _parameter_of(self, module: torch.nn.Module) -> _Place | None:
        """One that an optimizer has; before the first update any that requires a gradient."""
        if id(module) not in self._parameters:
            own = self._optimized
            self._parameters[id(module)] = next(
                (
                    _Place(ref(inner), name)
                    for inner in module.modules()
                    for name, one in inner.named_parameters(recurse=False)
                    if one.requires_grad and (not own or id(one) in own)
                ),
                None,
            )
        return self._parameters[id(module)]


def start(session: Session) -> None:
    loop, lines = session.loop, session.lines(EVALUATIONS_FILE)
    evaluations = Evaluations(loop, session.memory, session.sites, session.budget, lines)
    session.before(torch.nn.Module, "eval", "evaluations", evaluations.announce)
    session.attach("evaluations", evaluations)
    session.subscribe(loop.light.mode_listeners, "evaluations", evaluations.note_mode)


def _difference(first: tuple[int, int], last: tuple[int, int]) -> tuple[int, int]:
    return last[0] - first[0], last[1] - first[1]
