"""device_use.jsonl: how much of the device is in use by all, beside what PyTorch has reserved."""

from pathlib import Path

import msgspec

from efprof.artifacts.lines import read_lines

DEVICE_USE_FILE = "device_use.jsonl"


class DeviceUse(msgspec.Struct, kw_only=True):
    """One reading at the end of a step, in bytes.

    `used_bytes` is what all processes use of the device together, `process_bytes` what NVML says this one uses; None
    where it does not say, as in many containers.
    """

    step: int
    device: int
    used_bytes: int
    reserved_bytes: int
    process_bytes: int | None = None

    @property
    def outside_bytes(self) -> int:
        """Used by whatever is not PyTorch's allocator in this process: its context, its libraries, others."""
        return max(0, self.used_bytes - self.reserved_bytes)


def read_device_use(rank_folder: Path) -> list[DeviceUse]:
    """All whole lines in order; raises NotRecorded where there are none."""
    return read_lines(rank_folder / DEVICE_USE_FILE, DeviceUse, "it is written where a CUDA device trains.")[0]
