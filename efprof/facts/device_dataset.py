"""What lines of the user's put on a device before the first step and left there, while steps use a part at a time."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from efprof.artifacts.events import DeviceData, DeviceTensor, read_events
from efprof.artifacts.snapshot import Frames
from efprof.facts.device_memory import DeviceHistory, DeviceMemory
from efprof.facts.run import Run
from efprof.facts.sources import place_of
from efprof.facts.step_times import StepTimes
from efprof.model import NotRecorded, ThinEvidence

OF_THE_MODEL = re.compile(r"[/\\]torch[/\\](?:nn[/\\]modules|optim|autograd)[/\\]")
"""A stack with such a frame made parameters, what a model computes, or what its optimizer keeps."""

Block = tuple[int, int, Frames]
"""Its address, its bytes, and the stack that asked for it."""

LEAST_SHARE = 0.1
"""Of the reserved peak. In 15 public histories without such a data set, no line outside of models and optimizers still
had more than 8 % of it at the end; those that had most were inputs of one inference."""
LEAST_BYTES = 64 * 1024**2
"""What fragmented_reserve asks for too: less is not what a device runs out of memory for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """What one line put on a device before the first step, and what was still there at the peak and at the end.

    `largest_bytes` is the largest tensor among them, `addresses` are where they lie.
    """

    site: str
    num_bytes: int
    num_blocks: int
    largest_bytes: int
    addresses: frozenset[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceDataset:
    """A line that puts a data set on a device; `batch_bytes` is what a step reads of it, at the lines `use_sites`."""

    device: DeviceHistory
    held: Held
    use_sites: tuple[str, ...]
    batch_bytes: int

    @property
    def saved_bytes(self) -> int:
        """What leaves the device: all but the batch that a step works on, and the one that is on its way."""
        return self.held.num_bytes - 2 * self.batch_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceDatasets:
    """Of all devices; `num_lines` held memory from before the first step, `unknown_bytes` nobody can be named for."""

    found: tuple[DeviceDataset, ...]
    num_lines: int
    held_bytes: int
    unknown_bytes: int

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded without a snapshot with a history, or without steps; UnreadableInput.

        Where a line holds much, also where nobody looked at what the steps use of it, or ThinEvidence where none could.
        """
        devices, times = run.get(DeviceMemory).devices, run.get(StepTimes)
        started_us = times.every[0].record.started_ns / 1000
        found, num_lines, held_bytes, unknown_bytes = [], 0, 0, 0
        for device in devices:
            blocks = list(_kept(device, started_us))
            lines = _by_line(device, blocks)
            num_lines, held_bytes = num_lines + len(lines), held_bytes + sum(one.num_bytes for one in lines)
            unknown_bytes += sum(size for _, size, frames in blocks if not frames)
            least = max(LEAST_BYTES, LEAST_SHARE * device.peak.composition.reserved_bytes)
            for held in lines:
                one = _dataset(device, held, _seen(run)) if held.num_bytes >= least else None
                found += [one] if one is not None and one.saved_bytes >= least else []
        return cls(found=tuple(found), num_lines=num_lines, held_bytes=held_bytes, unknown_bytes=unknown_bytes)


def _seen(run: Run) -> DeviceData:
    seen = [event for event in read_events(run.rank_folder)[0] if isinstance(event, DeviceData)]
    if not seen:
        raise NotRecorded("events.jsonl tells of no device_data: record the run again with this efprof.")
    if seen[-1].why_not:
        raise ThinEvidence(f"what steps use of the data on the device was not looked at: {seen[-1].why_not}.")
    return seen[-1]


def _dataset(device: DeviceHistory, held: Held, seen: DeviceData) -> DeviceDataset | None:
    """The line's tensors, if steps read other parts of them each time, and never write to them."""
    used: list[DeviceTensor] = [one for one in seen.tensors if one.address in held.addresses]
    is_varied = any(one.is_varied for one in used) or 0 < len(used) < held.num_blocks
    if not is_varied or any(one.is_written for one in used):
        return None
    return DeviceDataset(
        device=device,
        held=held,
        use_sites=tuple(dict.fromkeys(site for one in used for site in one.sites)),
        batch_bytes=sum(one.taken_bytes for one in used) // seen.num_steps,
    )


def _kept(device: DeviceHistory, started_us: float) -> Iterator[Block]:
    """Each block that was there before the first step, at the peak, and at the end.

    A block from before the history has a stack only where torch recorded another one then, and only if it is still
    there at the end. Whether it came before the first step, the second one's begin tells, where it was seen.
    """
    entries = device.history.entries
    kept: dict[int, Block] = {one.address: (one.address, one.requested, one.frames) for one in device.history.live}
    for index, entry in enumerate(entries):
        if entry.action == "free_completed":
            kept.pop(entry.addr, None)
        elif entry.action == "alloc":
            kept.pop(entry.addr, None)
            is_before = entry.time_us is not None and entry.time_us < started_us
            if is_before and index <= device.peak_index:
                kept[entry.addr] = entry.addr, entry.size, entry.frames
    yield from kept.values()


def _by_line(device: DeviceHistory, blocks: list[Block]) -> list[Held]:
    """Most bytes first; a line is one whatever called it."""
    by_place: defaultdict[str, list[Block]] = defaultdict(list)
    sites: dict[str, str] = {}
    for block in blocks:
        site = device.lines.site(block[2])
        if site is not None and not _is_of_the_model(block[2]):
            by_place[place_of(site)].append(block)
            sites.setdefault(place_of(site), site)
    held = [
        Held(
            site=sites[place],
            num_bytes=sum(size for _, size, _ in of_line),
            num_blocks=len(of_line),
            largest_bytes=max(size for _, size, _ in of_line),
            addresses=frozenset(address for address, _, _ in of_line),
        )
        for place, of_line in by_place.items()
    ]
    return sorted(held, key=lambda one: -one.num_bytes)


def _is_of_the_model(frames: Frames) -> bool:
    return any(isinstance(one, Mapping) and OF_THE_MODEL.search(str(one.get("filename"))) for one in frames or ())
