"""Notes where each DataLoader was constructed, or first gone through, and with what."""

import functools
import sys
import time
from typing import Any

from torch.utils.data import DataLoader

from efprof.artifacts.events import LoaderBuilt
from efprof.recorder.hooks import replace
from efprof.recorder.session import Session


def start(session: Session) -> None:
    """Number every loader; its iterators carry the number to the loop."""
    original = DataLoader.__init__
    num_built = 0

    def note(loader: Any) -> None:
        nonlocal num_built
        if session.loop.is_ours and loader not in session.loader_numbers:
            site = session.sites.of_caller(sys._getframe())
            session.loader_numbers[loader] = num_built
            session.note(_event(session.step_number, num_built, loader, site))
            num_built += 1

    noted = session.shell.guarded("loaders", note)

    @functools.wraps(original)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        noted(self)

    session.undo_at_end([replace(DataLoader, "__init__", build)])
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
