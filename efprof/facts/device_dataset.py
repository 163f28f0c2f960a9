"""What lines of the user's put on a device before the first step and left there for good, by its recorded history."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from efprof.artifacts.events import LoaderBuilt, read_events
from efprof.artifacts.snapshot import Frames
from efprof.facts.device_dataset_uses import DatasetUse, DatasetUses
from efprof.facts.device_memory import DeviceHistory, DeviceMemory
from efprof.facts.run import Run
from efprof.facts.sources import place_of, split_site
from efprof.facts.step_code import StepCode
from efprof.facts.step_times import StepTimes

OF_THE_MODEL = re.compile(r"[/\\]torch[/\\](?:nn[/\\]modules|optim|autograd)[/\\]")
"""A stack with such a frame made parameters, what a model computes, or what its optimizer keeps."""

LEAST_SHARE = 0.1
"""Of the reserved peak. In 15 public histories without such a data set, no line outside of models and optimizers still
had more than 8 % of it at the end; those that had most were inputs of one inference."""
LEAST_BYTES = 64 * 1024**2
"""What fragmented_reserve asks for too: less is not what a device runs out of memory for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """What one line put on a device before the first step, and what was still there at the peak and at the end.

    `largest_bytes` is the largest tensor among them.
    """

    site: str
    num_bytes: int
    num_blocks: int
    largest_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceDataset:
    """A line that puts a data set on a device. `batch_bytes` is what a step takes of it, None where nothing tells."""

    device: DeviceHistory
    held: Held
    use: DatasetUse
    batch_bytes: int | None

    @property
    def saved_bytes(self) -> int:
        """What leaves the device: all but the batch that a step works on, and the one that is on its way."""
        return self.held.num_bytes - 2 * (self.batch_bytes or 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceDatasets:
    """Of all devices; `num_lines` held memory from before the first step, `unknown_bytes` nobody can be named for."""

    found: tuple[DeviceDataset, ...]
    num_lines: int
    held_bytes: int
    unknown_bytes: int

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded without a snapshot with a history, or without steps; UnreadableInput."""
        devices, times, code = run.get(DeviceMemory).devices, run.get(StepTimes), run.get(StepCode)
        uses = DatasetUses(code)
        started_us = times.every[0].record.started_ns / 1000
        batches = _num_batches(run)
        found, num_lines, held_bytes, unknown_bytes = [], 0, 0, 0
        for device in devices:
            blocks = list(_kept(device, started_us))
            lines = _by_line(device, blocks)
            num_lines, held_bytes = num_lines + len(lines), held_bytes + sum(one.num_bytes for one in lines)
            unknown_bytes += sum(size for size, frames in blocks if not frames)
            least = max(LEAST_BYTES, LEAST_SHARE * device.peak.composition.reserved_bytes)
            for held in lines:
                file, line, _ = split_site(held.site)
                use = uses.of_line(file, line) if held.num_bytes >= least else None
                if use is not None:
                    batch = _batch_bytes(device, held, use, started_us, batches)
                    one = DeviceDataset(device=device, held=held, use=use, batch_bytes=batch)
                    found += [one] if one.saved_bytes >= least else []
        return cls(found=tuple(found), num_lines=num_lines, held_bytes=held_bytes, unknown_bytes=unknown_bytes)


def _kept(device: DeviceHistory, started_us: float) -> Iterator[tuple[int, Frames]]:
    """Bytes and stack of each block that was there before the first step, at the peak, and at the end.

    A block from before the history has a stack only where torch recorded another one then, and only if it is still
    there at the end. Whether it came before the first step, the text must tell: its line runs in none.
    """
    entries = device.history.entries
    kept: dict[int, tuple[int, Frames]] = {one.address: (one.requested, one.frames) for one in device.history.live}
    for index, entry in enumerate(entries):
        if entry.action == "free_completed":
            kept.pop(entry.addr, None)
        elif entry.action == "alloc":
            kept.pop(entry.addr, None)
            is_before = entry.time_us is not None and entry.time_us < started_us
            if is_before and index <= device.peak_index:
                kept[entry.addr] = entry.size, entry.frames
    yield from kept.values()


def _by_line(device: DeviceHistory, blocks: list[tuple[int, Frames]]) -> list[Held]:
    """Most bytes first; a line is one whatever called it."""
    sizes: defaultdict[str, list[int]] = defaultdict(list)
    sites: dict[str, str] = {}
    for size, frames in blocks:
        site = device.lines.site(frames)
        if site is not None and not _is_of_the_model(frames):
            sizes[place_of(site)].append(size)
            sites.setdefault(place_of(site), site)
    held = [
        Held(site=sites[place], num_bytes=sum(of_line), num_blocks=len(of_line), largest_bytes=max(of_line))
        for place, of_line in sizes.items()
    ]
    return sorted(held, key=lambda one: -one.num_bytes)


def _is_of_the_model(frames: Frames) -> bool:
    return any(isinstance(one, Mapping) and OF_THE_MODEL.search(str(one.get("filename"))) for one in frames or ())


def _batch_bytes(
    device: DeviceHistory, held: Held, use: DatasetUse, started_us: float, num_batches: int | None
) -> int | None:
    """What a step takes: of a list its largest tensors; else what taking samples allocates, or what a loader tells."""
    if use.is_list:
        return held.largest_bytes * len(use.moves)
    places = {place_of(site) for site in use.use_sites}
    taken: defaultdict[str, int] = defaultdict(int)
    for entry in device.history.entries:
        if entry.action == "alloc" and entry.time_us is not None and entry.time_us >= started_us:
            site = device.lines.site((entry.frames or [])[:1])  # what a library makes there is no sample
            if site is not None and place_of(site) in places:
                taken[place_of(site)] = max(taken[place_of(site)], entry.size)
    if taken:
        return sum(taken.values())
    return None if num_batches is None else -(-held.num_bytes // num_batches)


def _num_batches(run: Run) -> int | None:
    """Of the loader that feeds the steps, into how many it divides its data set."""
    loaders = {time.record.loader for time in run.get(StepTimes).every} - {None}
    built = [event for event in read_events(run.rank_folder)[0] if isinstance(event, LoaderBuilt)]
    numbers = {event.num_batches for event in built if event.loader in loaders and event.num_batches}
    return min(numbers, default=None)
