"""A recorded history as a program for the model, free of any address; and how large a device it was recorded on."""

from itertools import takewhile

from efprof.artifacts.snapshot import DEFAULT_POOL, GROWTH, RELEASE, Entry, Frames, PoolId
from efprof.facts.allocator.history import History
from efprof.facts.allocator.settings import SMALL_SEGMENT_BYTES
from efprof.model import frozen_dataclass

ALLOCATE, FREE, EMPTY_CACHE, ATTEMPT = range(4)
"""ATTEMPT is a request that failed when it was recorded: where it is served now, it is returned at once."""

REQUESTS = GROWTH | {"oom"}
"""Of memory from the driver, served or not."""

Operation = tuple[int, int, int, int, PoolId]
"""What to do; the number of the block, by the order of requests; its bytes as asked for, stream and private pool."""


@frozen_dataclass
class Script:
    """What a program asked of its allocator. `capacity` is what the device had for it, None where nothing tells.

    The first `num_live` operations allocate what was there before the recording began, in the order of `History.live`.
    """

    operations: list[Operation]
    num_live: int
    capacity: int | None


def script_of(history: History) -> Script:
    """The requests of a history, those before it by address; memory that was given back because it was asked for."""
    operations: list[Operation] = []
    numbers: dict[int, int] = {}
    for block in history.live:
        numbers[block.address] = len(operations)
        operations.append((ALLOCATE, len(operations), block.requested, block.stream, block.private_id))
    num_live = num_blocks = len(operations)
    capacity, asked_for = capacity_of(history)
    for index, entry in enumerate(history.entries):
        is_served = entry.action == "alloc" and entry.size > 0
        if is_served or entry.action == "free_completed":  # where a block's end was not recorded, it must have come
            number = numbers.pop(entry.addr, None)
            if number is not None:
                operations.append((FREE, number, 0, entry.stream, DEFAULT_POOL))
        if is_served or entry.action == "oom":
            kind = ALLOCATE if is_served else ATTEMPT
            operations.append((kind, num_blocks, entry.size, entry.stream, entry.private_id))
            num_blocks += 1
        if is_served:
            numbers[entry.addr] = num_blocks - 1
        if index in asked_for:
            operations.append((EMPTY_CACHE, -1, 0, 0, DEFAULT_POOL))
    return Script(operations=operations, num_live=num_live, capacity=capacity)


def capacity_of(history: History) -> tuple[int | None, set[int]]:
    """What the device had, as far as a failure or a retry tells; and where the cache was emptied."""
    entries = history.entries
    reserved = peak = sum(extent.num_bytes for extent in history.extents)
    before: list[tuple[int, int]] = []
    told = None
    for index, entry in enumerate(entries):
        if entry.action in GROWTH:
            reserved += entry.size
            peak = max(peak, reserved)
        elif entry.action in RELEASE:
            if not index or entries[index - 1].action not in RELEASE:
                before.append((index, reserved))
            reserved -= entry.size
        elif entry.action == "oom" and entry.device_free is not None:
            told = max(told or 0, reserved + entry.device_free)
    asked_for = {index for index, reserved in before if _is_asked_for(entries, index, reserved, peak)}
    if told is not None:
        return max(told, peak), asked_for
    return (peak if len(asked_for) < len(before) else None), asked_for


def _is_asked_for(entries: list[Entry], index: int, reserved: int, peak: int) -> bool:
    """Whether the first of several releases in a row was asked for by the program, as by `torch.cuda.empty_cache()`.

    The others come with a request that nothing free could serve. Its stack tells, unless it is that of the memory's
    request, as below `context="all"`; then what comes after it does: a device that had more reserved at another time
    had room for what came next.
    """
    after = (entries[following] for following in range(index, len(entries)))
    growth = next((entry for entry in after if entry.action not in RELEASE), None)
    frames = entries[index].frames
    if frames and any("empty_cache" in _name(frame) or "emptyCache" in _name(frame) for frame in frames):
        return True
    if growth is None or growth.action not in REQUESTS:
        return True
    released = takewhile(lambda entry: entry.action in RELEASE, (entries[at] for at in range(index, len(entries))))
    if any(entry.size >= growth.size and _pool_of(entry) == _pool_of(growth) for entry in released):
        return True  # it would have served the request
    if (lines := _python(frames)) and (asking := _python(growth.frames)) and lines != asking:
        return True
    return growth.action != "oom" and reserved + growth.size <= peak


def _pool_of(segment: Entry) -> tuple[bool, int, PoolId]:
    return segment.size == SMALL_SEGMENT_BYTES, segment.stream, segment.private_id


def _python(frames: Frames) -> list[object]:
    """Without what is C++: there the two differ, whoever asked."""
    files = [(frame, frame.get("filename")) for frame in frames or () if isinstance(frame, dict)]
    return [frame for frame, file in files if isinstance(file, str) and file.endswith(".py")]


def _name(frame: object) -> str:
    name = frame.get("name") if isinstance(frame, dict) else None
    return name if isinstance(name, str) else ""
