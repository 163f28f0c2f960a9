"""steps.pending: the last short steps of a process that was killed before it wrote them to steps.jsonl.

A step of a millisecond cannot pay for a line of its own, so the recorder writes several at once; until then each
lies here, in memory that is mapped to this file and outlives the process. `recorder/stopwatch.c` writes it.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PENDING_FILE: Final = "steps.pending"
MAX_PENDING: Final = 64
MAX_MARKS: Final = 24

HEADER: Final = struct.Struct(f"<qq{MAX_MARKS}b")
"""How many steps follow, which is written last, so that what it counts is whole; the number of their calls; and those
calls' codes, the same for every step: an even one begins a stage, the odd one after it ends the same stage."""

ENTRY: Final = struct.Struct(f"<6q3d{MAX_MARKS}q")
"""A step's number, its start in ns of the epoch, start and end in ns by the process's own clock, samples, number of
losses; their sum, gradient norm and learning rate, NaN where there is none; the instant of each call."""

FILE_BYTES: Final = HEADER.size + MAX_PENDING * ENTRY.size

STAGE_CODES: Final = ("data", "forward", "backward", "optimizer", "optimizer")
"""By half the code of the call that begins it; gradients are clipped in a stretch of the stage `optimizer`."""

Stretch = tuple[str, int, int]
"""Stage, start and end in ns by the process's own clock."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingStep:
    """A step in short: what its process had noted of it. Times are ns by that process's own clock."""

    number: int
    epoch_ns: int
    start_ns: int
    end_ns: int
    samples: int
    loss: float | None
    gradient_norm: float | None
    learning_rate: float | None
    instants: list[int]
    stretches: list[Stretch]


def read_pending(rank_folder: Path) -> list[PendingStep]:
    """The steps in steps.pending; those that steps.jsonl has as well are among them."""
    try:
        content = (rank_folder / PENDING_FILE).read_bytes()
    except OSError:
        return []
    return parse_pending(content) if len(content) == FILE_BYTES else []


def parse_pending(content: bytes | memoryview) -> list[PendingStep]:
    """The steps that are whole."""
    count, num_codes, *codes = HEADER.unpack_from(content)
    count, num_codes = max(0, min(count, MAX_PENDING)), max(0, min(num_codes, MAX_MARKS))
    return [parse_step(content, index, codes[:num_codes]) for index in range(count)]


def parse_step(content: bytes | memoryview, index: int, codes: list[int] | tuple[int, ...]) -> PendingStep:
    """The step of this index, of which these calls were made."""
    number, epoch, start, end, samples, num_losses, loss, norm, rate, *instants = ENTRY.unpack_from(
        content, HEADER.size + index * ENTRY.size
    )
    return PendingStep(
        number=number,
        epoch_ns=epoch,
        start_ns=start,
        end_ns=end,
        samples=samples,
        loss=loss if num_losses else None,
        gradient_norm=None if math.isnan(norm) else norm,
        learning_rate=None if math.isnan(rate) else rate,
        instants=instants,
        stretches=stretches_of(codes, instants),
    )


def stretches_of(codes: list[int] | tuple[int, ...], instants: list[int]) -> list[Stretch]:
    """The stages that are over; where one lies within another, the outer one."""
    stretches, began = [], []
    for code, instant in zip(codes, instants, strict=False):
        if code % 2 == 0:
            began.append((code, instant))
        elif began:
            begin, start = began.pop()
            if not began:
                stretches.append((STAGE_CODES[begin // 2], start, instant))
    return stretches
