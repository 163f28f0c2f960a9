"""How much memory there is, at which step a given growth would use it up, and the request that found none left."""

import math
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Self

from efprof.artifacts.events import DeviceOutOfMemory, OutOfMemory, StepInterrupted, events_of
from efprof.artifacts.memory_messages import library_in
from efprof.artifacts.readings import read_device_use
from efprof.artifacts.run_file import Device
from efprof.facts.run.run import Run
from efprof.model import ENDED_WELL, NotRecorded, Severity, frozen_dataclass, severity_by_time_left
from efprof.model.severity import DAY_S
from efprof.units import format_bytes, format_duration

FRACTION_SETTING = "memory fraction"
"""Among the settings in run.json: what `torch.cuda.set_per_process_memory_fraction` was given, 1.0 where nothing."""
FARTHEST_S = 365 * DAY_S
"""An end that is farther off is not told."""
ROUNDED_SHARE = 0.006
"""By which the request in an error's message may differ from the one that failed: `1.00 MiB` is of two digits."""


def catches_out_of_memory(run: Run) -> bool:
    """Whether the program went on after the last request that a device could not serve, and finished a step."""
    if run.run_file.ended == "out_of_memory":
        return False
    failed = [event.step for event in events_of(run.rank_folder, DeviceOutOfMemory)]
    if not failed:  # an older recording, or a file from elsewhere
        return run.run_file.ended in ENDED_WELL
    return any(record.step >= failed[-1] for record in run.steps)


@frozen_dataclass
class RunLimits:
    """The memory that training allocates from; `used_bytes` of it where it was read last.

    What is used on the host is all of the process's.
    """

    name: str
    is_device: bool
    total_bytes: int
    used_bytes: int
    last_step: int
    num_steps: int
    step_s: float
    """From one step's start to the next one's, the median: in a short run a window or a count would decide a mean."""
    ran_out: bool

    @classmethod
    def compute(cls, run: Run) -> Self:
        """The device's memory where the allocator counted that, else the host's."""
        records = run.steps
        host = run.run_file.host
        device = run.cuda_device
        is_device = device is not None
        # Read in full steps alone.
        used = [
            record.memory[-1].allocated_bytes if is_device else record.rss_bytes
            for record in records
            if (record.memory if is_device else record.rss_bytes)
        ]
        lasted_ns = [
            (later.started_ns - earlier.started_ns) / max(1, later.step - earlier.step)
            for earlier, later in pairwise(records)
        ]
        return cls(
            name="the host" if device is None else device_name(run, device),
            is_device=is_device,
            total_bytes=allowed_bytes(run, device) if device else host.total_bytes if host else 0,
            used_bytes=used[-1] if used else 0,
            last_step=records[-1].step if records else 0,
            num_steps=len(records),
            step_s=statistics.median(lasted_ns) / 1e9 if lasted_ns else 0.0,
            ran_out=run.run_file.ended == "out_of_memory",
        )

    def seconds_left(self, bytes_per_step: float) -> float:
        """How long the rest of the memory lasts where steps take as long as they took; endless where none is known."""
        if bytes_per_step <= 0 or not self.total_bytes:
            return math.inf
        return max(0.0, (self.total_bytes - self.used_bytes) / bytes_per_step) * self.step_s

    def outlook(self, bytes_per_step: float, read_until: int | None = None, most_bytes: float = math.inf) -> str:
        """How long memory lasts, in words; growth was seen up to a step, or to the end. Empty beyond a year.

        What ends at `most_bytes` may leave room.
        """
        if self.ran_out:
            return f" and ended this run at step {self.last_step:,}"
        if self.can_hold(most_bytes):
            return f", up to {format_bytes(most_bytes)}"
        seconds = self.seconds_left(bytes_per_step)
        if seconds > FARTHEST_S:
            return ""
        seen = f"for {self.num_steps:,} steps" if read_until is None else f"up to step {read_until:,}"
        total = f"{format_bytes(self.total_bytes)} of {self.name}"
        return f". The {total} last about {format_duration(seconds)} at this rate, seen {seen}"

    def can_hold(self, num_bytes: float) -> bool:
        """Whether so much has room."""
        return num_bytes <= self.total_bytes

    def severity(self, bytes_per_step: float, most_bytes: float = math.inf) -> Severity:
        """By how soon memory is used up, unless what grows ends at `most_bytes`."""
        if self.ran_out:
            return "high"
        return "low" if self.can_hold(most_bytes) else severity_by_time_left(self.seconds_left(bytes_per_step))

    def most_kept(self, bytes_each: float) -> int:
        """How many entries, or steps, that keep so much each take a hundredth of the memory."""
        return max(1, int(self.total_bytes / 100 / bytes_each))


