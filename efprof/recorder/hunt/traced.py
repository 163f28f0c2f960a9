"""Within a process of a second run that has just imported torch: gives it the first one's state, traces, and tells."""

import atexit
import functools
import math
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from threading import get_ident
from typing import Any

import msgspec
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from efprof.artifacts.files import write_atomically
from efprof.artifacts.hunts import VARIABLE, Hop, HuntPlan, HuntSeen, Operand, Origin, RankPlan, Symptom
from efprof.artifacts.steps import spelled
from efprof.recorder.hooks.patching import Undo, replace
from efprof.recorder.hunt.births import Event
from efprof.recorder.hunt.tensors import described, key_of, plain
from efprof.recorder.hunt.tracer import Tracer
from efprof.recorder.numbers.start_state import set_state
from efprof.recorder.numbers.step_numbers import (
    ScaledLosses,
    global_norm,
    is_plain,
    living,
    parameters_of,
    read_value,
    weighted_losses,
)
from efprof.recorder.session.sites import Sites

NUM_NORMS = 24
"""Passes before the hit after which the norm of every gradient is kept: 0.15 ms each (measured)."""
BEYOND_MEASURE = 1e9
MAX_GROWN = 6
MAX_HOPS = 40
COMPILED_TOLERANCE = 1e-3
"""By which losses may differ where compiled code is traced as eager code."""
MARK = "EFPROF_HUNT_PROCESS"
"""In the environment of what a process starts that trains itself: that is none of the training's ranks."""
NUM_ALIKE = 3
"""Losses in a row by which a resumed training finds its place."""


def start() -> None:
    if MARK in os.environ:
        return
    plan = msgspec.json.decode(Path(os.environ[VARIABLE]).read_bytes(), type=HuntPlan)
    rank = int(os.environ.get("RANK") or 0)
    own = plan.ranks.get(rank) or next(iter(plan.ranks.values()))
    if own.state is not None:
        set_state(own.state)
    hunter = Hunter(plan, own, rank)
    watch(hunter)
    os.register_at_fork(after_in_child=hunter.leave)
    atexit.register(hunter.ended)


def watch(hunter: "Hunter") -> None:
    """Have it told of passes and of scaled losses, until it leaves."""
    original, scale, update = torch.autograd.backward, torch.amp.GradScaler.scale, torch.amp.GradScaler.update

    @functools.wraps(original)
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        if torch._C._current_graph_task_id() != -1 or hunter.is_over:  # of a checkpoint, within a pass
            return original(tensors, grad_tensors, *args, **kwargs)
        hunter.pass_began(tensors, grad_tensors)
        result = original(tensors, grad_tensors, *args, **kwargs)
        hunter.pass_ended()
        return result

    @functools.wraps(scale)
    def watched_scale(scaler: Any, outputs: Any) -> Any:
        scaled = scale(scaler, outputs)
        if scaled is not outputs:
            hunter.scaled.note(outputs, scaled, getattr(scaler, "_scale", None))
        return scaled

    @functools.wraps(update)
    def watched_update(*args: Any, **kwargs: Any) -> None:
        update(*args, **kwargs)
        hunter.scaled.is_used_up = True

    scaler = torch.amp.GradScaler
    undo = replace(torch.autograd, "backward", backward), replace(scaler, "scale", watched_scale)
    hunter.undo += [*undo, replace(scaler, "update", watched_update)]
    if hunter.begins_at_once:
        hunter.begin()


