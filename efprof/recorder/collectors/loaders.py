"""Sees where the batches come from: each DataLoader, or an iterator of the program's own."""

import functools
import gc
import inspect
from collections.abc import Callable, Iterator
from threading import get_ident
from time import thread_time_ns
from types import CodeType, FunctionType
from typing import Any

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from efprof.artifacts.events import LoaderBuilt
from efprof.recorder.budget.sampling import Budget
from efprof.recorder.hooks.loop_hooks import fetching
from efprof.recorder.hooks.patching import MethodWrapper, Undo, replace
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import num_samples
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Shell
from efprof.recorder.session.sites import Sites

LOOK_NS = 300_000_000
"""At most, for the types of a million objects."""


def start(session: Session) -> None:
    """Number every loader; its iterators carry the number to the loop."""
    num_built = 0

    def note(loader: Any, *_: object) -> None:
        nonlocal num_built
        if session.loop.thread.is_training_thread and loader not in session.loop.loader_numbers:
            session.loop.loader_numbers[loader] = num_built
            session.note(
                LoaderBuilt(
                    step=session.loop.number,
                    loader=num_built,
                    site=session.sites.of_caller(),
                    num_workers=loader.num_workers,
                    batch_size=loader.batch_size,
                    persistent_workers=loader.persistent_workers,
                    num_batches=_num_batches(loader, session.sites),
                )
            )
            num_built += 1

    feed = IteratorFeed(session.loop, session.sites, session.budget, session.shell)
    session.after(DataLoader, "__init__", "loaders", note)
    session.undo_at_end(feed.stop)
    session.attach("iterators", feed)
    session.listen("loaders", loader_began=note)  # it may have been built before the recording began


def _num_batches(loader: Any, sites: Sites) -> int | None:
    """None where the program's own code would count them, and of a stream: torch warns of one that is longer than was
    asked for.
    """
    if isinstance(loader.dataset, IterableDataset):
        return None
    counting = [getattr(type(part), "__len__", None) for part in (loader, loader.batch_sampler, loader.sampler)]
    if any(sites.is_user_code(each.__code__) for each in counting if isinstance(each, FunctionType)):
        return None
    try:
        return len(loader)
    except (TypeError, NotImplementedError):  # of the data set
        return None


class IteratorFeed:
    """Finds the iterators that feed a loop without a DataLoader, by a `__next__` in Python: from then on it is a fetch.

    Each class that has one, and living objects, is watched for one item: whether it holds tensors, and goes to a
    function that backward is called in. A generator that runs already cannot be seen.
    """

    def __init__(self, loop: Loop, sites: Sites, budget: Budget, shell: Shell) -> None:
        self._loop, self._sites, self._budget, self._guard = loop, sites, budget, shell.guard("loop")
        self._watched: dict[type, Undo] = {}
        self._taking = set[int]()
        """Threads within such a `__next__`: what it takes from others on its way is no batch."""
        self._around: set[CodeType] | None = None
        """The user's functions that ran when backward was called."""
        self._judged = shell.guarded("iterators", self._judge)

    def stop(self) -> None:
        while self._watched:
            self._watched.popitem()[1]()

    def backward_began(self, *_: object) -> None:
        """Once, in the third step: a loop with a DataLoader has asked it for a batch by then."""
        loop, budget = self._loop, self._budget
        is_fed = loop.num_steps < 2 or loop.steps.has_loader or loop.steps.has_marks
        if self._around is not None or is_fed or not budget.affords(LOOK_NS):
            return
        began_ns = thread_time_ns()
        self._around = set(self._users())
        for kind in filter(_may_feed, set(map(type, gc.get_objects()))):
            self._watch(kind, functools.partial(self._judging, kind))
        budget.spend("iterators", thread_time_ns() - began_ns)

    def _watch(self, kind: Any, watching: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        advance = kind.__next__
        watched = watching(advance)

        @functools.wraps(advance)
        def take(iterator: Any) -> Any:
            thread = get_ident()
            if thread in self._taking:
                return advance(iterator)
            try:
                self._taking.add(thread)
                return watched(iterator)
            finally:
                self._taking.discard(thread)

        self._watched[kind] = replace(kind, "__next__", MethodWrapper(take, advance))

    def _judging(self, kind: type, advance: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(advance)
        def take(iterator: Any) -> Any:
            item = advance(iterator)
            self._judged(kind, item)
            return item

        return take

    def _judge(self, kind: type, item: object) -> None:
        if (undo := self._watched.pop(kind, None)) is None:
            return  # another thread's item came first
        undo()
        asking = next((code for code in self._users() if not code.co_flags & inspect.CO_GENERATOR), None)
        if asking in (self._around or ()) and num_samples(item) and self._loop.thread.is_training_thread:
            self.stop()
            self._watch(kind, functools.partial(fetching, self._loop, self._guard))

    def _users(self) -> Iterator[CodeType]:
        return (frame.f_code for frame in self._sites.user_frames())


def _may_feed(kind: type) -> bool:
    advance = next((vars(base)["__next__"] for base in kind.__mro__ if "__next__" in vars(base)), None)
    is_plain = isinstance(advance, FunctionType) and bool(kind.__dictoffset__)
    return is_plain and not issubclass(kind, _BaseDataLoaderIter)
