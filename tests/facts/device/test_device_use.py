"""What of the device is in use outside of PyTorch's allocator."""

from pathlib import Path

import msgspec

from efprof.artifacts.readings import DEVICE_USE_FILE, DeviceUse
from efprof.commands.report import analyse, render
from efprof.facts.device.device_use import device_use_evidence
from efprof.facts.run.run import Run
from efprof.units import GIB
from tests.support.builders import GPU, make_steps, write_run


def use(step: int, used: float, reserved: float, own: float | None = None) -> DeviceUse:
    return DeviceUse(
        step=step,
        device=0,
        used_bytes=round(used * GIB),
        reserved_bytes=round(reserved * GIB),
        process_bytes=None if own is None else round(own * GIB),
    )


def run_of(folder: Path, *readings: DeviceUse) -> Run:
    run = write_run(folder, steps=make_steps(30), devices=[GPU], memory_source="CUDA allocator")
    (run.rank_folder / DEVICE_USE_FILE).write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in readings))
    return run


def test_a_reading_is_taken_apart_by_whose_memory_it_is_where_processes_are_told(tmp_path: Path) -> None:
    (numbers,) = device_use_evidence(run_of(tmp_path, use(3, 14, 8, own=9)))
    values = {number.label.split(":")[0]: number.value / GIB for number in numbers.numbers}
    assert values["outside PyTorch"] == 6
    assert values["of it this process"] == 1
    assert values["of it other processes"] == 5
    (numbers,) = device_use_evidence(run_of(tmp_path / "second", use(3, 14, 8)))
    assert [number.value / GIB for number in numbers.numbers] == [14, 8, 6]


def test_its_rise_is_told_with_the_curve_and_on_the_page(tmp_path: Path) -> None:
    numbers, series = device_use_evidence(run_of(tmp_path, use(0, 10, 8), use(20, 12.5, 9.5)))
    assert numbers.numbers[-1].label == "risen since step 0"
    assert numbers.numbers[-1].value == GIB
    assert series.lines[1].y == (2 * GIB, 3 * GIB)
    run = run_of(tmp_path / "second", use(0, 10, 8), use(20, 12.5, 9.5))
    page = render(analyse(run.folder), "html")
    assert "Device memory" in page
    assert "In use outside PyTorch&#39;s allocator, at step 20" in page


def test_a_run_without_readings_shows_nothing(tmp_path: Path) -> None:
    assert device_use_evidence(write_run(tmp_path, steps=make_steps(3))) == ()
