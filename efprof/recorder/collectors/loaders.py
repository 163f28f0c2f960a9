"""Sees where the batches come from: each DataLoader, and what frameworks fetch ahead.

Accelerate, and with it the Hugging Face Trainer, always fetches one batch ahead of the one it hands out. By fetches
alone an epoch's first step would count a batch too many, its last one too few.
"""

import functools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from efprof.artifacts.events import LoaderBuilt
from efprof.artifacts.steps import StepRecord
from efprof.recorder.hooks.patching import Undo, replace
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import OpenStep, num_samples
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Shell

GENERATORS = (("accelerate.data_loader", "DataLoaderShard"), ("accelerate.data_loader", "DataLoaderDispatcher"))
"""Loaders whose `__iter__` yields what it fetched before."""


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
        self._undo: dict[str, Undo] = {}
        self._counted = shell.guarded("batches_ahead", self._count)

    def watch(self) -> None:
        for module, name in GENERATORS:
            owner = getattr(sys.modules.get(module), name, None)
            if owner is not None and name not in self._undo:
                self._undo[name] = _yielding(owner, self._counted)

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
