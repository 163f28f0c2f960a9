"""Watches the device beside training: memory in use, with a warning of too much, and the GPU by NVML in a thread."""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import torch

from energy_flow.energy_config import RuntimeConfig
from energy_flow.logs import EverySeconds

_WARNING_SECONDS: Final = 300
"""Between two warnings of full memory: a person who reads one has time to act before the next."""

_STOP_SECONDS: Final = 1.0
"""How long the end of a run waits for the thread: a broken driver may never answer it."""

_STATM: Final = Path("/proc/self/statm")
_CGROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Where a container says how much memory it may use, by version of the kernel's interface."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuSample:
    """What NVML says of the whole GPU, other programs' use of it included."""

    utilisation_percent: float  # of the time, over the driver's last sampling period, in which any kernel ran
    used_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceReading:
    """What is known of the device at one moment; None where there is no such number."""

    allocated_bytes: int | None = None  # of the CUDA allocator: held by tensors
    reserved_bytes: int | None = None  # of the CUDA allocator: taken from the device
    host_rss_bytes: int | None = None
    gpu_utilisation_percent: float | None = None
    gpu_used_bytes: int | None = None

    @property
    def in_use_bytes(self) -> int | None:
        """Memory in use where the model is: on CUDA what the allocator took, else the process's own."""
        return self.host_rss_bytes if self.reserved_bytes is None else self.reserved_bytes


class DeviceMonitor:
    """Reads memory when asked, and samples the GPU in a thread between `__enter__` and `__exit__`."""

    def __init__(
        self,
        device: torch.device,
        runtime: RuntimeConfig,
        *,
        read_memory: Callable[[], DeviceReading] | None = None,
        read_gpu: Callable[[], GpuSample | None] | None = None,
        total_bytes: int | None = None,
    ) -> None:
        """Watch `device`; the readers and the total are the device's own unless given."""
        self._read_memory = read_memory or memory_reader(device)
        self._read_gpu = read_gpu or gpu_reader(device)
        self._seconds = runtime.gpu_sample_seconds
        self._limit = MemoryLimit(total_bytes or total_memory(device), runtime.memory_warning_share)
        self._sample: GpuSample | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Start the thread, where there is a GPU that can be asked."""
        if self._read_gpu is not None:
            self._thread = threading.Thread(target=self._watch, args=(self._read_gpu,), name="gpu monitor", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def read(self) -> DeviceReading:
        """The memory now and the newest sample of the GPU; warns when memory runs short. Never waits for a device."""
        memory, sample = self._read_memory(), self._sample
        self._limit.check(memory)
        if sample is None:
            return memory
        return DeviceReading(
            allocated_bytes=memory.allocated_bytes,
            reserved_bytes=memory.reserved_bytes,
            host_rss_bytes=memory.host_rss_bytes,
            gpu_utilisation_percent=sample.utilisation_percent,
            gpu_used_bytes=sample.used_bytes,
        )

    def _watch(self, read_gpu: Callable[[], GpuSample | None]) -> None:
        while not self._stop.is_set():
            self._sample = read_gpu()
            self._stop.wait(self._seconds)


class MemoryLimit:
    """Warns, now and then, while more of a device's memory is in use than `share` of its total."""

    def __init__(self, total_bytes: int | None, share: float) -> None:
        """Without a known total it never warns."""
        self._total, self._share = total_bytes, share
        self._rarely = EverySeconds(_WARNING_SECONDS)

    def check(self, reading: DeviceReading) -> None:
        """Warn if it is time to."""
        in_use, total = reading.in_use_bytes, self._total
        if in_use is None or total is None or in_use <= self._share * total or not self._rarely.is_due():
            return
        _logger.warning(
            "%s of the device's %s of memory are in use, %.0f %%, which is above runtime.memory_warning_share=%g; "
            "lower training.batch_size, or set flow.checkpoint_steps to a few steps",
            format_bytes(in_use),
            format_bytes(total),
            100 * in_use / total,
            self._share,
        )


def gpu_reader(device: torch.device) -> Callable[[], GpuSample | None] | None:
    """Asks NVML about `device`; None where the device is no GPU or the package nvidia-ml-py is not installed."""
    if device.type != "cuda":
        return None
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        return None

    def read() -> GpuSample | None:
        try:
            return GpuSample(
                utilisation_percent=torch.cuda.utilization(device),
                used_bytes=torch.cuda.device_memory_used(device),
            )
        except (pynvml.NVMLError, RuntimeError):  # a driver without it, or a slice of a GPU, which has no such number
            return None

    return read


def memory_reader(device: torch.device) -> Callable[[], DeviceReading]:
    """Reads what this process uses: from the CUDA allocator where `device` is one of CUDA's, and the host's always."""
    if device.type != "cuda":
        return lambda: DeviceReading(host_rss_bytes=host_rss_bytes())

    def read() -> DeviceReading:
        stats = torch.cuda.memory_stats_as_nested_dict(device)  # one call for both numbers
        if not stats:
            return DeviceReading(host_rss_bytes=host_rss_bytes())
        return DeviceReading(
            allocated_bytes=stats["allocated_bytes"]["all"]["current"],
            reserved_bytes=stats["reserved_bytes"]["all"]["current"],
            host_rss_bytes=host_rss_bytes(),
        )

    return read


def total_memory(device: torch.device) -> int | None:
    """Bytes of memory that `device` has; for the CPU, the machine's or what this container may use of it."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    limits = [limit for file in _CGROUP_LIMITS if (limit := _number_in(file)) is not None]
    if "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def host_rss_bytes() -> int | None:
    """Resident memory of this process; None where the kernel has no /proc."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def format_bytes(num_bytes: float) -> str:
    """Bytes for people: `3.1 GiB`, or `512 MiB` below one GiB."""
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"


def _number_in(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # not in a container, or "max": no limit
        return None
