"""Makes the calls of programs in each state of the recorder, in this process, and writes down all that differs.

To be run in a process of its own, in which nothing was recorded before: what a recording leaves behind would be taken
for what was always there.
"""

import functools
import gc
import json
import pickle
import random
import sys
import tempfile
import threading
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch._dynamo.variables.functions import PolyfilledFunctionVariable

from efprof.artifacts.events import CollectorStopped
from efprof.recorder.holders import growth_watch, holders
from efprof.recorder.launch.start import start_session
from efprof.recorder.session.session import Session
from efprof.recorder.windows import step_events
from efprof.recorder.windows.profiled_window import ProfiledWindow
from efprof.recorder.windows.step_events import StepEvents
from tests.recorder.hooks import interpreter_state as state
from tests.recorder.hooks.outcomes import outcome, outcomes
from tests.recorder.hooks.user_calls import CALLS, COMPILED, HEAVY
from tests.recorder.hooks.user_calls.calls import Calls, scalar, vector
from tests.recorder.recording import EVERY_STEP_IN_FULL, HARDLY_ANY_IN_FULL, Recorded, options_of
from tests.recorder.training import make_batch, make_training, train_step

WINDOW = (200, 400)
"""Steps, of which the calls make some eighty."""

WATCHED_FROM = 640
"""There is a count at so many steps, and a watch after it."""

LIGHT_FROM = 240
"""After two hundred steps no burst of full ones comes without being earned."""

NO_BURST_NS = -1e18
"""Overdrawn by so much: what was earned until then may be enough once full steps seem cheaper, as on a busy machine."""

Differences = dict[str, dict[str, tuple[str, str]]]
"""By state and call: without the recorder, and in this state."""

kept: list[torch.Tensor] = []
"""What the training keeps, for there to be something that grows: a watch is for that."""


class Training:
    """Plain steps, in one of which calls are made: between the forward pass and the backward one."""

    def __init__(self) -> None:
        self.model, self.optimizer = make_training()

    def steps_until(self, is_reached: Callable[[], bool]) -> None:
        for _ in range(2 * WATCHED_FROM):
            if is_reached():
                return
            kept.append(train_step(self.model, self.optimizer, *make_batch()))
        raise AssertionError("the recorder never came to this state")

    def step_with(self, call: Callable[[], Any]) -> Any:
        inputs, targets = make_batch()
        self.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
        made = call()
        loss.backward()
        self.optimizer.step()
        return made


class Snapshot:
    """All that a program could find changed."""

    def __init__(self) -> None:
        """In a thread of its own: neither a profiler nor a tracer of this one goes along."""
        self.globals = state.global_state()
        looking = threading.Thread(target=self._look)
        looking.start()
        looking.join()

    def _look(self) -> None:
        modules, types = state.all_modules(), state.all_types()
        self.attributes = state.attributes(modules, types)
        self.contents = state.contents(modules)
        self.slots = {kind: state.slots_of(kind) for kind in types}
        self.checks = {kind: state.checks_of(kind) for kind in state.derived_types()}

    def since(self, before: "Snapshot") -> dict[str, list[str]]:
        slots = [
            f"{state.name_of(kind)}: {slot}"
            for kind, seen in before.slots.items()
            for slot in state.changed_slots(seen, self.slots.get(kind, seen))
        ]
        checks = [
            f"{state.name_of(kind)}: {check}"
            for kind, seen in before.checks.items()
            for check, value in self.checks.get(kind, {}).items()
            if seen[check] != value
        ]
        return {
            "attributes": state.changed_attributes(before.attributes, self.attributes),
            "contents": state.changed_contents(before.contents, self.contents),
            "slots": sorted(slots),
            "checks": sorted(checks),
            "globals": sorted(name for name, value in self.globals.items() if before.globals[name] != value),
        }


