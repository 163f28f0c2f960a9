"""The use of the device by all, beside what PyTorch reserved."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from efprof.artifacts.readings import read_device_use
from efprof.recorder.collectors import environment as device_use
from efprof.units import GIB, MIB
from tests.recorder.recording import record_here
from tests.simulated_cuda.cuda import SimulatedCuda

PROPERTIES = SimpleNamespace(uuid="0a1b", name="Simulated", total_memory=80 * GIB)

RESERVED = 64 * MIB


class Nvml:
    """A device of 80 GiB, 12 of them in use; `processes` use it."""

    class NVMLError(Exception): ...

    def __init__(self, processes: dict[int, int | None]) -> None:
        self.processes = processes
        self.asked: list[str] = []

    def nvmlInit(self) -> None: ...  # noqa: N802

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:  # noqa: N802
        self.asked.append(name)
        return name

    def nvmlDeviceGetMemoryInfo(self, _: str) -> Any:  # noqa: N802
        return SimpleNamespace(total=80 * GIB, used=12 * GIB)

    def nvmlDeviceGetComputeRunningProcesses(self, _: str) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes.items()]


def train() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()


@pytest.fixture
def device() -> Iterator[pytest.MonkeyPatch]:
    """The program has reserved 64 MiB of a device that all together use 10 GiB of."""
    with SimulatedCuda().in_place(), pytest.MonkeyPatch.context() as patched:
        held = torch.zeros(RESERVED, dtype=torch.uint8, device="cuda")
        patched.setattr(torch.cuda, "get_device_properties", lambda _: PROPERTIES)
        patched.setattr(torch.cuda, "mem_get_info", lambda _: (70 * GIB, 80 * GIB))
        yield patched
        del held


def test_without_nvml_the_driver_tells_what_all_use(device: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device.setattr(device_use, "_nvml", lambda: None)
    (reading,) = read_device_use(record_here(tmp_path, train).rank)
    assert (reading.used_bytes, reading.reserved_bytes) == (10 * GIB, RESERVED)
    assert reading.outside_bytes == 10 * GIB - RESERVED
    assert reading.process_bytes is None


@pytest.mark.parametrize("process_bytes", [9 * GIB, None], ids=["told", "in a container that hides process ids"])
def test_nvml_tells_what_this_process_uses_too(
    process_bytes: int | None, device: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvml = Nvml({1: 3 * GIB, os.getpid(): process_bytes})
    device.setattr(device_use, "_nvml", lambda: nvml)
    (reading,) = read_device_use(record_here(tmp_path, train).rank)
    assert (reading.used_bytes, reading.process_bytes) == (12 * GIB, process_bytes)
    assert nvml.asked == ["GPU-0a1b"]


def test_a_device_that_nvml_does_not_know_is_asked_of_the_driver(device: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvml = Nvml({})

    def refuse(_: str) -> str:
        raise Nvml.NVMLError

    device.setattr(nvml, "nvmlDeviceGetHandleByUUID", refuse)
    device.setattr(device_use, "_nvml", lambda: nvml)
    (reading,) = read_device_use(record_here(tmp_path, train).rank)
    assert reading.used_bytes == 10 * GIB


def test_a_device_without_memory_of_pytorch_s_is_not_asked(tmp_path: Path) -> None:
    """Asking the driver would create a context there."""
    with SimulatedCuda().in_place() as cuda:
        cuda.initialize()
        recorded = record_here(tmp_path, train)
    assert not (recorded.rank / device_use.DEVICE_USE_FILE).exists()
    assert cuda.contexts == set()
