import dataclasses
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from energy_flow.energy_config import EnergyConfig, RuntimeConfig
from energy_flow.training import device_monitor
from energy_flow.training.device_monitor import (
    DeviceMonitor,
    DeviceReading,
    GpuSample,
    gpu_reader,
    host_rss_bytes,
    total_memory,
)
from tests.support.waiting import MAX_WAIT_S

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
RUNTIME = RuntimeConfig(gpu_sample_seconds=0.1, memory_warning_share=0.5)
GIB = 2**30


class Nvml:
    """Counts how often it is asked, and lets a test wait for that."""

    def __init__(self, samples: Callable[[int], GpuSample | None]) -> None:
        self._samples = samples
        self.num_asked = 0
        self.asked = threading.Condition()

    def __call__(self) -> GpuSample | None:
        with self.asked:
            self.num_asked += 1
            self.asked.notify_all()
            return self._samples(self.num_asked)

    def wait_until_asked(self, number: int) -> None:
        with self.asked:
            assert self.asked.wait_for(lambda: self.num_asked >= number, timeout=MAX_WAIT_S)


def _monitor(*, read_gpu: Nvml | None = None, in_use: int | None = None) -> DeviceMonitor:
    reading = DeviceReading(allocated_bytes=1, reserved_bytes=in_use, host_rss_bytes=3)
    return DeviceMonitor(GPU, RUNTIME, read_memory=lambda: reading, read_gpu=read_gpu, total_bytes=10 * GIB)


def test_a_reading_holds_the_newest_sample_of_the_gpu_and_none_once_it_stops_answering() -> None:
    nvml = Nvml(lambda number: GpuSample(utilisation_percent=number, used_bytes=7))
    with _monitor(read_gpu=nvml) as monitor:
        nvml.wait_until_asked(3)
        reading = monitor.read()
    assert reading.gpu_utilisation_percent >= 2
    assert dataclasses.replace(reading, gpu_utilisation_percent=None) == DeviceReading(
        allocated_bytes=1, host_rss_bytes=3, gpu_used_bytes=7
    )
    nvml = Nvml(lambda number: GpuSample(utilisation_percent=50, used_bytes=7) if number == 1 else None)
    with _monitor(read_gpu=nvml) as monitor:
        nvml.wait_until_asked(3)
        assert monitor.read().gpu_utilisation_percent is None


def test_the_thread_ends_with_the_run() -> None:
    nvml = Nvml(lambda number: None)
    with _monitor(read_gpu=nvml):
        nvml.wait_until_asked(1)
        assert "gpu monitor" in [thread.name for thread in threading.enumerate()]
    assert "gpu monitor" not in [thread.name for thread in threading.enumerate()]


def test_a_cpu_has_no_thread_and_the_process_s_memory(config: EnergyConfig) -> None:
    with DeviceMonitor(CPU, config.runtime) as monitor:
        assert "gpu monitor" not in [thread.name for thread in threading.enumerate()]
        reading = monitor.read()
    assert reading == DeviceReading(host_rss_bytes=reading.host_rss_bytes)
    assert reading.host_rss_bytes is not None


def test_memory_above_the_share_and_none_below_is_warned_of_once_with_the_figures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for in_use in (5 * GIB, None):
        _monitor(in_use=in_use).read()
    assert caplog.records == []
    monitor = _monitor(in_use=6 * GIB)
    for _ in range(3):
        monitor.read()
    assert [record.getMessage() for record in caplog.records] == [
        "6.0 GiB of the device's 10.0 GiB of memory are in use, 60 %, which is above "
        "runtime.memory_warning_share=0.5; lower training.batch_size, or set flow.checkpoint_steps to a few steps"
    ]
    assert caplog.records[0].levelno == logging.WARNING


def test_no_other_device_and_none_without_its_package_is_asked_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_reader(GPU) is None
    assert gpu_reader(CPU) is None


class NvmlError(Exception):
    """As NVML's own, which derives from nothing narrower."""


@pytest.mark.parametrize("error", [NvmlError("not supported"), RuntimeError("no driver")])
def test_nvml_s_numbers_become_a_sample_and_its_errors_none(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(device: torch.device) -> int:
        raise error

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(NVMLError=NvmlError))
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 83)
    monkeypatch.setattr(torch.cuda, "device_memory_used", lambda device: 5 * GIB)
    read = gpu_reader(GPU)
    assert read() == GpuSample(utilisation_percent=83, used_bytes=5 * GIB)
    monkeypatch.setattr(torch.cuda, "utilization", fails)
    assert read() is None


def test_resident_memory_grows_with_what_the_process_holds() -> None:
    before = host_rss_bytes()
    held = bytearray(b"x") * (64 * 2**20)
    after = host_rss_bytes()
    assert len(held) * 0.9 < after - before < len(held) * 1.5


def test_a_container_s_limit_is_the_total(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = total_memory(CPU)
    (tmp_path / "limit").write_text("1048576\n")
    (tmp_path / "none").write_text("max\n")
    monkeypatch.setattr(device_monitor, "_CGROUP_LIMITS", (tmp_path / "none", tmp_path / "missing"))
    assert total_memory(CPU) == machine
    monkeypatch.setattr(device_monitor, "_CGROUP_LIMITS", (tmp_path / "none", tmp_path / "limit"))
    assert total_memory(CPU) == 1048576


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_allocator_says_what_tensors_hold() -> None:
    held = torch.ones(1024, 1024, device="cuda")
    with DeviceMonitor(GPU, RUNTIME) as monitor:
        reading = monitor.read()
    assert held.nbytes <= reading.allocated_bytes <= reading.reserved_bytes
