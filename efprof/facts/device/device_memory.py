"""The histories of the CUDA allocator that a run's snapshots hold, one per device, replayed."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import islice, takewhile
from pathlib import Path
from typing import Self

from efprof.artifacts.snapshot import Frames, Snapshot, read_snapshot
from efprof.artifacts.steps import MAX_FRAMES
from efprof.facts.allocator.history import BEFORE, History, devices_of, history_of, state_of
from efprof.facts.allocator.layout import Instant, fullest_index, play_to
from efprof.facts.allocator.replay import Replay, Replayer
from efprof.facts.allocator.settings import is_small
from efprof.facts.allocator.what_if import Trial, WhatIf, best_of, try_configurations, worth_a_try
from efprof.facts.device.device_lines import DeviceLines, lines_over_time
from efprof.facts.run.run import Run
from efprof.facts.run.run_limits import allowed_bytes, memory_fraction
from efprof.facts.time.trace_windows import library_frame
from efprof.model import CUDA_DEVICE, NothingToLookAt, NotRecorded, UnreadableInput, frozen_dataclass

MANY_EVENTS = 50_000
"""Beyond it a history is tried under fewer settings: each costs some microseconds per operation, and a page should be
made within seconds."""

FEW_CANDIDATES = 1

LIBRARIES = re.compile(
    r"[/\\](?:site-packages|dist-packages)[/\\]|[/\\]lib[/\\]python3(?:\.\d+)?[/\\]|^<(?!ipython|stdin)|[/\\]torch[/\\]csrc[/\\]"
)
"""Of packages, of Python's own library, and what has no file; a notebook's cells and what was typed are the user's."""

PYTHON_FILE = re.compile(r"\.py$|^<ipython|^<stdin|ipykernel_")
"""All others are C++."""


@frozen_dataclass
class Failure:
    """A failed request, rounded to a block's size; what the driver had free for it; and all there was then."""

    requested_bytes: int
    device_free_bytes: int | None
    site: str | None
    instant: Instant
    piece_bytes: tuple[int, ...]
    """The free blocks that a request like this could be given: those of its own pool and stream."""

    @property
    def usable_bytes(self) -> int:
        """Of what was free, that which lay where such a request is served."""
        return sum(self.piece_bytes)

    @property
    def most_held_site(self) -> str | None:
        """The user's line whose tensors had most of the device."""
        return next((owner.site for owner in self.instant.owners if owner.site), None)

    @property
    def is_fragmentation(self) -> bool:
        """Whether the pieces it could be given and the driver's rest together would have been enough."""
        return self.usable_bytes + (self.device_free_bytes or 0) >= self.requested_bytes


class UserLines:
    """`file:line:function` of the innermost frame that is the user's, looked up once per stack.

    Snapshots share the frames among all events of a stack, if not the list of them, so their identity stands for it.
    """

    def __init__(self, working_folder: str) -> None:
        """Files below `working_folder` are named as they are called from there."""
        self._folder = working_folder.rstrip("/") + "/" if working_folder else ""
        self._known: dict[tuple[int, ...], str | None] = {}

    def site(self, frames: Frames) -> str | None:
        """None where no frame is the user's: a backward pass on CUDA runs in a thread without Python.

        Empty of what was there before the recording.
        """
        if frames is BEFORE:
            return ""
        if not isinstance(frames, list) or not frames:
            return None
        key = tuple(map(id, frames))
        if key not in self._known:
            self._known[key] = next(filter(None, map(self._user_site, frames)), None)
        return self._known[key]

    def library(self, frames: Frames) -> tuple[str, ...]:
        """The frames of libraries that the user's line called, the innermost first."""
        found = takewhile(lambda one: self._user_site(one) is None, frames if isinstance(frames, list) else ())
        names = (f"{one.get('filename')}({one.get('line')}): {one.get('name')}" for one in found)
        named = (library_frame(name) for name in names if ".py(" in name)
        return tuple(islice(filter(None, named), MAX_FRAMES))

    def _user_site(self, frame: object) -> str | None:
        if not isinstance(frame, Mapping):
            return None
        name, line, function = frame.get("filename"), frame.get("line"), frame.get("name")
        if not isinstance(name, str) or not isinstance(line, int) or not isinstance(function, str):
            return None
        if line < 1 or not PYTHON_FILE.search(name) or LIBRARIES.search(name):
            return None
        return f"{name.removeprefix(self._folder)}:{line}:{function.replace(':', ' ')}"


