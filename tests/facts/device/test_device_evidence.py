"""What is shown of a device: the settings as bars, the map of its segments, whose its memory is, who else uses it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from efprof.artifacts.readings import DEVICE_USE_FILE, DeviceUse
from efprof.commands.report import analyse, render
from efprof.facts.allocator.history import History
from efprof.facts.allocator.settings import AllocatorSettings
from efprof.facts.device import device_memory
from efprof.facts.device.device_evidence import device_use_evidence, reserved_series, segment_map, trial_bars
from efprof.facts.device.device_lines import BEFORE_IT, MAX_LINES, NO_LINE, OTHER_LINES, lines_over_time
from efprof.facts.device.device_memory import DeviceHistory, DeviceMemory
from efprof.facts.run.run import Run
from efprof.model import SourceLine
from efprof.units import GIB, MIB
from tests.facts.allocator.recording import Recording
from tests.support.builders import GPU, make_steps, write_run

DEFAULT = AllocatorSettings()


CUDA: dict[str, Any] = {"devices": [GPU], "memory_source": "CUDA caching allocator"}


def device_of(folder: Path, recording: Recording, *, first_entry: int = 0) -> DeviceHistory:
    snapshots = [recording.snapshot(first_entry=first_entry)]
    (device,) = write_run(folder, steps=make_steps(3), snapshots=snapshots, **CUDA).get(DeviceMemory).devices
    return device


def fragmenting() -> Recording:
    """Each batch is larger than the one before, and leaves something small in its memory."""
    recording = Recording(DEFAULT)
    for number in range(12):
        recording.free(recording.malloc((40 + 4 * number) * MIB))
        recording.malloc(2 * MIB)
    return recording


def test_the_bars_are_the_recorded_settings_and_every_trial(tmp_path: Path) -> None:
    recording = fragmenting()
    device = device_of(tmp_path / "run", recording)
    bars = trial_bars(device)
    by_role = {one.role: one for one in bars.alternatives if one.role != "other"}
    assert len(bars.alternatives) == 1 + len(device.trials)
    assert by_role["recorded"].value == recording.allocator.peak_reserved
    assert by_role["best"].label == "expandable_segments:True"
    assert by_role["best"].value < by_role["recorded"].value
    assert bars.limit is None
    assert all(one.low <= one.value <= one.high for one in bars.alternatives)


def test_what_the_device_has_is_known_from_a_failure(tmp_path: Path) -> None:
    recording = Recording(DEFAULT, capacity=200 * MIB)
    recording.malloc(100 * MIB)
    recording.malloc(60 * MIB)
    assert recording.attempt(80 * MIB) is None
    device = device_of(tmp_path / "run", recording)
    bars = trial_bars(device)
    assert bars.limit[0] == 200 * MIB
    assert all(one.is_out_of_memory for one in bars.alternatives)
    assert [one.role for one in bars.alternatives if one.role != "other"] == ["recorded"]


def test_the_map_shows_the_peak_and_the_end_unless_it_is_the_peak(tmp_path: Path) -> None:
    recording = Recording(DEFAULT)
    large = recording.malloc(GIB)
    recording.malloc(30 * MIB)
    recording.free(large)
    device = device_of(tmp_path / "run", recording)
    blame = SourceLine(file="train.py", line=12, function="step", text="")
    found = segment_map(device, device.peak, "at the peak", blame, "map")
    peak, end = found.views
    assert (peak.label, end.label) == ("at the peak", "at the end of the recording")
    assert peak.totals == (("used", GIB + 30 * MIB),)
    assert end.totals == (("used", 30 * MIB), ("releasable", GIB))
    assert (found.owners, found.highlighted) == (("train.py:12",), 0)
    recording = Recording(DEFAULT)
    recording.free(recording.malloc(30 * MIB))
    recording.malloc(GIB)
    device = device_of(tmp_path / "second", recording)
    assert len(segment_map(device, device.peak, "at the peak", None, "map").views) == 1


# Who has the memory over the recorded events: the largest lines, all others, and nobody known.


class Program(Recording):
    """Asks for memory at lines of its own."""

    def __init__(self) -> None:
        super().__init__(AllocatorSettings())

    def at(self, line: int, file: str = "project/train.py") -> "Program":
        self._frames = [{"filename": file, "line": line, "name": "step"}]
        return self


def test_of_two_lines_named_alike_one_is_highlighted(tmp_path: Path) -> None:
    program = Program()
    program.at(3, "encoder/model.py").malloc(30 * MIB)
    program.at(3, "decoder/model.py").malloc(20 * MIB)
    blame = SourceLine(file="decoder/model.py", line=3, function="step", text="")
    lines = reserved_series(device_of(tmp_path / "run", program), (), blame).lines
    assert [line.label for line in lines[:-1]] == ["encoder/model.py:3", "decoder/model.py:3"]
    assert [line.is_highlighted for line in lines] == [False, True, False]


def test_each_line_has_what_its_tensors_asked_for(tmp_path: Path) -> None:
    program = Program()
    first = program.at(3).malloc(30 * MIB)
    program.at(5).malloc(100 * MIB)
    program.at(9).free(first)
    found = device_of(tmp_path / "run", program).lines_over_time
    curves = dict(found.curves)
    assert list(curves) == ["train.py:5", "train.py:3"], "without their folder, most at the peak first"
    assert (max(curves["train.py:3"]), curves["train.py:3"][-1]) == (30 * MIB, 0)
    assert curves["train.py:5"][-1] == 100 * MIB
    assert found.num_events[0] == 0
    assert found.num_events[-1] == len(program.entries)


def test_the_stack_is_all_that_tensors_asked_for_and_reserved_is_above_it(tmp_path: Path) -> None:
    program = Program()
    for number in range(12):
        program.free(program.at(number + 1).malloc((40 + 4 * number) * MIB))
        program.at(50).malloc(2 * MIB)
    found = device_of(tmp_path / "run", program).lines_over_time
    totals = [sum(sizes) for sizes in zip(*(curve for _, curve in found.curves), strict=True)]
    assert totals[-1] == 24 * MIB
    assert max(totals) == (84 + 22) * MIB
    assert max(found.reserved) == program.allocator.peak_reserved
    assert all(total <= reserved for total, reserved in zip(totals, found.reserved, strict=True))


def test_lines_that_have_little_at_the_peak_are_shown_as_one(tmp_path: Path) -> None:
    program = Program()
    for line in range(1, 10):
        program.at(line).malloc(10 * line * MIB)
    curves = dict(device_of(tmp_path / "run", program).lines_over_time.curves)
    assert list(curves) == [f"train.py:{line}" for line in range(9, 9 - MAX_LINES, -1)] + [OTHER_LINES]
    assert curves[OTHER_LINES][-1] == (10 + 20 + 30) * MIB


def test_what_was_there_before_and_stacks_without_a_line_of_the_user_are_nobodys(tmp_path: Path) -> None:
    program = Program()
    older = program.at(3).malloc(100 * MIB)
    first_entry = len(program.entries)
    program.at(5).malloc(30 * MIB)
    program.free(older)
    found = device_of(tmp_path / "run", program, first_entry=first_entry).lines_over_time
    curves = dict(found.curves)
    assert list(curves) == [BEFORE_IT, "train.py:5"]
    assert (curves[BEFORE_IT][0], curves[BEFORE_IT][-1]) == (100 * MIB, 0)
    assert found.reserved[0] == 100 * MIB
    program = Program()
    program.at(3, "/usr/lib/python3.11/site-packages/torch/optim/adam.py").malloc(30 * MIB)
    assert [label for label, _ in device_of(tmp_path / "second", program).lines_over_time.curves] == [NO_LINE]


def test_the_picture_stacks_the_lines_under_reserved_and_the_history_is_walked_once_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, walks = Program(), list[History]()
    program.at(3).malloc(30 * MIB)
    walk = lambda history, *rest: walks.append(history) or lines_over_time(history, *rest)  # noqa: E731
    monkeypatch.setattr(device_memory, "lines_over_time", walk)
    device = device_of(tmp_path / "run", program)
    series = reserved_series(device, ((1.0, "peak"),))
    assert [(line.label, line.is_over_stack) for line in series.lines] == [("train.py:3", False), ("reserved", True)]
    assert series.is_stacked
    assert series.marks == ((1.0, "peak"),)
    assert reserved_series(device, ()).lines == series.lines
    assert len(walks) == 1


# What of the device is in use outside of PyTorch's allocator.


def use(step: int, used: float, reserved: float) -> DeviceUse:
    return DeviceUse(step=step, device=0, used_bytes=round(used * GIB), reserved_bytes=round(reserved * GIB))


def run_with(folder: Path, *readings: DeviceUse) -> Run:
    run = write_run(folder, steps=make_steps(30), **CUDA)
    (run.rank_folder / DEVICE_USE_FILE).write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in readings))
    return run


def test_what_is_in_use_outside_of_pytorch_is_what_it_has_not_reserved(tmp_path: Path) -> None:
    (numbers,) = device_use_evidence(run_with(tmp_path, use(3, 14, 8)))
    assert [number.value / GIB for number in numbers.numbers] == [14, 8, 6]


def test_its_rise_is_told_and_on_the_page(tmp_path: Path) -> None:
    run = run_with(tmp_path, use(0, 10, 8), use(20, 12.5, 9.5))
    (numbers,) = device_use_evidence(run)
    assert numbers.numbers[-1].label == "risen since step 0"
    assert numbers.numbers[-1].value == GIB
    page = render(analyse(run.folder), "html")
    assert "Device memory" in page
    assert "In use outside PyTorch&#39;s allocator, at step 20" in page


def test_a_run_without_readings_shows_nothing(tmp_path: Path) -> None:
    assert device_use_evidence(write_run(tmp_path, steps=make_steps(3))) == ()
