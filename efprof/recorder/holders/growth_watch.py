"""Watches for a few steps which of the user's lines make something grow, with `sys.settrace`.

The user's functions are traced line by line; of a library's function that such a line calls, the return. After each
event what is watched is compared with before: a change belongs to the line that had begun, also where a library ran.
No frame's variables are read in here: before Python 3.13 that keeps tensors alive.
"""

import sys
import time
import timeit
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_OPTIMIZED
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, Literal, NamedTuple

import torch

from efprof.artifacts.holders import Change, Watch, Watched
from efprof.recorder.holders.paths import last_of
from efprof.recorder.holders.variables import (
    CONTAINERS,
    PLAIN,
    base_of,
    binding_lines,
    locals_of,
    may_read_locals,
    value_of,
)
from efprof.recorder.session.sites import Sites

MAX_NS = 300_000_000
"""Of tracing: by the number of its events, since a clock would count what a busy machine does meanwhile."""

CALL_NS = 1_000
"""What a call of a library's function costs that is not traced (measured: 0.5 us in a loop of nothing else)."""

EVENT_NS = 2_000
"""What an event in the user's functions costs beside the comparison, which is timed once."""

MAX_LINES = 1_000
"""Of one function, without a change: 2 to 3 ms."""

ENOUGH = 2
"""Times that a thing was seen to grow."""

MAX_HANDLES = 8
"""Of one path: of ten layers alike, some tell the line of all."""

MAX_ENTRIES = 8
"""Of one container, the last ones: `totals[key] = totals[key] + loss` binds one anew, and the length stays."""

_TENSORS = (torch.Tensor, torch.nn.Parameter)

COMPILED = ("__compiled_fn", "__resume_at", "torch_dynamo_resume")
"""So begin the names in code that torch's compiler made, whose lines are not the user's."""

_PAUSES = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR

Tracer = Callable[..., Any]

How = Literal["grew", "shrank", "bound"]

Measured = tuple[object, int | None, tuple[tuple[int, int], ...]]
"""Which value it is, and of a container its length and which its last entries are."""


Thing = tuple[Watched, list[Any], list[tuple[Any, str]]]
"""With its containers, and the names that it has somewhere."""

Measure = partial[Measured]
"""Its first argument is a `Kept`."""


class Line(NamedTuple):
    """Where a thread is; `is_within_call` while a library runs that this line called."""

    code: CodeType
    number: int
    is_within_call: bool