class DeviceHistory:
    """Through the snapshot `file`; `limit_bytes` is what the program lets itself take, None without a limit."""

    def __init__(self, file: str, history: History, lines: UserLines, *, limit_bytes: int | None) -> None:
        self.file = file
        self.history = history
        self.lines = lines
        entries = history.entries
        self.peak_index = fullest_index(history)
        failed = max((index for index, entry in enumerate(entries) if entry.action == "oom"), default=None)
        replayer = Replayer(history)
        instants: dict[int, Instant] = {}
        pieces: tuple[int, ...] = ()
        for index in sorted({self.peak_index, *([] if failed is None else [failed]), len(entries) - 1}):
            instants[index] = play_to(replayer, history, index, lines.site)
            if index == failed:
                request = entries[index]
                pool = replayer.allocator.pool(request.private_id, is_small_pool=is_small(request.size))
                pieces = tuple(block.size for block in pool.free_blocks() if block.stream == request.stream)
        self.replay: Replay = replayer.result
        self.peak = instants[self.peak_index]
        """When most was reserved, all that the instant's request got included."""
        self.end = instants[len(entries) - 1]
        is_kept = limit_bytes is not None and self.peak.composition.reserved_bytes <= limit_bytes
        self.limit_bytes = limit_bytes if is_kept else None  # one that was set later, or for another device, is none
        self.failure: Failure | None = None
        """The last request that the device could not serve; None where it served all."""
        if failed is not None:
            instant, free = instants[failed], entries[failed].device_free
            if free is not None and self.limit_bytes is not None:  # torch notes what the program may not take, too
                free = min(free, self.limit_bytes - instant.composition.reserved_bytes)
            self.failure = Failure(
                requested_bytes=entries[failed].size,
                device_free_bytes=free,
                site=lines.site(entries[failed].frames),
                instant=instant,
                piece_bytes=pieces,
            )

    @property
    def why_not_trusted(self) -> str:
        return self.replay.why_not_trusted(f"device {self.history.device} in {self.file}")

    @property
    def rank(self) -> str:
        """The folder of its rank; empty where there is one alone."""
        return self.file.rpartition("/")[0]

    @property
    def has_history(self) -> bool:
        """Whether the file tells how memory came to lie so; else it shows the end alone."""
        return self.replay.allocations > 0

    @cached_property
    def lines_over_time(self) -> DeviceLines:
        """Who had how much over the history, walked once for all pictures; the peak and the failure are drawn."""
        shown = [self.peak_index, *([] if self.failure is None else [self.failure.instant.index])]
        return lines_over_time(self.history, self.lines.site, shown)

    @cached_property
    def what_if(self) -> WhatIf:
        """The same program under other settings, on a device as large as its limit where it has one."""
        if self.limit_bytes is None:
            return WhatIf(self.history)
        settings = replace(self.history.settings, memory_fraction=None)
        return WhatIf(replace(self.history, settings=settings), capacity=self.limit_bytes)

    @cached_property
    def trials(self) -> list[Trial]:
        """Other settings and what they would reserve; none where only the end is known."""
        return try_others(self.what_if) if self.has_history else []

    @cached_property
    def best(self) -> Trial | None:
        """Of those that serve all requests."""
        return best_of(self.what_if, self.trials)


@frozen_dataclass
class RetryTrials:
    """A device's history under the recorded settings and under others, on a device as large as the real one.

    `best` is None where no other has fewer than half of the retries that the recorded ones have from the same start.
    """

    what_if: WhatIf
    trials: list[Trial]
    best: Trial | None


def try_others(what_if: WhatIf) -> list[Trial]:
    """Of a long history only the setting that helps most often."""
    most = FEW_CANDIDATES if len(what_if.history.entries) > MANY_EVENTS else None
    return try_configurations(what_if, worth_a_try(what_if)[:most])


