"""Enters the stage `data` in a loop that feeds itself from an iterator of the program's own.

Seen are iterators whose class has a `__next__` in Python, from the third step on, and classes whose `__iter__` is a
generator function, from their next `iter()` on. A generator that is running already cannot be seen: before Python
3.12 nothing short of tracing every line tells that it is asked for an item.
"""

import functools
import sys
from collections.abc import Callable, Generator
from typing import Any

from efprof.recorder.hooks import Undo, replace
from efprof.recorder.iterators import classes_around, is_generator
from efprof.recorder.open_step import num_samples
from efprof.recorder.pattern import FETCH, FETCHED
from efprof.recorder.session import Session
from efprof.recorder.stand_in import StandIn

STEPS_TO_WAIT = 2
"""A loop with a DataLoader has asked it for a batch by then."""


class Feed:
    """Watches one class at a time; one that yields no tensors, or not once per step, is left alone again."""

    def __init__(self, session: Session) -> None:
        loop, sprint, guarded = session.loop, session.sprint, session.shell.guarded
        self._session = session
        self._loop = loop
        self._mark, self._counted = sprint.watch.mark, sprint.watch.counted
        self._began = guarded("loop", lambda: loop.fetch_began(None))
        self._ended = guarded("loop", loop.fetch_ended)
        self._count = guarded("loop", sprint.count)
        self._exhausted = guarded("loop", loop.data_ended)
        self._broke_off = guarded("loop", loop.fetch_broke_off)
        self._judge = guarded("iterators", self._judge_item)
        self._looked = guarded("iterators", self._look)
        self._candidates: list[type] = []
        self._undo: Undo | None = None
        self._is_trusted = self._has_fed = self._is_fetching = False
        loop.backward_began.append(self._looked)

    def remove(self) -> None:
        """Leave the class as it was."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def _look(self, *_: object) -> None:
        """Once, as soon as it is clear that no DataLoader feeds the loop."""
        loop = self._loop
        if loop.num_steps < STEPS_TO_WAIT:
            return
        loop.backward_began = [listener for listener in loop.backward_began if listener is not self._looked]
        if not (loop.steps.has_loader or loop.steps.has_marks):
            self._candidates = classes_around(sys._getframe(), self._session.sites.is_user_code)
            self._watch_next()

    def _watch_next(self) -> None:
        self.remove()
        self._is_trusted = self._has_fed = False
        if self._candidates:
            kind = self._candidates.pop(0)
            watch = self._watched_generator if is_generator(kind) else self._watched_next
            name = "__iter__" if is_generator(kind) else "__next__"
            original = getattr(kind, name)
            self._undo = replace(kind, name, StandIn(watch(original), original))

    def _watched_next(self, advance: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(advance)
        def fetch(iterator: Any) -> Any:
            return self._take(functools.partial(advance, iterator))

        return fetch

    def _watched_generator(self, start: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(start)
        def iterate(iterable: Any) -> Generator[Any, None, Any]:
            items = start(iterable)
            try:
                while True:
                    try:
                        item = self._take(items.__next__)
                    except StopIteration as end:
                        return end.value
                    yield item
            finally:
                items.close()

        return iterate

    def _take(self, advance: Callable[[], Any]) -> Any:
        """The next item; a fetch, unless another one is going on or nobody knows yet whether there are tensors."""
        if self._is_fetching or self._undo is None or not self._loop.is_ours:
            return advance()
        is_left = self._has_fed and not self._loop.steps.has_loader
        if is_left or not self._is_trusted:
            item = advance()
            self._judge(item, is_left)
            return item
        self._is_fetching = True
        try:
            return self._fetch(advance)
        finally:
            self._is_fetching = False

    def _fetch(self, advance: Callable[[], Any]) -> Any:
        self._has_fed = True
        has_come = False
        try:  # from the first mark on: a signal's handler may raise in it
            if not self._mark(FETCH):
                self._began()
            batch = advance()
            has_come = True
        except StopIteration:
            self._exhausted()
            raise
        finally:
            if not has_come:
                self._broke_off()
        if not self._mark(FETCHED):
            self._ended(batch)
        elif not self._counted(batch):
            self._count(batch)
        return batch

    def _judge_item(self, item: object, is_left: bool) -> None:
        """Trust what yields tensors, from the next one on; not what the loop makes steps without."""
        if not is_left and num_samples(item):
            self._is_trusted = True
        else:
            self._watch_next()


def start(session: Session) -> None:
    """Wait until the loop has shown whether it has a DataLoader."""
    session.undo_at_end([Feed(session).remove])
