"""What lay on the device when memory ran out and no history was kept: its blocks, and the lines likely behind them."""

from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from efprof.artifacts.events import DeviceShortage
from efprof.artifacts.snapshot import Block, Entry, Snapshot, read_snapshot
from efprof.facts.allocator.history import history_before
from efprof.facts.allocator.rules import SMALL_BYTES, SMALL_SEGMENT_BYTES
from efprof.facts.device_memory import DeviceHistory, DeviceMemory, UserLines, limit_bytes_of
from efprof.facts.live_memory import LiveMemory, sites_of
from efprof.facts.run import Run
from efprof.facts.run_limits import MemoryFailure
from efprof.facts.sources import Sources, place_of, split_site
from efprof.model import NotRecorded, UnreadableInput

SNAPSHOT: Final = "memory-out-of-memory.pickle"

Lines = Counter[str]
"""How many blocks each place (`file:line`) asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeClass:
    """Blocks in use for which as much was asked. `likely` are the lines that a window saw ask for as much."""

    requested_bytes: int
    num_blocks: int
    num_bytes: int
    num_unknown: int
    """Those whose own stacks name no line of the user's."""
    known: Lines
    likely: Lines
    window: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureState:
    """The device, whose history is the failed request alone, and what is in use by size, most bytes first."""

    device: DeviceHistory
    sizes: tuple[SizeClass, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded where no snapshot was taken when memory ran out, UnreadableInput where it is spoilt."""
        failure = run.get(MemoryFailure)
        path = failure.rank_folder / SNAPSHOT
        if not path.exists():
            raise NotRecorded(f"{SNAPSHOT} is missing; record the run on a CUDA device.")
        snapshot, told, requested = read_snapshot(path), failure.shortage, failure.requested_bytes or 0
        if told is None or told.requested_bytes != requested:  # it is of another failure
            told = DeviceShortage(at_ns=0, step=0)
        reserved = Counter[int]()
        for segment in snapshot.segments:
            reserved[segment.device] += segment.total_size
        number = max(reserved, key=reserved.__getitem__, default=0) if told.device is None else told.device
        size = SMALL_BYTES if requested == SMALL_SEGMENT_BYTES else requested
        place = zip(("filename", "line", "name"), split_site(failure.site), strict=True) if failure.site else ()
        request = Entry(action="oom", size=size, device_free=told.free_bytes, frames=[dict(place)])
        history, lines = history_before(snapshot, number, [request]), UserLines(run.run_file.working_folder)
        name = f"{failure.rank_folder.name}/{SNAPSHOT}" if len(run.rank_folders) > 1 else SNAPSHOT
        device = DeviceHistory(name, history, lines, limit_bytes=limit_bytes_of(run, number))
        return cls(device=device, sizes=tuple(_sizes(run, snapshot, device)))


def _sizes(run: Run, snapshot: Snapshot, device: DeviceHistory) -> list[SizeClass]:
    found: defaultdict[int, list[Block]] = defaultdict(list)
    for segment in snapshot.segments:
        for block in segment.blocks:
            if segment.device == device.history.device and block.is_active:
                found[block.requested_size or block.size].append(block)
    windows = _windows(run, device)
    classes = []
    for requested, blocks in found.items():
        sites = [device.lines.site(block.frames) for block in blocks]
        seen = ((name, lines[size]) for name, lines in windows for size in (requested, blocks[0].size) if size in lines)
        window, likely = next(seen, ("", Lines()))
        classes.append(
            SizeClass(
                requested_bytes=requested,
                num_blocks=len(blocks),
                num_bytes=sum(block.size for block in blocks),
                num_unknown=sites.count(None),
                known=Lines(place_of(site) for site in sites if site is not None),
                likely=likely,
                window=window,
            )
        )
    return sorted(classes, key=lambda one: -one.num_bytes)


def _windows(run: Run, device: DeviceHistory) -> list[tuple[str, dict[int, Lines]]]:
    """By size the lines that the last memory window saw ask for it, then the profiler's windows from the last on.

    The allocator's history has what was asked for, a profiler the size of the block that was given.
    """
    asked: list[tuple[str, list[tuple[int, str | None]]]] = []
    number, rank = device.history.device, device.file.rpartition("/")[0]
    with suppress(NotRecorded, UnreadableInput):
        for one in run.get(DeviceMemory).devices:
            if (one.history.device, one.file.rpartition("/")[0]) == (number, rank):
                allocs = [entry for entry in one.history.entries if entry.action == "alloc"]
                asked.append((one.file, [(entry.size, one.lines.site(entry.frames)) for entry in allocs]))
    with suppress(NotRecorded, UnreadableInput):
        if rank in ("", run.rank_folder.name):
            for window in reversed(run.get(LiveMemory).windows):
                sizes = [event.num_bytes for event in window.events]
                asked.append((window.name, list(zip(sizes, sites_of(window, run.get(Sources)), strict=True))))
    windows = []
    for name, requests in asked:
        lines: defaultdict[int, Lines] = defaultdict(Lines)
        for size, site in requests:
            if site is not None:
                lines[size][place_of(site)] += 1
        windows.append((name, dict(lines)))
    return windows
