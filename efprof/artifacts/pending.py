"""steps.pending, of recordings of schema version 1: the last short steps of a process that was killed."""

import struct
from collections.abc import Sequence
from math import inf, isnan, nan
from pathlib import Path
from typing import Final

import msgspec

PENDING_FILE: Final = "steps.pending"
MAX_PENDING: Final = 256
MAX_MARKS: Final = 24

HEADER: Final = struct.Struct(f"<qq{MAX_MARKS}b")
"""How many steps follow, which is written last, so that what it counts is whole; the number of their calls; and those
calls' codes, the same for every step: an even one begins a stage, the odd one after it ends the same stage."""

ENTRY: Final = struct.Struct(f"<7q3d{MAX_MARKS}q")
"""A step's number, its start in ns of the epoch, start and end in ns by the process's own clock, samples, number of
losses, autograd's sequence number at the start of the forward pass or -1; the losses' sum, gradient norm and learning
rate, NaN where there is none; the instant of each call."""

FILE_BYTES: Final = HEADER.size + MAX_PENDING * ENTRY.size

STAGE_CODES: Final = ("data", "forward", "backward", "optimizer", "optimizer")
"""By half the code of the call that begins it; gradients are clipped in a stretch of the stage `optimizer`."""

NAN_NORM: Final = -inf
"""Stands for a gradient norm that is NaN, since NaN says that there is none."""

Stretch = tuple[str, int, int]
"""A stage, and the positions of the calls that begin and end it."""


class PendingStep(msgspec.Struct, gc=False):
    """A step in short: what its process had noted of it. Times are ns by that process's own clock.

    `loss` is the sum of `num_losses`; learning rate and norm are NaN where there is none.
    """

    number: int
    epoch_ns: int
    start_ns: int
    end_ns: int
    samples: int
    num_losses: int
    sequence: int
    loss: float
    gradient_norm: float
    learning_rate: float
    instants: tuple[int, ...]

    @property
    def norm(self) -> float | None:
        """That of the gradients, if any."""
        if isnan(self.gradient_norm):
            return None
        return nan if self.gradient_norm == NAN_NORM else self.gradient_norm


def read_pending(rank_folder: Path) -> tuple[list[PendingStep], list[Stretch]]:
    """The steps in steps.pending, of which steps.jsonl may have some as well, and their stages."""
    try:
        content = (rank_folder / PENDING_FILE).read_bytes()
    except OSError:
        return [], []
    if len(content) != FILE_BYTES:
        return [], []
    count, num_codes, *codes = HEADER.unpack_from(content)
    codes = codes[: max(0, num_codes)]
    if not 0 <= count <= MAX_PENDING or any(not 0 <= code < 2 * len(STAGE_CODES) for code in codes):
        return [], []
    entries = ENTRY.iter_unpack(content[HEADER.size : HEADER.size + count * ENTRY.size])
    steps = [PendingStep(*fields[:10], fields[10:]) for fields in entries]  # type: ignore[call-arg]
    return steps, [(STAGE_CODES[codes[begin] // 2], begin, begin + 1) for begin in range(0, len(codes) - 1, 2)]


def num_backwards(stretches: Sequence[Stretch]) -> int:
    """How often such a step goes through the stage `backward`."""
    return sum(stage == "backward" for stage, _, _ in stretches)
