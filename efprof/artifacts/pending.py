"""steps.pending: the last short steps of a process that was killed before it wrote them to steps.jsonl.

A step of a millisecond cannot pay for a line of its own, so the recorder writes several at once; until then each
lies here, in memory that is mapped to this file and outlives the process.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PENDING_FILE: Final = "steps.pending"
MAX_PENDING: Final = 32
MAX_MARKS: Final = 24

COUNT: Final = struct.Struct("<q")
"""How many steps follow; written last, so that what it counts is whole."""
ENTRIES: Final = tuple(struct.Struct(f"<{6 + 3 * count}q") for count in range(MAX_MARKS // 2 + 1))
"""A step, by the number of its stages: its number, its start in ns of the epoch, start and end in ns by the process's
own clock, samples, number of stages; for each stage its index into STAGE_CODES; the instants at which each begins and
ends."""

STAGE_CODES: Final = ("data", "forward", "backward", "optimizer")
ENTRY_BYTES: Final = ENTRIES[-1].size
FILE_BYTES: Final = COUNT.size + MAX_PENDING * ENTRY_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingStep:
    """A step in short: what a killed process had noted of it. `stages` are (stage, start ns, end ns) from its start."""

    number: int
    started_ns: int
    length_ns: int
    samples: int
    stages: tuple[tuple[str, int, int], ...]


def read_pending(rank_folder: Path) -> list[PendingStep]:
    """The steps in steps.pending; those that steps.jsonl has as well are among them."""
    try:
        content = (rank_folder / PENDING_FILE).read_bytes()
    except OSError:
        return []
    if len(content) != FILE_BYTES:
        return []
    (count,) = COUNT.unpack_from(content)
    return [_read_step(content, COUNT.size + index * ENTRY_BYTES) for index in range(min(count, MAX_PENDING))]


def _read_step(content: bytes, offset: int) -> PendingStep:
    number, epoch_ns, start, end, samples, num_stages, *numbers = ENTRIES[-1].unpack_from(content, offset)
    codes, marks = numbers[:num_stages], numbers[num_stages : 3 * num_stages]
    stages = zip(codes, marks[::2], marks[1::2], strict=True)
    return PendingStep(
        number=number,
        started_ns=epoch_ns,
        length_ns=end - start,
        samples=samples,
        stages=tuple((STAGE_CODES[code], began - start, ended - start) for code, began, ended in stages),
    )
