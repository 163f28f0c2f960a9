"""Sees every operator, and keeps of each tensor that holds NaN or Inf which operation made the first of them.

A tensor is known by its storage. What an operation makes of bad inputs is passed on from them; of good ones it is born
there: NaN from none, Inf from finite numbers. Within backward, autograd's node has the sequence number that was the
thread's when the forward operation ran, and so leads to the user's line.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from efprof.artifacts.hunts import Kind, Operand, Origin
from efprof.recorder.hunt.births import Event
from efprof.recorder.hunt.places import Place, Places
from efprof.recorder.hunt.tensors import described, is_bad, is_whole, is_zero_where_bad, key_of, plain, plain_in
from efprof.recorder.session.sites import Sites

UNFILLED = ("empty", "new_empty", "resize")
"""How operators begin whose result is still to be written to."""
ALL_WRITTEN = frozenset({"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_",
                         "_foreach_copy_", "_foreach_zero_"})  # fmt: skip
"""What was there before they write does not matter."""
SWALLOWING = frozenset({"div", "reciprocal", "exp", "rsqrt", "sigmoid", "tanh"})
"""What makes a finite number of Inf: of what comes of that, the Inf is the cause."""
COPYING = frozenset({"_to_copy", "clone", "contiguous"})
"""What a parameter or buffer goes through under autocast, say: it is that parameter still."""
READING = "_local_scalar_dense"
"""What `item()` calls."""
RUNNING = ("running_mean", "running_var")
MASKS = ("Where", "MaskedFill", "Index", "MaskedSelect", "MaskedScatter")
MAX_COPIED = 2**20
"""Elements of a tensor that is copied before it is overwritten, so that its numbers can be told."""
MAX_TOLD = 6


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Turned on in the training thread, it goes with autograd into its threads."""

    def __init__(self, sites: Sites) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places = Places(sites)
        self.pass_number = 0
        self.errors: list[str] = []
        self.events: dict[int, Event] = {}
        self.copied: dict[int, int] = {}
        """By the storage of a copy in another precision, what it is a copy of."""
        self.read: Event | None = None
        """The bad tensor that the program read as a number last."""
        self.swallowed: dict[int, Event] = {}
        """By storage, the Inf that a finite number was made of."""
        self._num_origins = 0
        self.old_buffers: dict[str, tuple[str, str]] = {}
        """By where they lie, those that there were when tracing began: their names, and that they are buffers."""
        self.made_at: dict[int, str] = {}
        """By storage, the user's line that wrote to it last."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        call = self._guarded(Call, self, func, args, kwargs)
        result = func(*args, **kwargs)
        if call is not None:
            self._guarded(call.ended, result)
        return result

    def _guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:  # a kind of tensor that cannot do this
            if len(self.errors) < MAX_TOLD:
                self.errors.append(f"{type(error).__name__}: {error}"[:200])
            return None

    def event_of(self, tensor: object) -> Event | None:
        """None of one that is finite, or whose numbers cannot be had."""
        found = plain(tensor)
        if found is None or not is_bad(found):
            return None
        return self.events.get(key_of(found)) or self.given(found, Place(None, "", None), "")

    def given(self, tensor: torch.Tensor, place: Place, operation: str) -> Event:
        """It was bad before any operation that was seen."""
        origin = self.origin("given", operation, place, [tensor])
        origin.operands = [self.told(tensor)]
        event = Event("given", origin, parents=(), has_nan=bool(torch.isnan(tensor).any()), needs_grad=False)
        event.is_mask = not event.has_nan and not bool((tensor == math.inf).any())
        self.events[key_of(tensor)] = event
        return event

    def told(self, tensor: torch.Tensor) -> Operand:
        """Of a buffer that was there from the start its name, before another one takes its place."""
        told = described(tensor)
        told.made_at = self.made_at.get(key_of(tensor), "")
        told.name, told.is_a = self.old_buffers.get(told.name, (told.name, ""))
        return told

    def origin(self, kind: Kind, operation: str, place: Place, operands: Sequence[torch.Tensor]) -> Origin:
        node = None if place.is_users else torch._C._current_autograd_node()
        self._num_origins += 1
        return Origin(
            kind=kind,
            operation=operation,
            number=self._num_origins,
            pass_number=self.pass_number,
            site=place.site,
            library_site=place.library_site,
            module=f"@{id(place.module)}" if place.module is not None else "",
            node=node.name() if node is not None else "",
            operands=[] if kind == "passed" else [described(one) for one in operands[:MAX_TOLD]],
        )


class Call:
    """One operator: what it is given, before it runs, and what it made of that."""

    def __init__(self, tracer: Tracer, func: Any, args: Any, kwargs: Any) -> None:
        self._tracer = tracer
        self._name: str = func._schema.name.partition("::")[2]
        self._place = tracer.places.now()
        self._is_by_list = self._name.startswith(("_foreach", "_fused"))
        self._given = [[*plain_in(one)] for one in (*args, *kwargs.values())]
        self._scalars = [float(one) for one in tree_leaves((args, kwargs)) if type(one) in (int, float)]
        self._made_at = {key_of(one): tracer.made_at.get(key_of(one), "") for many in self._given for one in many}
        self._written: dict[int, torch.Tensor | None] = {}
        """By storage: how it was before, where that was kept."""
        self._was_bad = set[int]()
        """Of these, what was bad before where it was written to."""
        is_batch_norm = "batch_norm" in self._name and "backward" not in self._name
        if (func._schema.is_mutable or is_batch_norm) and not self._name.startswith(UNFILLED):
            for place, argument in enumerate(func._schema.arguments):
                is_running = is_batch_norm and argument.name in RUNNING  # of which torch does not say that it writes
                if is_running or (argument.alias_info is not None and argument.alias_info.is_write):
                    value = args[place] if place < len(args) else kwargs.get(argument.name)
                    for one in plain_in(value):
                        self._note_written(one, is_all=self._name in ALL_WRITTEN or argument.is_out)

    def _note_written(self, tensor: torch.Tensor, *, is_all: bool) -> None:
        key, events = key_of(tensor), self._tracer.events
        self._written[key] = None
        if not is_all and is_bad(tensor):
            self._was_bad.add(key)
            if key not in events:
                self._tracer.given(tensor, self._place, self._name)
            return
        if is_whole(tensor):
            events.pop(key, None)
        if not is_all and tensor.numel() <= MAX_COPIED and not self._is_by_list:
            self._written[key] = tensor.clone()

    def ended(self, result: object) -> None:
        made = [one for one in plain_in(result) if one.numel()]
        self._tracer.made_at.update(dict.fromkeys((*map(key_of, made), *self._written), self._place.site or ""))
        for one in made:
            self._tracer.copied.pop(key_of(one), None)
            if self._name in COPYING and self._given[0]:
                self._tracer.copied[key_of(one)] = key_of(self._given[0][0])
        if self._name.startswith(UNFILLED):
            return
        if self._name == READING and type(result) is float and not math.isfinite(result):
            self._tracer.read = self._tracer.event_of(self._given[0][0])
        known = set(map(key_of, made))
        made += [one for many in self._given for one in many if key_of(one) in self._written.keys() - known]
        for place, tensor in enumerate(made):
            self._tracer.swallowed.pop(key_of(tensor), None)
            if is_bad(tensor):
                given = (
                    self._beside(place, tensor) if self._is_by_list else [one for many in self._given for one in many]
                )
                self._tracer.events[key_of(tensor)] = self._event(tensor, given)
            elif is_whole(tensor):
                self._tracer.events.pop(key_of(tensor), None)
                if self._name in SWALLOWING and (event := self._infinite()) is not None:
                    self._tracer.swallowed[key_of(tensor)] = event

    def _infinite(self) -> Event | None:
        """What made the Inf that it was given, if something did."""
        events = (self._tracer.events.get(key_of(one)) for many in self._given for one in many)
        return next((one for one in events if one is not None and one.root.kind == "inf"), None)

    def _beside(self, place: int, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Of lists that belong together, what stands at its place."""
        places = (at for many in self._given if len(many) > 1 for at, one in enumerate(many) if one is tensor)
        at = next(places, place)
        return [many[at if len(many) > 1 else 0] for many in self._given if at < max(len(many), 1) and many]

    def _event(self, tensor: torch.Tensor, given: Sequence[torch.Tensor]) -> Event:
        tracer, parents, is_nan = self._tracer, dict[int, Event](), bool(torch.isnan(tensor).any())
        for one in given:
            key = key_of(one)
            event = tracer.events.get(key)
            if key not in self._was_bad if key in self._written else not is_bad(one):
                continue
            if key not in self._written and event is None:
                event = tracer.given(one, self._place, self._name)
            if event is not None:
                parents[id(event)] = event
        if not parents:
            found = (tracer.swallowed.get(key_of(one)) for one in given)
            parents = {id(event): event for event in found if event is not None}
        kind: Kind = "passed"
        if not parents and not all(map(math.isfinite, self._scalars)):
            kind, read = "literal", tracer.read
            parents = {id(read): read} if read is not None else {}
        elif not parents:
            kind = "nan" if is_nan else "inf"
        elif is_nan and not any(event.has_nan for event in parents.values()):
            kind = "nan"
        before = [old if (old := self._written.get(key_of(one))) is not None else one for one in given]
        origin = tracer.origin(kind, self._name, self._place, before)
        needs_grad = any(one.requires_grad for one in given)
        if kind != "passed":
            origin.scalars = [one if math.isfinite(one) else str(one) for one in self._scalars[:MAX_TOLD]]
            origin.result, origin.before = described(tensor), list(tracer.places.before) if origin.node else []
            for told, one in zip(origin.operands, given, strict=False):
                source = tracer.copied.get(key := key_of(one), key)
                told.is_overwritten = self._written.get(key, one) is None
                told.made_at = self._made_at.get(key, "") if source == key else tracer.made_at.get(source, "")
                told.name = f"@{source}"
            origin.optimizer, origin.eps = tracer.places.optimizer()
            is_after_mask = any(name.startswith(MASKS) for name in origin.before)
            origin.is_masked = is_after_mask and any(is_zero_where_bad(one, tensor) for one in given)
        event = Event(kind, origin, parents=tuple(parents.values()), has_nan=is_nan, needs_grad=needs_grad)
        if kind == "passed" and needs_grad and event.root.kind == "given":
            origin.operands = [tracer.told(next(one for one in given if is_bad(one)))]
        return event