class Findings:
    """What was seen in each state, against what was seen before the recorder came."""

    def __init__(self, calls: Calls, *, takes_snapshots: bool) -> None:
        self.calls = calls
        self.takes_snapshots = takes_snapshots
        self.outcomes: dict[str, dict[str, str]] = {}
        self.changes: dict[str, dict[str, list[str]]] = {}
        self.own_changes: dict[str, list[str]] = {}
        self.stopped: list[str] = []
        self.outside: dict[str, list[str]] = {}
        self.taken: dict[str, Calls] = {}
        self.before: Snapshot | None = None

    def make_bare(self) -> None:
        """Once to warm up, then as all others are compared with it, and once more to see what it tells by itself."""
        _outcomes(self.calls)
        self.outcomes["bare"] = _outcomes(self.calls)
        self.outcomes["taken before"] = outcomes(take())
        if self.takes_snapshots:
            before = Snapshot()
            self.outcomes["bare again"] = _outcomes(self.calls)
            self.before = Snapshot()
            self.own_changes = self.before.since(before)
        else:
            self.outcomes["bare again"] = _outcomes(self.calls)

    def make(self, name: str, is_in: Callable[[], bool] = lambda: True, left_out: Container[str] = ()) -> None:
        """Make the calls in the state of this name; some end it, and so those after them are not made in it."""
        if self.before is not None:
            _seed()
            self.changes[name] = {
                kind: sorted(set(found) - set(self.own_changes[kind]))
                for kind, found in Snapshot().since(self.before).items()
            }
        _seed()
        made, self.outside[name] = self.outcomes.setdefault(name, {}), []
        for call, function in self.calls.items():
            if call not in left_out:
                self.outside[name] += [call] * (not is_in())
                made[call] = outcome(function)
        self.taken[name] = take()

    def differences(self) -> Differences:
        bare = self.outcomes["bare"]
        found = {
            name: {call: (bare[call], seen) for call, seen in made.items() if bare[call] != seen}
            for name, made in self.outcomes.items()
            if name != "taken before"
        }
        expected = self.outcomes["taken before"]
        for name, taken in self.taken.items():
            made = outcomes(taken)
            found[f"taken {name}"] = {
                call: (expected[call], seen) for call, seen in made.items() if expected[call] != seen
            }
        return found


def _outcomes(calls: Calls) -> dict[str, str]:
    _seed()
    return outcomes(calls)


def _seed() -> None:
    """A call that draws a number at random draws the same in each state."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def take() -> Calls:
    """What a program takes in one state and uses in another."""
    it, weight = scalar(), vector(requires_grad=True)
    batches = iter(torch.utils.data.DataLoader(list(range(6)), batch_size=2))
    first = next(batches)
    rows = iter(vector())
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    backward, grad, clip = torch.autograd.backward, torch.autograd.grad, torch.nn.utils.clip_grad_norm_
    methods = {
        name: getattr(it, name) for name in ("item", "tolist", "cpu", "__bool__", "__float__", "__add__", "__eq__")
    }
    saved = _pickled({"model": model, "weight": weight, "optimizer": optimizer})
    compile_, collect, evaluate = torch.compile, gc.collect, model.eval
    return {
        **{name: (lambda method=method: method(*[2] * _num_operands(method))) for name, method in methods.items()},
        "a method's pickle": lambda: _unpickled(_pickled(methods["item"]))(),
        "the rest of a loader": lambda: (first, list(batches)),
        "the rest of a tensor": lambda: list(rows),
        "a graph": lambda: ((weight * 2).sum().backward(), weight.grad),
        "backward": lambda: (lambda it: (backward(it.sum()), it.grad))(vector(requires_grad=True)),
        "grad": lambda: (lambda it: grad(it.sum(), it))(vector(requires_grad=True)),
        "clip_grad_norm_": lambda: clip([torch.nn.Parameter(vector())], 1.0),
        "an optimizer's step": lambda: (optimizer.step(), schedule.get_last_lr()),
        "compile": lambda: compile_(vector, disable=True)(),
        "collect": lambda: collect(0) >= 0,
        "eval": lambda: evaluate() is model,
        "a pickle": lambda: sorted(_unpickled(saved)["model"].state_dict()),
    }


def _num_operands(method: Any) -> int:
    return int(method.__name__ in ("__add__", "__eq__"))


def _pickled(value: Any) -> bytes:
    return pickle.dumps(value)


def _unpickled(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301


@contextmanager
def recording(findings: Findings, **fields: Any) -> Iterator[Session]:
    """As `efprof record` has it, from the start in a process to the end of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        session = start_session(options_of(folder, **fields))
        assert session is not None
        try:
            yield session
        finally:
            session.end()
        stopped = Recorded(folder=folder).events(CollectorStopped)
        findings.stopped += [f"{one.collector}: {one.reason}" for one in stopped]


