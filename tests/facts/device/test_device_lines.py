"""Who has a device's memory over the recorded events: the largest lines, all others, and nobody known."""

from pathlib import Path

import pytest

from efprof.facts.allocator.history import History
from efprof.facts.allocator.settings import AllocatorSettings
from efprof.facts.device import device_memory
from efprof.facts.device.device_lines import MOST_LINES, NO_LINE, OTHER_LINES, lines_over_time
from efprof.facts.device.device_memory import DeviceHistory, DeviceMemory
from efprof.facts.device.segment_map import reserved_series
from efprof.facts.peak.window_memory import MOST_INSTANTS
from efprof.units import MIB
from tests.facts.allocator.recording import Recording
from tests.support.builders import GPU, make_steps, write_run


class Program(Recording):
    """Asks for memory at lines of its own."""

    def __init__(self) -> None:
        super().__init__(AllocatorSettings())

    def at(self, line: int, file: str = "project/train.py") -> "Program":
        self._frames = [{"filename": file, "line": line, "name": "step"}]
        return self


def device_of(folder: Path, recording: Recording, *, first_entry: int = 0) -> DeviceHistory:
    run = write_run(
        folder,
        steps=make_steps(3),
        snapshots=[recording.snapshot(first_entry=first_entry)],
        devices=[GPU],
        memory_source="CUDA caching allocator",
    )
    (device,) = run.get(DeviceMemory).devices
    return device


def test_each_line_has_what_its_tensors_asked_for_and_equal_names_their_folders(tmp_path: Path) -> None:
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
    program = Program()
    program.at(3, "encoder/model.py").malloc(30 * MIB)
    program.at(3, "decoder/model.py").malloc(20 * MIB)
    curves = device_of(tmp_path / "second", program).lines_over_time.curves
    assert [label for label, _ in curves] == ["encoder/model.py:3", "decoder/model.py:3"]


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
    assert list(curves) == [f"train.py:{line}" for line in range(9, 9 - MOST_LINES, -1)] + [OTHER_LINES]
    assert curves[OTHER_LINES][-1] == (10 + 20 + 30) * MIB


def test_what_was_there_before_and_stacks_without_a_line_of_the_user_are_nobodys(tmp_path: Path) -> None:
    program = Program()
    older = program.at(3).malloc(100 * MIB)
    first_entry = len(program.entries)
    program.at(5).malloc(30 * MIB)
    program.free(older)
    found = device_of(tmp_path / "run", program, first_entry=first_entry).lines_over_time
    curves = dict(found.curves)
    assert list(curves) == [NO_LINE, "train.py:5"]
    assert (curves[NO_LINE][0], curves[NO_LINE][-1]) == (100 * MIB, 0)
    assert found.reserved[0] == 100 * MIB
    program = Program()
    program.at(3, "/usr/lib/python3.11/site-packages/torch/optim/adam.py").malloc(30 * MIB)
    assert [label for label, _ in device_of(tmp_path / "second", program).lines_over_time.curves] == [NO_LINE]


def test_a_long_history_is_drawn_from_few_instants_with_its_highest(tmp_path: Path) -> None:
    program = Program()
    for number in range(1500):
        program.free(program.at(3).malloc((500 if number == 777 else 2) * MIB))
    found = device_of(tmp_path / "run", program).lines_over_time
    assert len(found.num_events) <= MOST_INSTANTS + 1
    assert max(found.curves[0][1]) == 500 * MIB


def test_the_picture_stacks_the_lines_under_reserved_and_the_history_is_walked_once_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program()
    program.at(3).malloc(30 * MIB)
    series = reserved_series(device_of(tmp_path / "run", program), ((1.0, "peak"),))
    assert [(line.label, line.is_over_stack) for line in series.lines] == [("train.py:3", False), ("reserved", True)]
    assert series.is_stacked
    assert series.marks == ((1.0, "peak"),)
    program = Program()
    program.at(3).malloc(30 * MIB)
    walks: list[History] = []
    monkeypatch.setattr(
        device_memory,
        "lines_over_time",
        lambda history, *rest: walks.append(history) or lines_over_time(history, *rest),
    )
    device = device_of(tmp_path / "second", program)
    assert reserved_series(device, ()).lines == reserved_series(device, ((1.0, "peak"),)).lines
    assert len(walks) == 1
