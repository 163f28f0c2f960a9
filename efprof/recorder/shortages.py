"""Tells whether an error came of memory that ran out, and whether the program had trained on since it or Ctrl-C."""

import sys
from collections.abc import Iterator
from typing import Final

import torch

MARK: Final = "_efprof_survived"
"""Set on the error itself: its id is given to another one as soon as it is gone, and few errors can be referred to
weakly."""


def shortage_behind(error: BaseException) -> BaseException | None:
    """The shortage of memory that this error is, or was raised from.

    One that was only being handled when the error came counts where the program had not gone on training by then, and
    never behind Ctrl-C, which comes at any time.
    """
    is_named = True
    for link in _links_of(error):
        if _is_shortage(link) and (is_named or not is_survived(link)):
            return link
        is_named = is_named and link.__cause__ is not None
        if isinstance(link, KeyboardInterrupt) and not is_named:
            return None
    return None


def note_survival(*_: object) -> None:
    """To be called when an optimizer steps: what is being handled meanwhile did not end the training."""
    for link in _links_of(sys.exception()):
        if _is_shortage(link) or isinstance(link, KeyboardInterrupt):
            vars(link)[MARK] = True


def is_survived(error: BaseException) -> bool:
    """Whether it is a shortage or Ctrl-C in whose handler the program went on training."""
    return MARK in vars(error)


def _links_of(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those that it was raised from, as a traceback prints them."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _is_shortage(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    # torch's CPU allocator raises a plain RuntimeError: "can't allocate memory", on Windows "not enough memory".
    return isinstance(error, RuntimeError) and "memory: you tried to allocate" in str(error)
