"""Memory through a trace is drawn from its own events."""

from pathlib import Path
from typing import Any

import pytest

from efprof.facts.time.step_pictures import CUDA, HIP, memory_series
from efprof.facts.time.time_use import TimeUse
from efprof.model import Series
from tests.facts.time.traces import foreign_run, step


def memory(at_us: float, total: int, device: int = CUDA) -> dict[str, Any]:
    arguments = {"Bytes": 512, "Addr": 1, "Device Type": device, "Total Allocated": total}
    names = {"ph": "i", "name": "[memory]", "cat": "cpu_instant_event", "pid": 1, "tid": 1}
    return {**names, "ts": at_us, "args": arguments}


def series_of(folder: Path, *events: dict[str, Any]) -> Series | None:
    return memory_series(foreign_run(folder, *step(), *events).get(TimeUse).window)


@pytest.mark.parametrize("device", [CUDA, HIP])
def test_the_device_s_memory_is_drawn(device: int, tmp_path: Path) -> None:
    totals = ((350, 1000), (360, 3000), (600, 500))
    series = series_of(tmp_path, *(memory(*one, device=device) for one in totals), memory(370, 9, device=0))
    assert series is not None
    (line,) = series.lines
    assert (line.x, line.y) == ((0.35, 0.36, 0.6), (1000.0, 3000.0, 500.0))
    assert "device" in series.title


def test_without_a_device_it_is_the_host_s(tmp_path: Path) -> None:
    series = series_of(tmp_path, memory(350, 1000, device=0), memory(360, 3000, device=0))
    assert series is not None
    assert "host" in series.title


def test_a_trace_without_such_events_has_no_picture(tmp_path: Path) -> None:
    assert series_of(tmp_path) is None
