"""Sees every operator, and keeps of each tensor that holds NaN or Inf which operation made the first of them.

A tensor is known by its storage. What an operation makes of bad inputs is passed on from them; of good ones it is born
there: NaN from none, Inf from finite numbers. Within backward, autograd's node has the sequence number that was the
thread's when the forward operation ran, and so leads to the user's line.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from efprof.artifacts.hunts import Hop, Kind, Operand, Origin
from efprof.recorder.session.sites import Sites, callers

UNFILLED = ("empty", "new_empty", "resize")
"""How operators begin whose result is still to be written to."""
ALL_WRITTEN = frozenset({"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_",
                         "_foreach_copy_", "_foreach_zero_"})  # fmt: skip
"""What was there before they write does not matter."""
ROWS_OF_SCORES = ("softmax", "logsumexp", "attention")
"""Of which -inf is the usual mask: it is no bad data that they turn a row of it alone into NaN."""
SWALLOWING = frozenset({"div", "reciprocal", "exp", "rsqrt", "sigmoid", "tanh"})
"""What makes a finite number of Inf: of what comes of that, the Inf is the cause."""
COPYING = frozenset({"_to_copy", "clone", "contiguous"})
"""What a parameter or buffer goes through under autocast, say: it is that parameter still."""
MASKS = ("Where", "MaskedFill", "Index", "MaskedSelect", "MaskedScatter")
NUM_BEFORE = 12
MAX_COPIED = 2**20
"""Elements of a tensor that is copied before it is overwritten, so that its numbers can be told."""
MAX_TOLD = 6
MAX_HOPS = 40


class Place(NamedTuple):
    """Where an operation was called: the user's line, a library's below it, and the innermost module."""

    site: str | None
    library_site: str
    module: Any
    is_users: bool = False
    """Of an operation within backward: whether the user's own code calls it there."""


class Event:
    """An operation that left a tensor bad; `root` is the one that made what it passes on, maybe itself."""

    def __init__(
        self, kind: Kind, origin: Origin, *, parents: Sequence["Event"], has_nan: bool, needs_grad: bool
    ) -> None:
        self.kind, self.origin, self.parents, self.has_nan, self.needs_grad = kind, origin, parents, has_nan, needs_grad
        roots = [parent.root for parent in parents]
        real = [one for one in roots if one.kind in ("nan", "inf") or (one.kind == "given" and not self._unmasks(one))]
        if real:
            self.root: Event = min(real, key=lambda one: one.origin.number)
        else:
            self.root = roots[0] if roots and kind == "passed" else self

    def _unmasks(self, given: "Event") -> bool:
        is_of_scores = any(name in self.origin.operation for name in ROWS_OF_SCORES)
        return self.kind == "nan" and is_of_scores and not given.has_nan

    def way(self) -> list["Event"]:
        """From the root to this one, the shortest."""
        waiting = deque[tuple[Event, tuple[Event, ...]]]([(self, (self,))])
        seen = {id(self)}
        while waiting:
            one, way = waiting.popleft()
            if one is self.root:
                return list(reversed(way))
            for parent in one.parents:
                if parent.root is self.root and id(parent) not in seen:
                    seen.add(id(parent))
                    waiting.append((parent, (*way, parent)))
        return [self]


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Turned on in the training thread, it goes with autograd into its threads."""

    def __init__(self, sites: Sites) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sites = sites
        self.modules: list[Any] = []
        """Those whose forward pass runs, the innermost last."""
        self.pass_number = 0
        self.errors: list[str] = []
        self.events: dict[int, Event] = {}
        self.copied: dict[int, int] = {}
        """By the storage of a copy in another precision, what it is a copy of."""
        self.swallowed: dict[int, Event] = {}
        """By storage, the Inf that a finite number was made of."""
        self.before = deque[str](maxlen=NUM_BEFORE)
        self._forward: dict[tuple[int, int], Place] = {}
        """By the thread and its sequence number."""
        self._lines: dict[tuple[CodeType, int], str] = {}
        self._num_origins = 0
        self.made_at: dict[int, str] = {}
        """By storage, the user's line that wrote to it last."""
        self._thread = threading.get_ident()

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
        origin.operands[0].made_at = self.made_at.get(key_of(tensor), "")
        event = Event("given", origin, parents=(), has_nan=bool(torch.isnan(tensor).any()), needs_grad=False)
        self.events[key_of(tensor)] = event
        return event

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

    def place(self) -> Place:
        """Of the operation that is called now; within backward, of the forward one behind it."""
        node: Any = torch._C._current_autograd_node()
        if node is None:
            found = self._of_frames(callers())
            number: int = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
            self._forward.setdefault((threading.get_ident(), number), found)
            return found
        if not self.before or self.before[-1] != node.name():
            self.before.append(node.name())
        found = self._of_frames(_within_pass())
        if found.site is not None:  # a backward, a hook, or a forward pass once more: the user's own
            return found._replace(is_users=True)
        keys = ((thread, int(node._sequence_nr())) for thread in (self._thread, threading.get_ident()))
        return next((self._forward[key] for key in keys if key in self._forward), found)

    def _of_frames(self, frames: Iterable[FrameType]) -> Place:
        library, module = "", self.modules[-1] if self.modules else None
        for frame in frames:
            line = self._line(frame)
            if line.startswith("+"):
                return Place(line[1:], library, module)
            library = library or line
        return Place(None, library, module)

    def _line(self, frame: FrameType) -> str:
        """Led by a plus where the user wrote it; empty of torch, of Python and of efprof."""
        key = frame.f_code, frame.f_lasti
        if key not in self._lines:
            line = self.sites.of_line(frame.f_code, frame.f_lineno)
            is_other = "-packages/" in line and "-packages/torch/" not in line and __name__ not in frame.f_globals
            self._lines[key] = f"+{line}" if self.sites.is_user_code(frame.f_code) else line if is_other else ""
        return self._lines[key]


