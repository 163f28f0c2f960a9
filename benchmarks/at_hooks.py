"""What the recorder takes at its hooks, measured there: until the original function starts, and after it has ended.

By turns, what is added to a step of 8 ms is known to 50 us at best, since one step differs from the next by 0.9 ms
(measured). Here a few microseconds are timed at a time, in steps that leave the caches as cold as they always do. What
they cost elsewhere, by throwing the training's own data out of the caches, is not in it: that only the turns show.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

from benchmarks.blocks import STEPS_TO_SETTLE, AtHooksRequest, AtHooksTimes
from benchmarks.loops import TrainingLoop
from benchmarks.switch import HOOKS, MISSING, Switch

Step = Callable[[], None]

IDLE = -1
"""The key of a hook that does nothing; torch's own count up from 0."""


def run_at_hooks(step: Step, loop: TrainingLoop, request: AtHooksRequest) -> AtHooksTimes:
    """Rounds without a recording, which shows what the timing itself takes, and as many within one."""
    import efprof

    switch = Switch(loop.model)
    with efprof.record(**request.options):
        for _ in range(STEPS_TO_SETTLE):
            step()
        switch.learn()  # which functions it replaces, with this loop
    shims = Shims()
    with shims.around_originals(switch.places):
        with _idle_hooks(), shims.around_hooks(switch.places):
            bare = [shims.time_round(step, request.steps) for _ in range(request.rounds)]
        with efprof.record(**request.options):
            for _ in range(STEPS_TO_SETTLE):
                step()
            with shims.around_hooks(switch.places):
                recorded = [shims.time_round(step, request.steps) for _ in range(request.rounds)]
    return AtHooksTimes(bare_us=bare, recorded_us=recorded)


class Shims:
    """Two around each function that the recorder replaces: one within what it puts there, one without."""

    def __init__(self) -> None:
        self._calls: list[list[int]] = []
        """Of the replaced functions that run, one within another: when the original began, and when it ended."""
        self._is_in_hook = False
        self._spent_ns = 0

    def time_round(self, step: Step, num_steps: int) -> float:
        """Microseconds per step in hooks, on average."""
        self._spent_ns = 0
        for _ in range(num_steps):
            step()
        return self._spent_ns / num_steps / 1000

    @contextmanager
    def around_originals(self, places: list[tuple[Any, str]]) -> Iterator[None]:
        """Before the recording starts, which takes them for torch's own."""
        with _replaced(places, self._inner):
            yield

    @contextmanager
    def around_hooks(self, places: list[tuple[Any, str]]) -> Iterator[None]:
        """While it goes on."""
        before = [dict(hooks) for hooks in HOOKS]
        for hooks in HOOKS:
            hooks.update({key: self._outer(hook) for key, hook in hooks.items()})
        try:
            with _replaced(places, self._outer):
                yield
        finally:
            for hooks, those in zip(HOOKS, before, strict=True):
                hooks.update(those)

    def _inner(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._is_in_hook:
                return original(*args, **kwargs)
            times = self._calls[-1]
            self._is_in_hook = False
            times[0] = perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                times[1] = perf_counter_ns()
                self._is_in_hook = True

        return call

    def _outer(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_in_hook:  # the recorder's own call
                return hook(*args, **kwargs)
            self._calls.append([0, 0])
            self._is_in_hook = True
            entered = perf_counter_ns()
            try:
                return hook(*args, **kwargs)
            finally:
                left = perf_counter_ns()
                self._is_in_hook = False
                began, ended = self._calls.pop()
                self._spent_ns += left - entered - (ended - began)

        return call


@contextmanager
def _idle_hooks() -> Iterator[None]:
    """Hooks that do nothing, where the recorder's will be: what timing those takes is known only so."""
    for hooks in HOOKS:
        hooks[IDLE] = _do_nothing
    try:
        yield
    finally:
        for hooks in HOOKS:
            del hooks[IDLE]


def _do_nothing(*_: Any) -> None: ...


@contextmanager
def _replaced(
    places: list[tuple[Any, str]], make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    before = [(owner, name, vars(owner).get(name, MISSING)) for owner, name in places]
    new = [(owner, name, make(getattr(owner, name))) for owner, name in places]
    try:
        for owner, name, function in new:
            setattr(owner, name, function)
        yield
    finally:
        for owner, name, original in before:
            if original is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
