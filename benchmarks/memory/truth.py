"""Replays recordings of real programs, and tells how much of what happened the model of the allocator says."""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from efprof.artifacts.snapshot import Snapshot, read_snapshot
from efprof.facts.allocator.history import devices_of, history_of
from efprof.facts.allocator.replay import Replay, replay
from efprof.facts.allocator.what_if import WhatIf
from efprof.model import NotRecorded, UnreadableInput
from efprof.units import format_bytes, format_share

REPEATS: Final = 3
"""Of a timed replay, of which the median counts."""

METHOD: Final = """
## Recordings of real programs

Equal are the addresses of allocations, and the addresses and sizes of what the driver was asked for. The peaks are of
reserved memory under the recorded settings. Their prediction starts from the state that the recording began with; a
cold start, as every prediction for other settings makes it, has only what was allocated then, and misses that much of
the peak. Where the driver was asked for nothing, 0 / 0 segments, the recorded peak is what was reserved before, and
predicting it means to ask for nothing either. Events per second are those of finding the state before the first event
and replaying, without the reading.
"""

TABLE_HEAD: Final = (
    "| recording | device | events | addresses equal | segments equal | peak recorded | predicted | missed cold "
    "| events per second |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
)


@dataclass(frozen=True, kw_only=True)
class Truth:
    """A device of a recording: the peak predicted for its own settings, and what a cold start misses of it.

    None where the recording itself began cold.
    """

    recording: str
    device: int
    num_events: int
    replay: Replay
    predicted_bytes: int
    missed_bytes: int | None
    seconds: float

    @property
    def is_exact(self) -> bool:
        """Whether the prediction is the recorded peak."""
        return self.predicted_bytes == self.replay.peak_reserved_recorded_bytes


def truth_lines(folder: Path) -> Iterator[str]:
    """The table, and a line for each recording that has nothing to replay."""
    yield METHOD
    files = sorted(folder.glob("*.pickle"))
    if not files:
        yield f"Left out: there is no recording in {folder}."
        return
    yield from TABLE_HEAD
    truths: list[Truth] = []
    left_out: list[str] = []
    for file in files:
        for found in _truths(file):
            if isinstance(found, Truth):
                truths.append(found)
                yield _line(found)
            else:
                left_out.append(found)
    if truths:
        yield _sum_line(truths)
    yield ""
    yield from left_out


def _truths(file: Path) -> Iterator[Truth | str]:
    """One for each device, or why there is none."""
    try:
        snapshot = read_snapshot(file)
    except UnreadableInput as error:
        yield f"- Left out: {error}"
        return
    devices = devices_of(snapshot)
    if not devices:
        yield f"- Left out: {file.stem}, which holds no device."
    for device in devices:
        try:
            yield _truth(file.stem, snapshot, device)
        except NotRecorded as error:
            yield f"- Left out: {file.stem}, device {device}: {str(error).partition(';')[0]}."


def _truth(recording: str, snapshot: Snapshot, device: int) -> Truth:
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        history = history_of(snapshot, device)
        replayed = replay(history)
        seconds.append(time.perf_counter() - start)
    what_if = WhatIf(history)
    return Truth(
        recording=recording,
        device=device,
        num_events=len(history.entries),
        replay=replayed,
        predicted_bytes=what_if.recorded.peak_reserved_bytes,
        missed_bytes=what_if.missed_bytes if history.live or history.extents else None,
        seconds=statistics.median(seconds),
    )


def _line(truth: Truth) -> str:
    replayed = truth.replay
    recorded = replayed.peak_reserved_recorded_bytes
    return _row(
        [
            truth.recording,
            f"{truth.device}",
            f"{truth.num_events:,}",
            f"{replayed.addresses_equal:,} / {replayed.allocations:,}",
            f"{replayed.segments_equal:,} / {replayed.segments:,}",
            format_bytes(recorded),
            "equal" if truth.is_exact else format_bytes(truth.predicted_bytes),
            _missed(truth.missed_bytes, recorded),
            f"{truth.num_events / truth.seconds:,.0f}",
        ]
    )


def _sum_line(truths: Sequence[Truth]) -> str:
    replays, num_events = [truth.replay for truth in truths], sum(truth.num_events for truth in truths)
    seconds = sum(truth.seconds for truth in truths)
    most_missed = max((truth.missed_bytes or 0) / truth.replay.peak_reserved_recorded_bytes for truth in truths)
    return _row(
        [
            "all",
            f"{len(truths)}",
            f"{num_events:,}",
            f"{sum(one.addresses_equal for one in replays):,} / {sum(one.allocations for one in replays):,}",
            f"{sum(one.segments_equal for one in replays):,} / {sum(one.segments for one in replays):,}",
            "",
            f"{sum(truth.is_exact for truth in truths)} equal",
            f"at most {format_share(most_missed)}",
            f"{num_events / seconds:,.0f}",
        ]
    )


def _missed(missed_bytes: int | None, recorded_bytes: int) -> str:
    if missed_bytes is None:
        return "began cold"
    return f"{format_bytes(missed_bytes)} ({format_share(missed_bytes / recorded_bytes)})"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
