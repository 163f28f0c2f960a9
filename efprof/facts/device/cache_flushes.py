"""When a program emptied the allocator's cache, by what its snapshots' histories tell."""

import statistics
from collections.abc import Iterator
from itertools import groupby, pairwise

from efprof.artifacts.snapshot import GROWTH, RELEASE
from efprof.facts.allocator.script import capacity_of
from efprof.facts.allocator.what_if import call_times_us
from efprof.facts.device.device_memory import DeviceHistory, recorded_devices
from efprof.facts.run.run import Run
from efprof.model import frozen_dataclass


@frozen_dataclass
class Flush:
    """Segments that went back to the driver at once, and the bytes that were asked of it until the next flush."""

    site: str | None
    library: tuple[str, ...]
    num_segments: int
    num_bytes: int
    taken_bytes: int


@frozen_dataclass
class FlushingLine:
    """All flushes of one line; `share` is what the driver's calls for them take of the recorded time, if known."""

    device: DeviceHistory
    site: str
    flushes: tuple[Flush, ...]
    share: float | None

    @property
    def mean_bytes(self) -> float:
        return statistics.mean(flush.num_bytes for flush in self.flushes)

    @property
    def taken_share(self) -> float:
        """Of what was given back, how much was asked for again."""
        given, taken = (
            sum(flush.num_bytes for flush in self.flushes),
            sum(flush.taken_bytes for flush in self.flushes),
        )
        return min(1.0, taken / max(1, given))


def flushes_of(device: DeviceHistory) -> list[Flush]:
    """In order. Flushes that gave nothing back leave no trace in a history, and are not counted."""
    entries, (_, emptied_at) = device.history.entries, capacity_of(device.history)
    found = [*_releases(device, emptied_at), (len(entries), [])]
    return [
        Flush(
            site=device.lines.site(entries[first].frames),
            library=device.lines.library(entries[first].frames),
            num_segments=len(sizes),
            num_bytes=sum(sizes),
            taken_bytes=sum(entry.size for entry in entries[first:following] if entry.action in GROWTH),
        )
        for (first, sizes), (following, _) in pairwise(found)
    ]


def flushing_lines(run: Run) -> list[FlushingLine]:
    """Of all devices, those that flush most often first."""
    found = []
    for device in recorded_devices(run):
        flushes = flushes_of(device)
        for site in dict.fromkeys(flush.site for flush in flushes if flush.site):
            its = tuple(flush for flush in flushes if flush.site == site)
            found.append(FlushingLine(device=device, site=site, flushes=its, share=_share(device, its)))
    return sorted(found, key=lambda line: -len(line.flushes))


def what_flushes_give_back(run: Run) -> float | None:
    """Bytes that a flush of the cache gives back, by the mean; None where no snapshot tells."""
    sizes = [flush.num_bytes for device in recorded_devices(run) for flush in flushes_of(device)]
    return statistics.mean(sizes) if sizes else None


def _releases(device: DeviceHistory, emptied_at: set[int]) -> Iterator[tuple[int, list[int]]]:
    for is_release, group in groupby(enumerate(device.history.entries), lambda one: one[1].action in RELEASE):
        released = list(group)
        if is_release and released[0][0] in emptied_at:
            yield released[0][0], [entry.size for _, entry in released]


def _share(device: DeviceHistory, flushes: tuple[Flush, ...]) -> float | None:
    """By the median time of each kind of call; what was given back is asked for by as many calls."""
    entries, call_us = device.history.entries, call_times_us(device.history.entries)
    first, last = entries[0].time_us, entries[-1].time_us
    kinds = ("segment_alloc", "segment_free")
    if first is None or last is None or last <= first or not all(kind in call_us for kind in kinds):
        return None
    return sum(flush.num_segments for flush in flushes) * sum(call_us[kind] for kind in kinds) / (last - first)
