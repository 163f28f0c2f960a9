"""Sees which parameters get gradients that no optimizer uses, and which of an optimizer get none."""

import time
import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef

from efprof.artifacts.events import ParametersSeen, UntrainedParameters
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.numbers.late_values import LateValues, on_device
from efprof.recorder.numbers.optimizers import built_at
from efprof.recorder.numbers.step_numbers import (
    is_read_late,
    living,
    nodes_behind,
    nodes_of,
    outside_modes,
    parameters_of,
    read_value,
)
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Guard, Note
from efprof.recorder.session.sites import Sites

LOOKS = (3, 12)
"""From these steps on the next one is looked at: programs build and compile in the first ones, and all of the first 20
are recorded in full."""
MAX_NODES = 10_000
"""Of the graphs of such a step, which take 25 ms; what is behind more of them is not seen."""
MAX_SAMPLE = 4096
"""Values of a parameter that are compared."""
NUM_UPDATES = 20
"""Of an optimizer in full steps, without a gradient in any: a head that some batches need has one by then."""
MAX_NAMES = 5
OF_NONE = ("not_optimized", "helper")


@dataclass(eq=False)
class _Watch:
    loop: Loop
    sites: Sites
    note: Note
    late: LateValues
    guard: Guard
    event: ParametersSeen = field(default_factory=lambda: ParametersSeen(step=0))
    num_looks: int = 0
    num_nodes: int = 0
    built: weakref.WeakKeyDictionary[Any, str | None] = field(default_factory=weakref.WeakKeyDictionary)
    """Optimizers that are alive, and the lines that built them."""
    ahead: list[torch.Tensor] = field(default_factory=list)
    """What the pass that runs computes gradients for."""
    fed: dict[int, TensorWeakRef] = field(default_factory=dict)
    """By their `id`, parameters that got a gradient in this step."""
    samples: dict[int, tuple[TensorWeakRef, torch.Tensor]] = field(default_factory=dict)
    """Of those that no optimizer had at the first look."""
    without: weakref.WeakKeyDictionary[Any, tuple[int, list[TensorWeakRef]]] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    """By their optimizer, how many updates were seen, and what had no gradient in any."""

    def optimizer_built(self, optimizer: Any, *_: object) -> None:
        if self.loop.thread.is_training_thread:
            self.built[optimizer] = built_at(self.sites, optimizer)

    def backward_began(self, step: OpenStep, tensors: Any, *_: object) -> None:
        self.ahead = []
        if self.num_looks == len(LOOKS) or step.number < LOOKS[self.num_looks] or self.num_nodes > MAX_NODES:
            return
        for node in nodes_behind(nodes_of(tensors), MAX_NODES):
            self.num_nodes += 1
            leaf = node.variable if type(node).__name__ == "AccumulateGrad" else None
            if type(leaf) is torch.nn.Parameter:  # others are shards, or what a framework has in their place
                self.ahead.append(leaf)

    def backward_ended(self) -> None:
        """Of a pass for given `inputs` the others have no gradient, nor has what its own hook has updated."""
        self.fed |= {id(one): TensorWeakRef(one) for one in self.ahead if one.grad is not None}
        self.ahead = []

    def optimizer_began(self, _: OpenStep, optimizer: torch.optim.Optimizer) -> None:
        self.built.setdefault(optimizer, None)
        if self.samples:
            owned = [self.samples.pop(id(one), None) for one in parameters_of(optimizer)]
            if any(owned) and any(one.why in OF_NONE for one in self.event.untrained):  # it was built later
                self._tell([one for one in self.event.untrained if one.why not in OF_NONE])
        self._count_without(optimizer)

    def step_ended(self, step: OpenStep, _: object) -> None:
        alive = [parameter for one in self.fed.values() if (parameter := one()) is not None]
        self.fed, self.num_nodes = {}, 0
        if not alive or self.loop.steps.probe is not None:  # nobody knows whether an optimizer is in use
            return
        self.num_looks += 1
        left = _left_of(alive, self.built)
        if self.num_looks == 1:
            self.samples = {id(one): (TensorWeakRef(one), _sample_of(one)) for one in left}
            return
        left = [one for one in left if id(one) in self.samples and self.samples[id(one)][0]() is one]
        left = _left_of(left, living(torch.optim.Optimizer)) if left else left
        self.samples = {id(one): self.samples[id(one)] for one in left}
        self.event.num_parameters, self.event.num_elements = len(alive), sum(one.numel() for one in alive)
        self._judge(step, alive, left)

    def _judge(self, step: OpenStep, alive: list[torch.Tensor], left: list[torch.Tensor]) -> None:
        """Where one of them has changed, the program, or a framework that has copies, updates such by other means."""
        ids = set(map(id, alive))
        owner = max(self.built, key=lambda one: len(ids & {*map(id, parameters_of(one))}), default=None)
        found = self._groups(left, owner, step.backward_site) if left else []
        with outside_modes():
            changes = [(self.samples[id(one)][1] != _sample_of(one)).sum() for one in left]

        def take(values: list[float]) -> None:
            self._tell([*self.event.untrained, *([] if any(values) else found)])

        if all(map(is_read_late, changes)) and changes:
            self.late.owe(step.late, [*map(on_device, changes)], self.guard(take))
        elif all(one.is_cpu for one in changes):
            take([float(read_value(one)) for one in changes])

    def _groups(self, left: list[torch.Tensor], owner: Any, site: str | None) -> list[UntrainedParameters]:
        named, found = _names(), list[UntrainedParameters]()
        site = (None if owner is None else self.built[owner]) or site
        for why, is_training in (("not_optimized", True), ("helper", False)):
            alike = [one for one in left if named.get(id(one), ("", True))[1] == is_training]
            if alike:
                found.append(_group(why, alike, owner, site, named))
        return found

    def _count_without(self, optimizer: torch.optim.Optimizer) -> None:
        num, without = self.without.get(optimizer, (0, None))
        if num == NUM_UPDATES:
            return
        every = parameters_of(optimizer) if without is None else [one() for one in without]
        left = [one for one in every if one is not None and one.grad is None and one.requires_grad]
        if without is None and len(left) == len(every):
            return  # as in a step that only others have gradients for
        self.without[optimizer] = num + 1, [*map(TensorWeakRef, left)]
        if left and num + 1 == NUM_UPDATES:
            named, site = _names(), self.built.get(optimizer)
            gone, unused = [one for one in left if id(one) not in named], [one for one in left if id(one) in named]
            groups = (("replaced", gone), ("no_gradient", unused))
            found = [_group(why, some, optimizer, site, named) for why, some in groups if some]
            self._tell([*self.event.untrained, *found])

    def _tell(self, untrained: list[UntrainedParameters]) -> None:
        self.event.at_ns, self.event.step, self.event.untrained = time.time_ns(), self.loop.number, untrained
        self.note(self.event)