class Kept:
    """A container, a namespace or a frame of the program's, until nothing but the watch refers to it."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


_KEPT = Kept([])
_ALONE = sys.getrefcount(_KEPT.value)
"""What is counted where nothing else refers to it. What refers to itself in a circle lives as long as the watch."""


@dataclass(slots=True)
class WatchedValue:
    """With how often each line was seen to do what to it, and by how many entries in all."""

    told: Watched
    times: Counter[tuple[Line, How]] = field(default_factory=Counter)
    entries: Counter[tuple[Line, How]] = field(default_factory=Counter)
    last: dict[Measure, Measured] = field(default_factory=dict)
    """What is compared after each event, of a container or of what has a name, and what it was last."""
    variables: list["Variable"] = field(default_factory=list)

    @property
    def num_seen(self) -> int:
        seen = sum(times for (_, how), times in self.times.items() if how != "shrank")
        return max([seen, *(variable.times for variable in self.variables)])

    def note(self, line: Line, before: Measured, now: Measured) -> None:
        """By what was measured: a container got longer or shorter, or a name or an entry has another value."""
        old, new = before[1], now[1]
        added = 0 if old is None or new is None else new - old
        how: How = "grew" if added > 0 else "shrank" if added else "bound"
        self.times[line, how] += 1
        self.entries[line, how] += abs(added)


@dataclass(slots=True)
class Variable:
    """A local variable of a function that runs, looked at once per step: to read it in a trace callback would harm."""

    frame: Kept
    code: CodeType
    name: str
    times: int = 0
    _last: Any = None

    def look(self) -> None:
        if frame := self.frame.value:
            now = _identity(locals_of(frame).get(self.name))
            self.times += self._last is not None and now != self._last
            self._last = now


class GrowthWatch:
    """Traces the calling thread from `begin` on; `step_ended` after each step tells when to `end`."""

    def __init__(self, sites: Sites, things: list[Thing], guarded: Callable[[Tracer], Tracer], usual_ns: float) -> None:
        self.spent_ns = 0
        self._most_ns = MAX_NS + 2 * usual_ns
        self._sites = sites
        self._kept: dict[int, Kept] = {}
        """By the `id` of its value."""
        self._things = [self._watched(*thing) for thing in things]
        self._at: Line | None = None
        self._lines = set[tuple[int, int]]()
        self._num_lines = Counter[int]()
        self._is_user: dict[int, bool] = {}
        """By the `id` of a code, as the two above: to hash one takes up to 1 us, the longer the more names it has."""
        self._codes: list[CodeType] = []
        """Kept, so that no other one gets its `id`."""
        self._event_ns = EVENT_NS
        self._thread = get_ident()
        self._is_over = False
        self._num_steps = self._max_steps = 0
        self._called, self._within = self._unless_in_libraries(guarded(self._on_call)), guarded(self._on_event)

    def begin(self, frame: FrameType | None, max_steps: int) -> str | None:
        """Trace the frames that call this one and all that they call; otherwise says why not."""
        if sys.gettrace() is not None:
            return "another tracer was at work, a debugger's or a coverage tool's"
        users = list(self._sites.user_frames(frame))
        if not users:
            return "none of the program's own functions was running"
        if _shares_locals(users[0].f_code):
            return (
                f"{users[0].f_code.co_qualname} calls locals(), eval() or the like, whose result a tracer would change"
            )
        self._look_at_variables()
        self._event_ns += round(1e9 * min(timeit.repeat(self._check, number=1)))
        self._at = self._line_around(frame)
        for one in users:
            if self._may_trace(one.f_code):
                self._keep(one).value.f_trace = self._within
        self._max_steps = max_steps
        sys.settrace(self._called)
        return None

    def step_ended(self) -> bool:
        """Look at local variables; whether enough was seen, or this has taken long enough."""
        self._look_at_variables()
        self._num_steps += 1
        is_seen = all(thing.num_seen >= ENOUGH for thing in self._things)
        return self._is_over or is_seen or self._num_steps >= self._max_steps or sys.gettrace() is not self._called

    def _watched(self, told: Watched, containers: list[Any], names: list[tuple[Any, str]]) -> WatchedValue:
        thing = WatchedValue(told)
        measures: list[Measure] = []
        named = set()
        for owner, name in names[-MAX_HANDLES:]:
            if type(owner) is FrameType:
                thing.variables.append(Variable(self._keep(owner), owner.f_code, name))
            else:
                measures.append(partial(_named, self._keep(owner), name))
                named.add(id(value_of(owner, name)))
        for container in containers[-MAX_HANDLES:]:
            if id(container) not in named:
                measures.append(partial(_contained, self._keep(container)))
        thing.last = {measure: measure() for measure in measures}
        return thing

    def _keep(self, value: Any) -> Kept:
        return self._kept.setdefault(id(value), Kept(value))

    def _let_go(self) -> None:
        """What the program refers to no longer: it would have ended."""
        alone = {key for key, one in self._kept.items() if sys.getrefcount(one.value) <= _ALONE}
        for thing in self._things:
            thing.last = {
                measure: last for measure, last in thing.last.items() if id(measure.args[0].value) not in alone
            }
        for key in alone:
            self._kept.pop(key).value = None

    def _look_at_variables(self) -> None:
        self._check()
        self._until_ns = time.thread_time_ns() + self._most_ns
        for thing in self._things:
            for variable in thing.variables:
                variable.look()

    def end(self) -> None:
        """Take the tracer out, and what it left in frames that still run: never from within a trace callback."""
        self.stop()
        if get_ident() == self._thread:  # another thread may be within one
            self._look_at_variables()
            for one in self._kept.values():
                if type(one.value) is FrameType:
                    one.value.f_trace_lines = True
                    if one.value.f_trace is self._within:  # and not a debugger's
                        one.value.f_trace = None
        for thing in self._things:
            thing.last = {}  # another thread may be going through it
        self._kept = {}

    def stop(self) -> None:
        """Trace no more, and blame no line for what is done from here on; another thread stops at its next call."""
        self._is_over, self._at = True, None
        if sys.gettrace() is self._called:
            sys.settrace(None)

    def result(self) -> Watch:
        for thing in self._things:
            thing.told.changes = [
                Change(
                    site=self._sites.of_line(line.code, line.number),
                    how=how,
                    times=times,
                    entries=thing.entries[line, how],
                    is_within_call=line.is_within_call,
                )
                for (line, how), times in thing.times.most_common()
            ]
            if not thing.told.changes:  # a closure's cell tells as much at once
                rebound = [self._rebound(variable) for variable in thing.variables if variable.times]
                thing.told.changes = [change for change in rebound if change is not None]
            thing.variables.clear()
        return Watch(watched=[thing.told for thing in self._things])

    def _rebound(self, variable: Variable) -> Change | None:
        bound = sorted(binding_lines(variable.code, variable.name), key=lambda item: item[1])
        sites = [self._sites.of_line(code, number) for code, number in bound if (id(code), number) in self._lines]
        return Change(site=sites[0], how="bound", times=variable.times, candidates=sites[1:]) if sites else None

    # What Python calls.

    def _unless_in_libraries(self, called: Tracer) -> Tracer:
        """Where a library's function calls another there is nothing to see, and most calls are such."""
        is_user = self._is_user

        def call(frame: FrameType, event: str, detail: Any) -> Any:
            caller = frame.f_back
            is_seen = caller is None or is_user.get(id(frame.f_code), True) or is_user.get(id(caller.f_code), True)
            if is_seen or self._is_over or self.spent_ns > MAX_NS:
                return called(frame, event, detail)
            self.spent_ns += CALL_NS
            return None

        return call

    def _on_call(self, frame: FrameType, *_: Any) -> Tracer | None:
        if self._is_spent(CALL_NS):
            return None
        code, caller = frame.f_code, frame.f_back
        if self._may_trace(code):
            if code.co_flags & _PAUSES:  # it outlives the step
                self._keep(frame)
            self._check()
            self._at = Line(code, code.co_firstlineno, False)
            return self._within
        if caller is None or not self._may_trace(caller.f_code):
            return None
        self._check()
        self._at = Line(caller.f_code, caller.f_lineno, True)
        frame.f_trace_lines = False
        return self._within

    def _on_event(self, frame: FrameType, event: str, _: Any) -> Tracer | None:
        if self._is_spent(self._event_ns):
            return None
        self._check()
        if event == "line":
            self._at = Line(frame.f_code, frame.f_lineno, False)
            code = id(frame.f_code)
            self._lines.add((code, frame.f_lineno))
            self._num_lines[code] += 1
            if self._num_lines[code] == MAX_LINES:
                self._leave(frame)
        elif event == "return":
            self._at = self._line_around(frame.f_back)
        return self._within

    def _is_spent(self, cost_ns: int) -> bool:
        self.spent_ns += cost_ns
        if time.thread_time_ns() > self._until_ns:  # a rollout, say: a tracer slows all Python two or three times
            self.spent_ns += MAX_NS
        if self._is_over or self.spent_ns > MAX_NS:
            self.stop()
        return self._is_over

    def _leave(self, frame: FrameType) -> None:
        """So many lines of this function have run, and changed nothing: what it does belongs to the line that calls it.

        A data set that works a batch out in plain Python would use up the time before the step comes to the others.
        """
        code = frame.f_code
        if not any(line.code is code for thing in self._things for line, _ in thing.times):
            self._is_user[id(code)] = False
            self._keep(frame).value.f_trace_lines = False

    def _line_around(self, frame: FrameType | None) -> Line | None:
        """The innermost line of the user's; a library in between runs within it."""
        is_within_call = False
        while frame is not None and not self._may_trace(frame.f_code):
            frame, is_within_call = frame.f_back, True
        return None if frame is None else Line(frame.f_code, frame.f_lineno, is_within_call)

    def _check(self) -> None:
        """What has changed since the last event, the line did that had begun then."""
        for one in self._kept.values():
            if sys.getrefcount(one.value) <= _ALONE:
                self._let_go()
                break
        for thing in self._things:
            last = thing.last
            for measure, before in last.items():
                now = measure()
                if now != before:
                    last[measure] = now
                    if self._at is not None:
                        thing.note(self._at, before, now)

    def _may_trace(self, code: CodeType) -> bool:
        known = self._is_user.get(id(code))
        if known is None:
            names = (code.co_name, *code.co_names)
            is_compiled = any(name.startswith(COMPILED) for name in names)
            is_plain = not (is_compiled or _shares_locals(code))
            known = self._is_user[id(code)] = is_plain and self._sites.is_user_code(code)
            self._codes.append(code)
        return known


def _named(owner: Kept, name: str) -> Measured:
    value = value_of(owner.value, name)
    if issubclass(type(value), CONTAINERS):
        return (_identity(value), *_contained(Kept(value))[1:])
    return _identity(value), None, ()


def _contained(held: Kept) -> Measured:
    container = held.value
    base = base_of(container)
    last = last_of(container, MAX_ENTRIES)
    if base is dict:
        last = [entry for _, entry in last]
    # A number beside the tensors is bound anew as well, and a detached tensor beside the graphs: neither is the leak.
    kept = [one for one in last if type(one) in _TENSORS and one.requires_grad]
    return None, base.__len__(container), tuple(map(_identity, kept or [one for one in last if type(one) not in PLAIN]))


def _identity(value: Any) -> tuple[int, int]:
    """By which a value is told from the one before; a tensor that was written in place is another one."""
    if type(value) not in _TENSORS:
        return id(value), 0
    try:
        return id(value), value._version
    except RuntimeError:  # made in inference mode
        return id(value), 0


def _shares_locals(code: CodeType) -> bool:
    return bool(code.co_flags & CO_OPTIMIZED) and not may_read_locals(code)