def memory_fraction(run: Run) -> float:
    """The share of a device that the program lets itself take; 1 without a limit, and where no setting tells."""
    try:
        fraction = float(run.run_file.settings.get(FRACTION_SETTING, "1"))
    except ValueError:
        return 1.0
    return fraction if 0 < fraction < 1 else 1.0


def allowed_bytes(run: Run, device: Device) -> int:
    """The same in bytes, rounded as torch rounds it."""
    return int(memory_fraction(run) * device.total_bytes)


def device_name(run: Run, device: Device) -> str:
    """As a sentence calls what the program may take of it."""
    return device.name if memory_fraction(run) == 1 else f"the program's own share of {device.name}"


@frozen_dataclass
class MemoryFailure:
    """Where and in which stage it happened. `in_use_bytes` were allocated when the recorder saw the error.

    `requested_bytes` is None where the error does not tell it; Python's own never does. `device_event` is what CUDA's
    allocator itself told last, an empty one where it told nothing. A `library` asked the driver, and not PyTorch:
    `cached_bytes` were then free in PyTorch's cache, `peak_bytes` the most in use until then (0 if unknown), and
    `outside_bytes` used outside of its allocator, None if unknown.
    """

    rank_folder: Path
    step: int
    site: str | None
    stage: str | None
    requested_bytes: int | None
    in_use_bytes: int | None
    is_for_tensor: bool
    device_event: DeviceOutOfMemory
    library: str | None = None
    cached_bytes: int = 0
    peak_bytes: int = 0
    outside_bytes: int | None = None

    @classmethod
    def compute(cls, run: Run) -> Self:
        """The first of all ranks: the others follow it. Raises NotRecorded where no rank ran out of memory."""
        found = [
            (event.at_ns, place, event)
            for place, folder in enumerate(run.rank_folders)
            for event in events_of(folder, OutOfMemory)
        ]
        if not found or run.run_file.ended != "out_of_memory":
            raise NotRecorded("events.jsonl holds no error that says memory ran out.")
        _, place, event = min(found, key=lambda one: one[:2])
        folder = run.rank_folders[place]
        broken = [one for one in events_of(folder, StepInterrupted) if one.step == event.step]
        device_event = next(reversed(events_of(folder, DeviceOutOfMemory)), DeviceOutOfMemory(at_ns=0, step=-1))
        exact, requested = device_event.requested_bytes, event.requested_bytes
        if exact and requested and abs(exact - requested) < ROUNDED_SHARE * exact:
            requested = exact
        used = [one for one in read_device_use(folder) if one.step >= event.step]
        return cls(
            rank_folder=folder,
            step=event.step,
            site=event.site,
            stage=broken[-1].stage if broken else None,
            requested_bytes=requested,
            in_use_bytes=(broken[-1].allocated_bytes or None) if broken else None,
            is_for_tensor=event.is_for_tensor,
            device_event=device_event,
            library=library_in(event.message),
            cached_bytes=broken[-1].reserved_bytes - broken[-1].allocated_bytes if broken else 0,
            peak_bytes=(broken[-1].peak_bytes or 0) if broken else 0,
            outside_bytes=used[-1].outside_bytes if used else None,
        )