def start(session: Session) -> None:
    guard = session.shell.guard("untrained_parameters")
    watch = _Watch(session.loop, session.sites, session.note, session.late_values, guard)
    session.after(torch.optim.Optimizer, "__init__", "untrained_parameters", watch.optimizer_built)
    session.attach("untrained_parameters", watch)


def _left_of(parameters: list[torch.Tensor], optimizers: Iterable[Any]) -> list[torch.Tensor]:
    """Those that none of these optimizers has."""
    owned = {id(one) for optimizer in list(optimizers) for one in parameters_of(optimizer)}
    return [one for one in parameters if id(one) not in owned]


def _sample_of(parameter: torch.Tensor) -> torch.Tensor:
    """Of values all over it: of an embedding a hand-made update changes some rows alone."""
    with outside_modes():
        return parameter.detach().reshape(-1)[:: max(1, parameter.numel() // MAX_SAMPLE)].clone()


def _group(
    why: Any, parameters: list[torch.Tensor], optimizer: Any, site: str | None, named: Any
) -> UntrainedParameters:
    by_size = sorted(parameters, key=lambda one: -one.numel())
    names = Counter(f"{named.get(id(one), ('a parameter',))[0]} {[*one.shape]}" for one in by_size)
    return UntrainedParameters(
        why=why,
        names=[f"{name} ({num} times)" if num > 1 else name for name, num in list(names.items())[:MAX_NAMES]],
        num_parameters=len(parameters),
        num_elements=sum(one.numel() for one in parameters),
        optimizer=type(optimizer).__name__,
        site=site,
        gradient_bytes=sum(one.nbytes for one in parameters),
    )


def _names() -> dict[int, tuple[str, bool]]:
    """By the `id` of each parameter: its path, from the outermost module's class on, and its own module's mode."""
    modules = [one for one in living(torch.nn.Module) if vars(one).get("_modules") is not None]  # else half made
    inner = {id(one) for module in modules for one in vars(module)["_modules"].values()}
    found: dict[int, tuple[str, bool]] = {}
    for root in (one for one in modules if id(one) not in inner):
        for path, module in torch.nn.Module.named_modules(root):
            for name, own in (vars(module).get("_parameters") or {}).items():
                words = filter(None, (type(root).__name__, path, name))
                found.setdefault(id(own), (".".join(words), bool(vars(module).get("training", True))))
    return found
