"""What ended a program: the code that it exits with, the error behind it, memory that ran out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

import torch

CODES: Final = 256

LONGEST: Final = 1 << 63
"""What is no C long, Python takes for -1."""

MARK: Final = "_efprof_survived"
"""Set on the error itself: its id is given to another one as soon as it is gone, and few errors can be referred to
weakly."""

SHORTAGES: Final = ("memory: you tried to allocate", "error: out of memory")
"""Of torch's CPU allocator, which says "can't allocate" or, on Windows, "not enough"; and of CUDA or HIP itself, where
it was no tensor of torch's that was asked for: an AcceleratorError, before torch 2.8 a plain RuntimeError."""


def origin_of(error: BaseException) -> BaseException | None:
    """The error, or what made the program exit; None where it exits because all is well."""
    if isinstance(error, SystemExit):
        return unless_survived(error.__context__) if exit_code_of(error.code) else None
    return error


def exit_code_of(status: object) -> int:
    """The code that a program gives which exits with this status.

    Python prints what is no integer, 0.0 and NumPy's 0 too, and gives 1; POSIX keeps the lowest byte of the others.
    """
    if status is None:
        return 0
    if not isinstance(status, int):
        return 1
    return status % CODES if -LONGEST <= status < LONGEST else CODES - 1


def unless_survived(error: BaseException | None) -> BaseException | None:
    """A program may end in the handler of Ctrl-C or of a shortage of memory, long after it went on training."""
    return None if error is None or is_survived(error) else error


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
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in SHORTAGES)