@frozen_dataclass
class DeviceMemory:
    """Of each rank's devices the history that the last whole snapshot tells, the one of a failure before all others.

    `not_replayed` says why nothing is known of each other device of these files, and which file could not be read.
    """

    devices: tuple[DeviceHistory, ...]
    places: tuple[tuple[str, int], ...]
    """Of each its rank's folder and its number."""
    not_replayed: tuple[str, ...]
    newer: tuple[str, ...]
    """Of each file that has what torch did not write up to 2.15, a sentence."""

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Read and replay; raises NotRecorded where no snapshot has a history, UnreadableInput where none that can be
        read has.
        """
        lines = UserLines(run.run_file.working_folder)
        found: dict[tuple[str, int], DeviceHistory] = {}
        reasons: dict[tuple[str, int], str] = {}
        errors: dict[str, UnreadableInput] = {}
        newer: list[str] = []
        paths = _snapshots_of(run)
        if not paths and not (run.is_foreign or run.run_file.devices):
            raise NothingToLookAt(CUDA_DEVICE)
        if not paths:
            raise NotRecorded(
                "memory-<n>.pickle is missing; record the run without '--windows none', or give a snapshot."
            )
        for path, name in paths:
            rank = path.parent.name
            try:
                snapshot = read_snapshot(path)
            except UnreadableInput as error:
                errors[str(error).replace(str(path), name)] = error
                continue
            newer += [f"{name} {snapshot.newer}"] if snapshot.newer else []
            for device in devices_of(snapshot) or [0]:
                if (rank, device) in found:
                    continue
                try:
                    history, limit = history_of(snapshot, device), limit_bytes_of(run, device)
                    found[rank, device] = DeviceHistory(name, history, lines, limit_bytes=limit)
                except NotRecorded as error:
                    reasons.setdefault((rank, device), f"{name} {_tells(snapshot, device)}: {error}")
        if not found:
            raise next(iter(errors.values()), None) or NotRecorded(next(iter(reasons.values())))
        not_trusted = [one.why_not_trusted for one in found.values() if not one.replay.is_trusted]
        not_replayed = [reason for place, reason in reasons.items() if place not in found]
        return cls(
            devices=tuple(found.values()),
            places=tuple(found),
            not_replayed=(*errors, *not_trusted, *not_replayed),
            newer=tuple(newer),
        )

    @property
    def trusted(self) -> tuple[DeviceHistory, ...]:
        """Those that the model places as they were; raises NotRecorded where there is none."""
        trusted = tuple(device for device in self.devices if device.replay.is_trusted)
        if not trusted:
            raise NotRecorded(max(self.devices, key=lambda device: device.replay.match_share).why_not_trusted)
        return trusted


@frozen_dataclass
class DeviceStates:
    """Each device as far as its file tells: with its history where that can be replayed, else the end alone."""

    devices: tuple[DeviceHistory, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises what the histories raise where a file shows no state either."""
        memory, reason = None, None
        try:
            memory = run.get(DeviceMemory)
        except NotRecorded as error:
            reason = error
        known = zip(memory.places, memory.devices, strict=True) if memory else ()
        found = {place: device for place, device in known if device.replay.is_trusted}
        is_read = memory is not None
        if memory is None or memory.not_replayed:
            lines = UserLines(run.run_file.working_folder)
            for path, name in _snapshots_of(run):
                try:
                    snapshot = read_snapshot(path)
                except UnreadableInput:
                    continue
                is_read = True
                for device in devices_of(snapshot):
                    place = path.parent.name, device
                    if place not in found:
                        state = state_of(snapshot, device)
                        found[place] = DeviceHistory(name, state, lines, limit_bytes=limit_bytes_of(run, device))
        if not is_read and reason is not None:
            raise reason
        return cls(devices=tuple(found.values()))


def recorded_devices(run: Run) -> tuple[DeviceHistory, ...]:
    """None without a snapshot that can be read."""
    memory = run.find(DeviceMemory, UnreadableInput)
    return memory.devices if memory else ()


def limit_bytes_of(run: Run, number: int) -> int | None:
    """What the program lets itself take of this device; None without a limit."""
    device = next((device for device in run.run_file.devices if device.index == number), None)
    return None if device is None or memory_fraction(run) == 1 else allowed_bytes(run, device)


def _tells(snapshot: Snapshot, device: int) -> str:
    is_there = any(segment.device == device for segment in snapshot.segments)
    return f"tells {'only the end' if is_there else 'nothing'} of device {device}"


def _snapshots_of(run: Run) -> list[tuple[Path, str]]:
    """With the names that a report calls them by; of each rank a failure's first, then the latest."""
    ranks = run.rank_folders or (run.rank_folder,)
    paths = [path for rank in ranks for path in sorted(rank.glob("memory-*.pickle"), key=_order)]
    return [(path, _name_of(path, num_ranks=len(run.rank_folders))) for path in paths]


def _name_of(path: Path, *, num_ranks: int) -> str:
    """As a person knows the file: one that efprof did not record is linked into a folder made for it."""
    if path.is_symlink():
        return path.readlink().name
    return f"{path.parent.name}/{path.name}" if num_ranks > 1 else path.name


def _order(path: Path) -> tuple[bool, int]:
    """A failure's first, then the latest."""
    number = re.search(r"\d+$", path.stem)
    return number is not None, -int(number[0]) if number else 0
