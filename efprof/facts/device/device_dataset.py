"""What lines of the user's put on a device before the first step and left there, while steps use a part at a time."""

import re
from collections.abc import Mapping, Sequence
from typing import Self

from efprof.artifacts.events import DeviceData, events_of
from efprof.artifacts.snapshot import Frames
from efprof.facts.device.device_memory import DeviceHistory, DeviceMemory
from efprof.facts.run.run import Run
from efprof.facts.source.sources import place_of
from efprof.facts.steps.step_times import StepTimes
from efprof.model import NotRecorded, ThinEvidence, frozen_dataclass

OF_THE_MODEL = re.compile(r"[/\\]torch[/\\](?:nn[/\\]modules|optim|autograd)[/\\]")
"""A stack with such a frame made parameters, what a model computes, or what its optimizer keeps."""

Block = tuple[int, int, Frames]
"""Its address, its bytes, and the stack that asked for it."""

MIN_SHARE = 0.1
"""Of the reserved peak. In 15 public histories without such a data set, no line outside of models and optimizers still
had more than 8 % of it at the end; those that had most were inputs of one inference."""
MIN_BYTES = 64 * 1024**2
"""What fragmented_reserve asks for too: less is not what a device runs out of memory for."""


@frozen_dataclass
class DeviceDataset:
    """What one line put there and is still there at the end; a step reads `batch_bytes` of it, first at `use_site`."""

    device: DeviceHistory
    site: str
    blocks: tuple[Block, ...]
    use_site: str | None
    batch_bytes: int

    @property
    def num_bytes(self) -> int:
        return _bytes_of(self.blocks)

    @property
    def saved_bytes(self) -> int:
        """What leaves the device: all but the batch that a step works on, and the one that is on its way."""
        return self.num_bytes - 2 * self.batch_bytes


@frozen_dataclass
class DeviceDatasets:
    """Of all devices; of `held_bytes` from before the first step nobody can be named for `unknown_bytes`."""

    found: tuple[DeviceDataset, ...]
    held_bytes: int
    unknown_bytes: int

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded without a snapshot with a history, or without steps; UnreadableInput.

        Where a line holds much, also where nobody looked at what the steps use of it, or ThinEvidence where none could.
        """
        devices, times = run.get(DeviceMemory).devices, run.get(StepTimes)
        started_us = times.every[0].record.started_ns / 1000
        found, held_bytes, unknown_bytes = [], 0, 0
        for device in devices:
            kept = _kept(device, started_us)
            lines = _by_line(device, kept)
            held_bytes += _bytes_of(kept)
            unknown_bytes += _bytes_of([block for block in kept if not block[2]])
            least = max(MIN_BYTES, MIN_SHARE * device.peak.composition.reserved_bytes)
            for site, blocks in lines.items():
                one = _dataset(device, site, blocks, _seen(run)) if _bytes_of(blocks) >= least else None
                found += [one] if one is not None and one.saved_bytes >= least else []
        found.sort(key=lambda one: -one.num_bytes)
        return cls(found=tuple(found), held_bytes=held_bytes, unknown_bytes=unknown_bytes)


def _seen(run: Run) -> DeviceData:
    seen = events_of(run.rank_folder, DeviceData)
    if not seen:
        raise NotRecorded("events.jsonl holds no device_data: record the run again with this efprof.")
    if seen[-1].why_not:
        raise ThinEvidence(f"what steps use of the data on the device was not looked at: {seen[-1].why_not}.")
    return seen[-1]


def _dataset(device: DeviceHistory, site: str, blocks: Sequence[Block], seen: DeviceData) -> DeviceDataset | None:
    """The line's tensors, if steps read other parts of them each time, and never write to them."""
    addresses = {address for address, _, _ in blocks}
    used = [one for one in seen.tensors if one.address in addresses]
    is_varied = any(one.is_varied for one in used) or 0 < len(used) < len(blocks)
    if not is_varied or any(one.is_written for one in used):
        return None
    return DeviceDataset(
        device=device,
        site=site,
        blocks=tuple(blocks),
        use_site=next((site for one in used for site in one.sites), None),
        batch_bytes=sum(one.taken_bytes for one in used) // seen.num_steps,
    )


def _kept(device: DeviceHistory, started_us: float) -> list[Block]:
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
    return list(kept.values())


def _by_line(device: DeviceHistory, blocks: list[Block]) -> dict[str, list[Block]]:
    """By a site of each line that is not the model's; a line is one whatever called it."""
    found: dict[str, tuple[str, list[Block]]] = {}
    for block in blocks:
        files = (str(one.get("filename")) for one in block[2] or () if isinstance(one, Mapping))
        site = device.lines.site(block[2])
        if site and not any(map(OF_THE_MODEL.search, files)):
            found.setdefault(place_of(site), (site, []))[1].append(block)
    return dict(found.values())


def _bytes_of(blocks: Sequence[Block]) -> int:
    return sum(size for _, size, _ in blocks)
