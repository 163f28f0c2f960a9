"""The use of the device by all, beside what PyTorch reserved; on simulated functions, no GPU being at hand."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from efprof.artifacts.device_use import read_device_use
from efprof.recorder.collectors import device_use
from efprof.units import GIB
from tests.recorder.recording import record_here

PROPERTIES = SimpleNamespace(uuid="0a1b")


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
def device(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """CUDA with 8 GiB reserved, as far as the collector asks for it."""
    statistics = {"reserved_bytes": {"all": {"current": 8 * GIB}}}
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "_lazy_call", lambda call: call())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: PROPERTIES)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (70 * GIB, 80 * GIB))
    monkeypatch.setattr(torch._C, "_cuda_memoryStats", lambda _: statistics, raising=False)
    for other in ("cuda_memory.start", "device_use._time_stages"):  # they would go on to what is not simulated
        monkeypatch.setattr(f"efprof.recorder.collectors.{other}", lambda _: None)
    return monkeypatch


def test_without_nvml_the_driver_tells_what_all_use(device: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device.setattr(device_use, "_nvml", lambda: None)
    (reading,) = read_device_use(record_here(tmp_path, train).rank)
    assert (reading.used_bytes, reading.reserved_bytes, reading.outside_bytes) == (10 * GIB, 8 * GIB, 2 * GIB)
    assert reading.process_bytes is None


def test_nvml_tells_what_this_process_uses_too(device: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvml = Nvml({1: 3 * GIB, os.getpid(): 9 * GIB})
    device.setattr(device_use, "_nvml", lambda: nvml)
    (reading,) = read_device_use(record_here(tmp_path, train).rank)
    assert (reading.used_bytes, reading.process_bytes) == (12 * GIB, 9 * GIB)
    assert nvml.asked == ["GPU-0a1b"]


def test_a_container_that_hides_process_ids_leaves_it_unknown(device: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device.setattr(device_use, "_nvml", lambda: Nvml({os.getpid(): None}))
    (reading,) = read_device_use(record_here(tmp_path, train).rank)
    assert reading.process_bytes is None


def test_a_device_that_nvml_does_not_know_is_asked_of_the_driver(device: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvml = Nvml({})

    def refuse(_: str) -> str:
        raise Nvml.NVMLError

    device.setattr(nvml, "nvmlDeviceGetHandleByUUID", refuse)
    device.setattr(device_use, "_nvml", lambda: nvml)
    (reading,) = read_device_use(record_here(tmp_path, train).rank)
    assert reading.used_bytes == 10 * GIB


def test_a_device_without_memory_of_pytorch_s_is_not_asked(device: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Asking the driver would create a context there."""
    device.setattr(torch._C, "_cuda_memoryStats", lambda _: {"reserved_bytes": {"all": {"current": 0}}})
    recorded = record_here(tmp_path, train)
    assert not (recorded.rank / device_use.DEVICE_USE_FILE).exists()


def test_a_cpu_run_has_no_such_file(tmp_path: Path) -> None:
    assert not (record_here(tmp_path, train).rank / device_use.DEVICE_USE_FILE).exists()
