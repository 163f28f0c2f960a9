"""Sees where the batches come from: each DataLoader, what frameworks fetch ahead, an iterator of the program's own.

Accelerate, and with it the Hugging Face Trainer, always fetches one batch ahead of the one it hands out; Lightning does
where a loader has no length. By fetches alone an epoch's first step would count a batch too many, its last one too few.

Where no DataLoader feeds the loop, the third step looks up all classes that have living objects and iterate in Python.
The first that yields tensors to the function that calls backward feeds the loop, the rest is left alone. A generator
that is running already cannot be seen: before Python 3.12 nothing short of tracing every line tells that it is asked.
"""

import functools
import gc
import inspect
import sys
import time
from collections.abc import Callable, Generator, Iterator
from time import perf_counter_ns
from types import CodeType, FunctionType
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from efprof.artifacts.events import LoaderBuilt
from efprof.artifacts.steps import StepRecord
from efprof.recorder.budget.sampling import Budget
from efprof.recorder.hooks.loop_hooks import fetching
from efprof.recorder.hooks.patching import MethodWrapper, Undo, replace
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import OpenStep, num_samples
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Shell
from efprof.recorder.session.sites import Sites, callers, user_file_of

GENERATORS = (("accelerate.data_loader", "DataLoaderShard"), ("accelerate.data_loader", "DataLoaderDispatcher"))
"""Loaders whose `__iter__` yields what it fetched before."""

FETCHERS = (
    ("lightning.pytorch.loops.fetchers", "_PrefetchDataFetcher"),
    ("pytorch_lightning.loops.fetchers", "_PrefetchDataFetcher"),
)
"""Iterators whose `__next__` does, where their `length` is not known."""

STEPS_TO_WAIT = 2
"""A loop with a DataLoader has asked it for a batch by then."""

LOOK_NS = 300_000_000
"""At most, for the types of a million objects."""

MAX_CLASSES = 32

MAX_ITEMS = 100
"""Of a class, yielded to other functions; then it is left alone."""


def start(session: Session) -> None:
    """Number every loader; its iterators carry the number to the loop.

    And watch for the frameworks: each is imported by the time that its program makes a loader.
    """
    batches = BatchesAhead(session.loop, session.shell)
    session.subscribe(session.loop.step_ended, "batches_ahead", batches.ended)
    watch = session.shell.guarded("batches_ahead", batches.watch)
    original = DataLoader.__init__
    num_built = 0

    def note(loader: Any) -> None:
        nonlocal num_built
        if session.loop.thread.is_training_thread and loader not in session.loop.loader_numbers:
            site = session.sites.of_caller(sys._getframe())
            session.loop.loader_numbers[loader] = num_built
            session.note(_event(session.loop.number, num_built, loader, site))
            num_built += 1

    noted = session.shell.guarded("loaders", note)

    @functools.wraps(original)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        watch()
        original(self, *args, **kwargs)
        noted(self)

    watch()
    session.undo_at_end([replace(DataLoader, "__init__", build), batches.stop])
    session.subscribe(session.loop.loader_began, "loaders", note)  # it may have been built before the recording began
    session.undo_at_end([IteratorFeed(session.loop, session.shell, session.sites, session.budget).remove])


def _event(step: int, number: int, loader: Any, site: str | None) -> LoaderBuilt:
    return LoaderBuilt(
        at_ns=time.time_ns(),
        step=step,
        loader=number,
        site=site,
        num_workers=loader.num_workers,
        batch_size=loader.batch_size,
        persistent_workers=loader.persistent_workers,
        prefetch_factor=loader.prefetch_factor,
        pin_memory=bool(loader.pin_memory),
        num_batches=_num_batches(loader),
    )


