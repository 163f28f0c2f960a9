"""A recorded history as a program for the model: requests and returns in order, free of any address."""

from dataclasses import dataclass
from typing import Final

from efprof.artifacts.snapshot import Entry
from efprof.facts.allocator.history import History

ALLOCATE, FREE, EMPTY_CACHE, ATTEMPT = range(4)
"""ATTEMPT is a request that failed when it was recorded: where it is served now, it is returned at once."""

RELEASES: Final = frozenset({"segment_free", "segment_unmap"})
GROWTHS: Final = frozenset({"segment_alloc", "segment_map", "oom"})

Operation = tuple[int, int, int, int, tuple[int, int]]
"""What to do; the number of the block, by the order of requests; its bytes as asked for, stream and private pool."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """What a program asked of its allocator. `capacity` is what the device had for it, None where nothing tells.

    The first `num_live` operations allocate what was there before the recording began, in the order of `History.live`.
    """

    operations: list[Operation]
    num_live: int
    capacity: int | None
    peak_reserved_bytes: int
    """As recorded."""


def script_of(history: History) -> Script:
    """The requests of a history, those before it by address; memory that was given back because it was asked for."""
    operations: list[Operation] = []
    numbers: dict[int, int] = {}
    for block in history.live:
        numbers[block.address] = len(operations)
        operations.append((ALLOCATE, len(operations), block.requested, block.stream, block.private_id))
    num_live = num_blocks = len(operations)
    for index, entry in enumerate(history.entries):
        if entry.action == "alloc" and entry.size:
            stale = numbers.get(entry.addr)
            if stale is not None:
                operations.append((FREE, stale, 0, entry.stream, (0, 0)))
            numbers[entry.addr] = num_blocks
            operations.append((ALLOCATE, num_blocks, entry.size, entry.stream, history.private_id_of(entry)))
            num_blocks += 1
        elif entry.action == "free_completed":
            number = numbers.pop(entry.addr, None)
            if number is not None:
                operations.append((FREE, number, 0, entry.stream, (0, 0)))
        elif entry.action in RELEASES and _begins_emptying(history.entries, index):
            operations.append((EMPTY_CACHE, -1, 0, 0, (0, 0)))
        elif entry.action == "oom":
            operations.append((ATTEMPT, num_blocks, entry.size, entry.stream, (0, 0)))
            num_blocks += 1
    capacity, peak = _reserved(history)
    return Script(operations=operations, num_live=num_live, capacity=capacity, peak_reserved_bytes=peak)


def _begins_emptying(entries: list[Entry], index: int) -> bool:
    """Whether the first of several releases in a row was asked for by the program, as by `torch.cuda.empty_cache()`."""
    if index and entries[index - 1].action in RELEASES:
        return False
    return is_asked_for(entries, index)


def is_asked_for(entries: list[Entry], index: int) -> bool:
    """Whether this release was; the others come with a request that nothing free could serve.

    Its stack tells; where none was recorded, what comes after it does.
    """
    frames = entries[index].frames
    if frames:
        return any("empty_cache" in _name(frame) or "emptyCache" in _name(frame) for frame in frames)
    following = next((entry.action for entry in entries[index:] if entry.action not in RELEASES), None)
    return following not in GROWTHS


def _name(frame: object) -> str:
    name = frame.get("name") if isinstance(frame, dict) else None
    return name if isinstance(name, str) else ""


def _reserved(history: History) -> tuple[int | None, int]:
    """What the device had, as far as a failure or a retry tells, and the most that was reserved."""
    reserved = peak = sum(extent.num_bytes for extent in history.extents)
    has_retried, told = False, None
    for index, entry in enumerate(history.entries):
        if entry.action in {"segment_alloc", "segment_map"}:
            reserved += entry.size
            peak = max(peak, reserved)
        elif entry.action in RELEASES:
            has_retried = has_retried or (
                _is_first(history.entries, index) and not is_asked_for(history.entries, index)
            )
            reserved -= entry.size
        elif entry.action == "oom" and entry.device_free is not None:
            told = max(told or 0, reserved + entry.device_free)
    if told is not None:
        return max(told, peak), peak
    return (peak if has_retried else None), peak


def _is_first(entries: list[Entry], index: int) -> bool:
    return not index or entries[index - 1].action not in RELEASES