class Hunter:
    """Counts the passes, compares the losses of steps with the recorded ones, and ends the process at the hit."""

    def __init__(self, plan: HuntPlan, own: RankPlan, rank: int) -> None:
        self.is_over = False
        self._plan, self._own, self._rank = plan, own, rank
        self._tracer = Tracer(Sites(Path(plan.root), lambda _: None))
        self._is_tracing = False
        self._number = -1
        self._is_placed = not plan.is_resumed
        self._losses: list[float | None] = []
        """Of passes, for those of the step that is open, or till the place is found."""
        self._step = 0
        self._num_equal = 0
        self.scaled = ScaledLosses()
        self._norms = deque[dict[int, float]](maxlen=NUM_NORMS)
        """By the parameter's id."""
        self._grown: list[Operand] = []
        self._outermost: dict[int, torch.nn.Module] = {}
        self.undo: list[Undo] = []

    @property
    def begins_at_once(self) -> bool:
        return self._own.first_traced <= 0 and not self._plan.is_resumed

    def begin(self) -> None:
        self._is_tracing = True
        modules, thread = self._tracer.places.modules, get_ident()

        def entered(module: torch.nn.Module, _: object) -> None:
            if get_ident() == thread:
                if not modules:
                    self._outermost[id(module)] = module
                modules.append(module)

        def left(*_: object) -> None:
            if get_ident() == thread and modules:
                modules.pop()

        hooks = torch.nn.modules.module
        self.undo.append(hooks.register_module_forward_pre_hook(entered).remove)
        self.undo.append(hooks.register_module_forward_hook(left, always_call=True).remove)
        self.undo.append(register_optimizer_step_pre_hook(self.update_began).remove)
        with torch._C._DisableTorchDispatch():
            self._tracer.old_buffers = dict(_old_buffers())
        self._trace_here()

    def _trace_here(self) -> None:
        """In this thread, below the program's own modes, which it takes off again itself."""
        modes = _get_current_dispatch_mode_stack()
        if self._tracer not in modes:
            for _ in modes:
                _pop_mode()
            for mode in (self._tracer, *modes):
                _push_mode(mode)
            self.undo.append(self._leave_here)

    def _leave_here(self) -> None:
        modes = _get_current_dispatch_mode_stack()
        for _ in modes:
            _pop_mode()
        for mode in modes:
            if mode is not self._tracer:
                _push_mode(mode)

    def pass_began(self, tensors: Any, gradients: Any) -> None:
        if self._number == -1:
            os.environ[MARK] = str(os.getpid())
        if self._is_placed and self._number >= self._own.last_pass:
            self._end("over")
        self._number += 1
        self._tracer.pass_number = self._number
        pairs = [(loss, self._value(loss, gradient)) for loss, gradient in weighted_losses(tensors, gradients)]
        total = sum(value for _, value in pairs) if pairs else None
        if self._is_tracing:
            with torch._C._DisableTorchDispatch():
                self._note_grown()
        if self._is_tracing and self._number >= self._own.first_hit and total is not None and not math.isfinite(total):
            self._hit("loss", [loss for loss, value in pairs if not math.isfinite(value)])
        self._losses.append(total)

    def _value(self, loss: torch.Tensor, gradient: torch.Tensor | None) -> float:
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            factor = 1.0 if gradient is None else float(read_value(gradient))
            return factor * float(read_value(self.scaled.unscaled(loss)))

    def pass_ended(self) -> None:
        own = self._own
        if self._is_placed:
            self._compare()
        else:
            self._find_place()
        if self._is_placed and self._number >= own.first_hit - NUM_NORMS:
            with torch._C._DisableTorchDispatch(), torch.no_grad():
                self._norms.append(_norms())
        if self._is_tracing:
            self._look_at_gradients(living(torch.optim.Optimizer))
            self._trace_here()
        elif self._is_placed and self._number >= own.first_traced - 1:
            self.begin()

    def update_began(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """What the program makes of its gradients after the pass counts, too."""
        if not self.is_over:
            self._look_at_gradients([optimizer], has_norm=True)

    def _look_at_gradients(self, optimizers: Iterable[torch.optim.Optimizer], *, has_norm: bool = False) -> None:
        """The hit is one that is bad; or, as the recorder takes it, a norm of all that is beyond float32."""
        if self._number < self._own.first_hit or not self._plan.looks_at_gradients:
            return
        gradients = [one.grad for optimizer in optimizers for one in parameters_of(optimizer)]
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            bad = [one for one in gradients if self._tracer.event_of(one) is not None]
            dense = [one for one in gradients if is_plain(one)] if has_norm else []
            overflows = not bad and dense and not math.isfinite(global_norm(dense))
        if bad or overflows:
            self._hit("gradient", bad)

    def _compare(self) -> None:
        """The loss of a step, once its passes are over; one that is not finite is the hit itself."""
        if self._step >= len(self._own.steps) or len(self._losses) < self._own.steps[self._step][0]:
            return
        recorded, here = self._own.steps[self._step][1], _sum(self._losses)
        self._losses.clear()
        if recorded is not None and here is not None:
            if not _are_equal(float(recorded), here, self._tolerance):
                self._end("differs", difference=(self._step, recorded, spelled(here) or 0.0))
            self._num_equal += 1
        self._step += 1

    @property
    def _tolerance(self) -> float:
        return max(self._plan.tolerance, COMPILED_TOLERANCE if self._is_tracing and _is_compiled() else 0.0)

    def _find_place(self) -> None:
        steps = self._own.steps
        for last in range(NUM_ALIKE - 1, len(steps)):
            several = steps[last - NUM_ALIKE + 1 : last + 1]
            num_passes = sum(num for num, _ in several)
            if len(self._losses) >= num_passes and self._are_last(several):
                self._is_placed, self._num_equal, self._step = True, NUM_ALIKE, last + 1
                self._number = sum(num for num, _ in steps[: last + 1]) - 1
                self._losses.clear()
                return

    def _are_last(self, several: list[tuple[int, float | str | None]]) -> bool:
        end = len(self._losses)
        for num, recorded in reversed(several):
            here = _sum(self._losses[end - num : end])
            if recorded is None or here is None or not _are_equal(float(recorded), here, self._plan.tolerance):
                return False
            end -= num
        return True

    def _hit(self, symptom: Symptom, tensors: Sequence[torch.Tensor | None]) -> None:
        with torch._C._DisableTorchDispatch():
            events = [event for one in tensors if (event := self._tracer.event_of(one)) is not None]
            born = [event for event in events if event.root.kind in ("nan", "inf")]
            event = min(born or events, key=lambda one: one.root.origin.number, default=None)
            self._end("hit", symptom=symptom, event=event)

    def _end(self, why: str, event: Event | None = None, **told: Any) -> None:
        self._tell(why, event, **told)
        sys.stdout.flush()
        os._exit(0)

    def ended(self) -> None:
        """The program has, before the hit."""
        if self._number >= 0 and not self.is_over:
            self._tell("ended", None)

    def _tell(self, why: Any, event: Event | None, **told: Any) -> None:
        self.is_over = True
        rank = torch.distributed.get_rank() if _is_distributed() else self._rank
        seen = HuntSeen(
            rank=rank,
            why=why,
            num_passes=self._number + 1,
            num_equal=self._num_equal,
            has_found_place=self._is_placed,
            is_compiled=_is_compiled(),
            is_traced=self._is_tracing,
            errors=self._tracer.errors,
            **told,
        )
        seen.norms = self._norms_by_name() if why == "hit" else {}
        if event is not None:
            way, names = event.way(), dict(self._names())
            seen.grown = self._grown[:MAX_GROWN]
            seen.origin, seen.chain = _origin(way), hops_of(way)
            seen.origin.module = names.get(seen.origin.module, ("", ""))[0]
            for operand in [*seen.origin.operands, *filter(None, [seen.origin.result])]:
                if not operand.is_a:
                    operand.name, operand.is_a = names.get(operand.name, ("", ""))
            state = next((one for one in seen.origin.operands if one.is_a and one.made_at), None)
            if seen.origin.kind == "given" and state is not None:
                seen.origin.site = state.made_at
        write_atomically(Path(self._plan.results) / f"{rank}-{os.getpid()}.json", msgspec.json.encode(seen))

    def _names(self) -> Iterator[tuple[str, tuple[str, str]]]:
        """By where it lies the name of each parameter, buffer and value of an optimizer; of modules by their id."""
        of_parameters: dict[int, str] = {}
        for root in self._outermost.values():
            for name, module in root.named_modules():
                yield f"@{id(module)}", (f"{type(root).__name__}{'.' if name else ''}{name}", "module")
            for is_a, named in (("buffer", root.named_buffers()), ("parameter", root.named_parameters())):
                for name, one in named:
                    if (found := plain(one)) is not None:
                        of_parameters[id(one)] = name
                        yield f"@{key_of(found)}", (name, is_a)
                    if (found := plain(one.grad)) is not None:
                        yield f"@{key_of(found)}", (f"{name}.grad", "gradient")
        for optimizer in living(torch.optim.Optimizer):
            for parameter, state in optimizer.state.items():
                for name, value in state.items():
                    if (found := plain(value)) is not None:
                        yield (
                            f"@{key_of(found)}",
                            (f"{name} of {of_parameters.get(id(parameter), 'a parameter')}", "state"),
                        )

    def _note_grown(self) -> None:
        """Buffers and parameters beyond all measure, when there are some for the first time."""
        for root in self._outermost.values() if not self._grown else ():
            for is_a, named in (("buffer", root.named_buffers()), ("parameter", root.named_parameters())):
                for name, one in named:
                    found = plain(one)
                    if (
                        found is not None
                        and found.is_floating_point()
                        and found.numel()
                        and _most(found) > BEYOND_MEASURE
                    ):
                        told = described(found)
                        told.name, told.is_a, told.made_at = name, is_a, self._tracer.made_at.get(key_of(found), "")
                        self._grown.append(told)

    def _norms_by_name(self) -> dict[str, list[float | str]]:
        named = {id(one): name for root in self._outermost.values() for name, one in root.named_parameters()}
        keys = dict.fromkeys(key for norms in self._norms for key in norms if key in named)
        return {named[key]: [spelled(norms.get(key, 0.0)) or 0.0 for norms in self._norms] for key in keys}

    def leave(self) -> None:
        """In a process that was forked, as a loader's workers are, all goes on as if nobody had traced."""
        self.is_over = True
        while self.undo:
            self.undo.pop()()


def _origin(way: Sequence[Event]) -> Origin:
    """Of what was bad before, where it first meets something that needs a gradient, with the tensor that does."""
    first = way[0].origin
    if way[0].kind == "given":
        met = next((one.origin for one in way if one.needs_grad), way[min(1, len(way) - 1)].origin)
        operands = {one.name: one for one in (*met.operands, *first.operands)}  # what it meets it as, and what it was
        first = msgspec.structs.replace(met, kind="given", operands=list(operands.values()))
    if not first.node and not first.optimizer:
        first.pass_number += 1  # of the pass that is to come
    return first


def _norms() -> dict[int, float]:
    parameters = [one for optimizer in living(torch.optim.Optimizer) for one in parameters_of(optimizer)]
    found = {id(one): one.grad for one in parameters if is_plain(one.grad)}
    norms = torch._foreach_norm([one.to(torch.float32) for one in found.values()]) if found else ()
    return dict(zip(found, (float(one) for one in norms), strict=True))


def _most(tensor: torch.Tensor) -> float:
    return float(tensor.detach().to(torch.float32).nan_to_num(0.0, 0.0, 0.0).abs().max())


def _sum(losses: list[float | None]) -> float | None:
    total: float | None = None
    for one in losses:
        if one is None:
            return None
        total = one if total is None else total + one
    return total


def _are_equal(recorded: float, here: float, tolerance: float) -> bool:
    if math.isnan(recorded) or math.isnan(here) or recorded == here:
        return recorded == here or (math.isnan(recorded) and math.isnan(here))
    return abs(recorded - here) <= tolerance * max(abs(recorded), abs(here))


def _is_compiled() -> bool:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])


def _old_buffers() -> Iterator[tuple[str, tuple[str, str]]]:
    """By where it lies, each tensor that a module has, and is no parameter."""
    for module in living(torch.nn.Module):
        for name, one in (vars(module) | vars(module).get("_buffers", {})).items():
            if (found := plain(one)) is not None and not isinstance(one, torch.nn.Parameter):
                yield f"@{key_of(found)}", (name, "buffer")


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def hops_of(way: Sequence[Event]) -> list[Hop]:
    """What passed it on, each line once in a row; the last ones of a long way."""
    hops: list[Hop] = []
    for one in way:
        if not hops or hops[-1].site != one.origin.site:
            hops.append(Hop(one.origin.operation, one.origin.site))
    return hops[-MAX_HOPS:]