def _num_batches(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # an iterable data set without a length
        return None


class BatchesAhead:
    """Counts what is handed out; a step in which nothing is keeps the count of its fetches."""

    def __init__(self, loop: Loop, shell: Shell) -> None:
        self._loop = loop
        self._step: OpenStep | None = None
        """In which something was handed out last."""
        self._num_samples = 0
        self._undo: dict[tuple[str, str], Undo] = {}
        self._counted = shell.guarded("batches_ahead", self._count)

    def watch(self) -> None:
        for names, hooked in (*((name, _yielding) for name in GENERATORS), *((name, _returning) for name in FETCHERS)):
            owner = getattr(sys.modules.get(names[0]), names[1], None)
            if owner is not None and names not in self._undo:
                self._undo[names] = hooked(owner, self._counted)

    def stop(self) -> None:
        for undo in self._undo.values():
            undo()

    def ended(self, step: OpenStep, record: StepRecord) -> None:
        if step is self._step:
            record.samples, self._step = self._num_samples, None

    def _count(self, batch: object) -> None:
        if not self._loop.thread.is_training_thread:
            return
        step = self._loop.step or self._loop.steps.reopen()
        if step is None:
            return
        if step is not self._step:
            self._step, self._num_samples = step, 0
        self._num_samples += num_samples(batch)


def _yielding(owner: Any, count: Callable[[object], None]) -> Undo:
    original = owner.__iter__

    @functools.wraps(original)
    def iterate(self: Any) -> Iterator[Any]:
        for batch in original(self):
            count(batch)
            yield batch

    return replace(owner, "__iter__", iterate)


def _returning(owner: Any, count: Callable[[object], None]) -> Undo:
    original = owner.__next__

    @functools.wraps(original)
    def advance(self: Any) -> Any:
        fetched = original(self)
        if self.length is None:
            count(fetched[0])  # beside it stand its number and its loader's
        return fetched

    return replace(owner, "__next__", advance)


class IteratorFeed:
    """Watches classes until one is trusted; that one, as long as it yields a batch per step."""

    def __init__(self, loop: Loop, shell: Shell, sites: Sites, budget: Budget) -> None:
        self._loop, self._sites, self._budget = loop, sites, budget
        self._fetch = fetching(loop, shell, lambda advance: advance(), lambda _: None)
        self._judge = shell.guarded("iterators", self._judge_item)
        self._looked = shell.guarded("iterators", self._look)
        self._watched: dict[type, Undo] = {}
        self._num_items: dict[type, int] = {}
        self._around: set[CodeType] = set()
        """The user's functions that ran when backward was called."""
        self._trusted: type | None = None
        self._has_fed = self._is_fetching = False
        loop.backward_began.append(self._looked)

    def remove(self) -> None:
        for kind in list(self._watched):
            self._watched.pop(kind)()

    def _look(self, *_: object) -> None:
        """Once, as soon as it is clear that no DataLoader feeds the loop."""
        loop, budget = self._loop, self._budget
        if loop.num_steps < STEPS_TO_WAIT:
            return
        loop.backward_began = [listener for listener in loop.backward_began if listener is not self._looked]
        if loop.steps.has_loader or loop.steps.has_marks or not budget.affords(LOOK_NS):
            return
        began_ns = perf_counter_ns()
        self._around = {frame.f_code for frame in callers(sys._getframe()) if self._sites.is_user_code(frame.f_code)}
        kinds = filter(self._may_feed, set(map(type, gc.get_objects())))
        for kind in sorted(kinds, key=_is_generator)[:MAX_CLASSES]:
            name = "__iter__" if _is_generator(kind) else "__next__"
            original: Any = _method(kind, name)
            watch = self._watched_generator if _is_generator(kind) else self._watched_next
            self._watched[kind] = replace(kind, name, MethodWrapper(watch(kind, original), original))
        budget.spend("iterators", perf_counter_ns() - began_ns)

    def _may_feed(self, kind: type) -> bool:
        """Whether it yields its items by a Python function of its own; of libraries' classes only if they do so."""
        if issubclass(kind, (DataLoader, _BaseDataLoaderIter)):
            return False
        if isinstance(_method(kind, "__next__"), FunctionType):
            return True
        return _is_generator(kind) and user_file_of(kind, self._sites) is not None

    def _watched_next(self, kind: type, advance: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(advance)
        def fetch(iterator: Any) -> Any:
            return self._take(kind, functools.partial(advance, iterator))

        return fetch

    def _watched_generator(self, kind: type, start: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(start)
        def iterate(iterable: Any) -> Generator[Any, None, Any]:
            items = start(iterable)
            try:
                while True:
                    try:
                        item = self._take(kind, items.__next__)
                    except StopIteration as end:
                        return end.value
                    yield item
            finally:
                items.close()

        return iterate

    def _take(self, kind: type, advance: Callable[[], Any]) -> Any:
        """The next item; a fetch, unless another one is going on or nobody knows yet whether there are tensors."""
        if self._is_fetching or kind not in self._watched or not self._loop.thread.is_training_thread:
            return advance()
        is_left = self._has_fed and not self._loop.steps.has_loader
        is_fetch = kind is self._trusted and not is_left
        self._is_fetching = True
        self._has_fed |= is_fetch
        try:
            item = self._fetch(advance) if is_fetch else advance()
        finally:
            self._is_fetching = False
        if not is_fetch:
            self._judge(kind, item, is_left)
        return item

    def _judge_item(self, kind: type, item: object, is_left: bool) -> None:
        """Trust what yields tensors, from the next one on; not what the loop makes steps without."""
        if is_left or not num_samples(item):
            self._watched.pop(kind)()
            return
        users = (frame.f_code for frame in callers(sys._getframe()) if self._sites.is_user_code(frame.f_code))
        asking = next((code for code in users if not code.co_flags & inspect.CO_GENERATOR), None)
        if asking in self._around:
            own, self._trusted = self._watched.pop(kind), kind
            self.remove()
            self._watched[kind] = own
            return
        self._num_items[kind] = self._num_items.get(kind, 0) + 1
        if self._num_items[kind] >= MAX_ITEMS:
            self._watched.pop(kind)()


def _method(kind: type, name: str) -> object:
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def _is_generator(kind: type) -> bool:
    """Whether it has no `__next__`, and its `__iter__` is a generator function."""
    return _method(kind, "__next__") is None and inspect.isgeneratorfunction(_method(kind, "__iter__"))