def record_in_full(findings: Findings) -> None:
    with recording(findings, trace_steps=(WINDOW,), holders=True, overhead=EVERY_STEP_IN_FULL) as session:
        training, loop = Training(), session.loop
        training.steps_until(lambda: loop.num_steps >= 3)
        training.step_with(lambda: findings.make("in a full step", lambda: not loop.light.is_on))
        assert loop.number < WINDOW[0], "the calls have made more steps than there were to be"
        training.step_with(lambda: make_while_counting(findings))
        assert loop.number < WINDOW[0], "the calls have made more steps than there were to be"
        training.steps_until(torch._C._autograd._profiler_enabled)
        training.step_with(lambda: findings.make("in a window", torch._C._autograd._profiler_enabled, HEAVY))
        training.steps_until(lambda: not torch._C._autograd._profiler_enabled() and sys.gettrace() is None)
        findings.make("after a window")
        assert loop.number < WATCHED_FROM
        training.steps_until(lambda: loop.number >= WATCHED_FROM and sys.gettrace() is not None)
        findings.make("in a watch", lambda: sys.gettrace() is not None)
    findings.make("after the end")


def make_while_counting(findings: Findings) -> None:
    """As in the step before a window that nobody asked for."""
    events = StepEvents()
    assert events.begin()
    findings.make("while calls are counted", lambda: sys.getprofile() is not None)
    events.stop()


def record_lightly(findings: Findings) -> None:
    with recording(findings, overhead=HARDLY_ANY_IN_FULL) as session:
        training, loop = Training(), session.loop
        training.steps_until(lambda: loop.number >= LIGHT_FROM and loop.light.is_on)
        loop.sampling._credit_ns = NO_BURST_NS
        findings.make("in a light step", lambda: loop.light.is_on)
    findings.make("after the end of light steps")


def held_by_others() -> list[str]:
    """Tables and caches with a function of the recorder among others' once all hooks are out."""
    gc.unfreeze()
    gc.collect()
    # Of `torch.compiler.substitute_in_graph`, which torch has no way to undo; the functions are called by nobody then.
    substitutes = PolyfilledFunctionVariable._get_polyfill_handlers()
    found = []
    for one in gc.get_objects():
        if one is substitutes:
            continue
        if issubclass(type(one), dict | set | functools._lru_cache_wrapper) and not _is_namespace_of_ours(one):
            functions = [part for part in gc.get_referents(one) if type(part) is FunctionType]
            ours = [part for part in functions if _is_ours(part)]
            if len(ours) < len(functions):  # else it is a table of the recorder's
                found += [f"{type(one).__name__} {str(one)[:200]}: {part.__qualname__}" for part in ours]
    return found


def _is_namespace_of_ours(one: object) -> bool:
    names = [dict.get(one, name) for name in ("__name__", "__module__")] if issubclass(type(one), dict) else []
    return any(str(name).startswith(state.OURS) for name in names)


def _is_ours(function: FunctionType) -> bool:
    return str(function.__globals__.get("__name__")).startswith("efprof.recorder")


def main(result: str) -> None:
    """All calls but those that compile, with all that the recorder changes."""
    torch.set_warn_always(True)
    _run(Findings(CALLS, takes_snapshots=True), result)


def main_compiled(result: str) -> None:
    _run(Findings(COMPILED, takes_snapshots=False), result)


def _run(findings: Findings, result: str) -> None:
    torch.set_num_threads(1)
    growth_watch.MAX_NS *= 100  # the watch goes on for as long as the calls take
    holders.MAX_WATCHED_STEPS *= 100
    step_events.MAX_EVENTS *= 100
    ProfiledWindow._write = lambda *_: []  # type: ignore[method-assign] # it would take longer than all the calls
    findings.make_bare()
    record_in_full(findings)
    record_lightly(findings)
    _write(findings, result)


def _write(findings: Findings, result: str) -> None:
    told = {
        "num_calls": len(findings.calls),
        "differences": findings.differences(),
        "changes": findings.changes,
        "stopped": findings.stopped,
        "outside": findings.outside,
        "held": held_by_others(),
    }
    Path(result).write_text(json.dumps(told))