class Call:
    """One operator: what it is given, before it runs, and what it made of that."""

    def __init__(self, tracer: Tracer, func: Any, args: Any, kwargs: Any) -> None:
        self._tracer = tracer
        self._name: str = func._schema.name.partition("::")[2]
        self._place = tracer.place()
        self._is_by_list = self._name.startswith(("_foreach", "_fused"))
        self._given = [[*_plain_in(one)] for one in (*args, *kwargs.values())]
        self._scalars = [float(one) for one in tree_leaves((args, kwargs)) if type(one) in (int, float)]
        self._made_at = {key_of(one): tracer.made_at.get(key_of(one), "") for many in self._given for one in many}
        self._written: dict[int, torch.Tensor | None] = {}
        """By storage: how it was before, where that was kept."""
        if func._schema.is_mutable and not self._name.startswith(UNFILLED):
            for place, argument in enumerate(func._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    value = args[place] if place < len(args) else kwargs.get(argument.name)
                    for one in _plain_in(value):
                        self._note_written(one, is_all=self._name in ALL_WRITTEN or argument.is_out)

    def _note_written(self, tensor: torch.Tensor, *, is_all: bool) -> None:
        key, events = key_of(tensor), self._tracer.events
        self._written[key] = None
        if not is_all and is_bad(tensor):
            if key not in events:
                self._tracer.given(tensor, self._place, self._name)
            return
        if _is_whole(tensor):
            events.pop(key, None)
        if not is_all and tensor.numel() <= MAX_COPIED and not self._is_by_list:
            self._written[key] = tensor.clone()

    def ended(self, result: object) -> None:
        made = [one for one in _plain_in(result) if one.numel()]
        self._tracer.made_at.update(dict.fromkeys((*map(key_of, made), *self._written), self._place.site or ""))
        for one in made:
            self._tracer.copied.pop(key_of(one), None)
            if self._name in COPYING and self._given[0]:
                self._tracer.copied[key_of(one)] = key_of(self._given[0][0])
        if self._name.startswith(UNFILLED):
            return
        made += [one for several in self._given for one in several if result is None and key_of(one) in self._written]
        for place, tensor in enumerate(made):
            self._tracer.swallowed.pop(key_of(tensor), None)
            if is_bad(tensor):
                given = (
                    self._beside(place, tensor) if self._is_by_list else [one for many in self._given for one in many]
                )
                self._tracer.events[key_of(tensor)] = self._event(tensor, given)
            elif _is_whole(tensor):
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
            if key not in self._written and not is_bad(one):
                continue
            if key not in self._written and event is None:
                event = tracer.given(one, self._place, self._name)
            if event is not None:
                parents[id(event)] = event
        if not parents:
            found = (tracer.swallowed.get(key_of(one)) for one in given)
            parents = {id(event): event for event in found if event is not None}
        kind: Kind = "passed"
        if not parents:
            kind = "nan" if is_nan else "inf" if all(map(math.isfinite, self._scalars)) else "literal"
        elif is_nan and not any(event.has_nan for event in parents.values()):
            kind = "nan"
        before = [old if (old := self._written.get(key_of(one))) is not None else one for one in given]
        origin = tracer.origin(kind, self._name, self._place, before)
        needs_grad = any(one.requires_grad for one in given)
        if kind != "passed":
            origin.scalars = [one if math.isfinite(one) else str(one) for one in self._scalars[:MAX_TOLD]]
            origin.result, origin.before = described(tensor), list(tracer.before) if origin.node else []
            for told, one in zip(origin.operands, given, strict=False):
                source = tracer.copied.get(key := key_of(one), key)
                told.is_overwritten = self._written.get(key, one) is None
                told.made_at = self._made_at.get(key, "") if source == key else tracer.made_at.get(source, "")
                told.name = f"@{source}"
            origin.optimizer, origin.eps = _optimizer_of(callers())
            is_after_mask = any(name.startswith(MASKS) for name in origin.before)
            origin.is_masked = is_after_mask and any(_is_zero_where_bad(one, tensor) for one in given)
        event = Event(kind, origin, parents=tuple(parents.values()), has_nan=is_nan, needs_grad=needs_grad)
        if kind == "passed" and needs_grad and event.root.kind == "given":
            bad = next(one for one in given if is_bad(one))
            origin.operands = [described(bad)]
            origin.operands[0].made_at = self._made_at.get(key_of(bad), "")
        return event


def hops_of(way: Sequence[Event]) -> list[Hop]:
    """What passed it on, each line once in a row; the last ones of a long way."""
    hops: list[Hop] = []
    for one in way:
        if not hops or hops[-1].site != one.origin.site:
            hops.append(Hop(one.origin.operation, one.origin.site))
    return hops[-MAX_HOPS:]


def plain(tensor: object) -> torch.Tensor | None:
    """A tensor whose numbers are here; of a DTensor, its own shard."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        tensor = getattr(tensor, "_local_tensor", None)
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        return None
    return tensor if tensor.untyped_storage().nbytes() or not tensor.numel() else None


def is_bad(tensor: torch.Tensor) -> bool:
    """Whether some of its numbers are NaN or Inf: their sum is, then, and of few others."""
    if not (tensor.numel() and (tensor.is_floating_point() or tensor.is_complex())):
        return False
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    real = real.to(torch.float32) if real.element_size() == 1 else real
    total = real.sum(dtype=torch.float64 if real.dtype == torch.float64 else torch.float32)
    return not math.isfinite(total.item()) and not bool(torch.isfinite(real).all())


def described(tensor: torch.Tensor) -> Operand:
    """Its name is where it lies, until somebody finds one."""
    told = Operand(
        name=f"@{key_of(tensor)}",
        shape=list(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        num_elements=tensor.numel(),
    )
    if not tensor.is_complex():
        real = tensor.detach().to(torch.float64)
        finite = real[torch.isfinite(real)]
        if finite.numel():
            told.low, told.high = float(finite.min()), float(finite.max())
        told.num_zero, told.num_nan, told.num_inf = (int(one.sum()) for one in (real == 0, real.isnan(), real.isinf()))
    return told


def key_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_whole(tensor: torch.Tensor) -> bool:
    return tensor.nbytes >= tensor.untyped_storage().nbytes()


def _plain_in(value: object) -> Iterator[torch.Tensor]:
    leaves = tree_leaves(value) if isinstance(value, list | tuple | dict) else (value,)
    return (found for one in leaves if (found := plain(one)) is not None)


def _is_zero_where_bad(given: torch.Tensor, made: torch.Tensor) -> bool:
    return given.shape == made.shape and bool((given[~torch.isfinite(made)] == 0).all())


def _optimizer_of(frames: Iterable[FrameType]) -> tuple[str, float | None]:
    """The optimizer that one of these functions is a method of."""
    for frame in frames:
        if isinstance(one := frame.f_locals.get("self"), torch.optim.Optimizer):
            return type(one).__name__, one.param_groups[0].get("eps")
    return "", None


def _within_pass() -> Iterator[FrameType]:
    """The frames from here to where autograd was told to run its nodes."""
    for frame in callers():
        if frame.f_code.co_name == "_engine_run_backward":
            return
        yield frame
