"""What emptying the allocator's cache gave back, and how much of it was asked for again, by the recorded history."""

from dataclasses import dataclass
from typing import Self

from efprof.facts.allocator.history import History
from efprof.facts.allocator.script import RELEASES, capacity_of
from efprof.facts.device_memory import DeviceMemory
from efprof.facts.run import Run
from efprof.model import UnreadableInput


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheFlushes:
    """Means over the flushes; those that gave nothing back leave no trace in a history, and are not counted."""

    num_flushes: int
    returned_bytes: float
    asked_again_bytes: float

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Of all devices together; zeros where no snapshot tells."""
        memory = run.find(DeviceMemory, UnreadableInput)
        pairs = [pair for device in (memory.devices if memory else ()) for pair in flushes_in(device.history)]
        count = len(pairs)
        return cls(
            num_flushes=count,
            returned_bytes=sum(returned for returned, _ in pairs) / max(1, count),
            asked_again_bytes=sum(min(pair) for pair in pairs) / max(1, count),
        )


def flushes_in(history: History) -> list[tuple[int, int]]:
    """For each flush the bytes that it gave back, and those asked of the driver until the next one."""
    _, emptied_at = capacity_of(history)
    flushes: list[list[int]] = []
    is_in_flush = False
    for index, entry in enumerate(history.entries):
        if index in emptied_at:
            flushes.append([0, 0])
            is_in_flush = True
        if entry.action in RELEASES:
            if is_in_flush:
                flushes[-1][0] += entry.size
            continue
        is_in_flush = False
        if entry.action in {"segment_alloc", "segment_map"} and flushes:
            flushes[-1][1] += entry.size
    return [(returned, again) for returned, again in flushes]
