"""Reads now and then how much of the CUDA device is in use beside what PyTorch has reserved; has stages timed on it.

From NVML where `pynvml` can be imported, else from the driver (`torch.cuda.mem_get_info`). It never starts CUDA,
creates no context and waits for nothing: it asks only of the device that the training is on, once the allocator has
memory there.
"""

import functools
import importlib
import os
import warnings
from time import perf_counter_ns
from typing import Any, Final

import torch

from efprof.artifacts.readings import DEVICE_USE_FILE, DeviceUse
from efprof.recorder.loop.device_clock import DeviceClock
from efprof.recorder.session.session import Session

FIRST_STEP: Final = 10
"""The second reading; libraries have their workspaces by then."""


class DeviceUses:
    """Reads at the ends of steps, each time after twice as many."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lines = session.lines(DEVICE_USE_FILE)
        self._nvml = _nvml()
        self._due = 0
        self._cost_ns = 2_000_000

    def finish(self, *_: object) -> None:
        """A step ended: read, if it is time to."""
        session, began = self._session, perf_counter_ns()
        step, device = session.step_number, session.device.index
        if device is None or step < self._due or not session.budget.affords(self._cost_ns):
            return
        self._due = max(FIRST_STEP, 2 * step)
        stats = session.device.statistics()
        reserved = stats["reserved_bytes"]["all"]["current"] if stats else 0
        if not reserved:  # there may be no context on it, which asking would create
            return
        used, own = self._read(device)
        reading = DeviceUse(step=step, device=device, used_bytes=used, reserved_bytes=reserved, process_bytes=own)
        self._lines.write(reading)
        self._cost_ns = perf_counter_ns() - began
        session.budget.spend("device use", self._cost_ns)

    def _read(self, device: int) -> tuple[int, int | None]:
        """Used bytes, and this process's own where they are told: the driver does not tell of processes."""
        nvml, uuid = self._nvml, getattr(torch.cuda.get_device_properties(device), "uuid", None)
        if nvml is not None and uuid is not None:
            try:  # by the device's own name: NVML counts those that CUDA_VISIBLE_DEVICES hides
                handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
                processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                own = next((each.usedGpuMemory for each in processes if each.pid == os.getpid()), None)
                return nvml.nvmlDeviceGetMemoryInfo(handle).used, own
            except nvml.NVMLError:  # a slice of a device has another name
                self._nvml = None
        free, total = torch.cuda.mem_get_info(device)
        return total - free, None


def start(session: Session) -> None:
    """Wait for the program to initialise CUDA by itself."""
    if torch.version.cuda is None and torch.version.hip is None:
        return

    for collector, begin in (("device_times", _time_stages), ("device_use", _read_use)):
        began: Any = session.shell.guarded(collector, functools.partial(begin, session))
        torch.cuda._lazy_call(began)  # type: ignore[no-untyped-call]


def _time_stages(session: Session) -> None:
    session.loop.thread.asks_capturing = session.shell.guarded("captures", torch.cuda.is_current_stream_capturing)
    session.loop.steps.clock = DeviceClock(session.device, functools.partial(session.shell.guarded, "device_times"))


def _read_use(session: Session) -> None:
    session.subscribe(session.loop.step_ended, "device_use", DeviceUses(session).finish)


def _nvml() -> Any:
    """NVIDIA's library, if its bindings are here and it can be started."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one of two packages of that name says that it is the old one
        try:
            pynvml = importlib.import_module("pynvml")
        except ImportError:
            return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
