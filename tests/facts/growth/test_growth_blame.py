"""Lines whose allocations outlive the step after theirs."""

from pathlib import Path

from efprof.artifacts.allocations import AllocationEvent
from efprof.facts.growth.growth_blame import surviving_lines
from tests.facts.allocations import allocation
from tests.support.builders import START_NS, make_steps, write_run

SOURCES = {"train.py": "loss = model(x)\n"}


def event(step: int, at_ms: float, address: int, num_bytes: int, site: str = "train.py:1:train") -> AllocationEvent:
    """An event of one step, in its forward between 1 and 5 ms."""
    return allocation(START_NS + step * 1_000_000_000 + round(at_ms * 1e6), address, num_bytes, site)


def lines_of(folder: Path, events: list[AllocationEvent]) -> list[tuple[str, float]]:
    """(site, bytes per step) of the surviving lines."""
    run = write_run(folder, steps=make_steps(5), sources=SOURCES, allocations=[events])
    return surviving_lines(run)


def test_what_every_step_leaves_behind_survives_and_what_is_replaced_or_made_once_does_not(tmp_path: Path) -> None:
    events = [event(step, 2, step + 1, 100) for step in range(4)]
    assert lines_of(tmp_path, events) == [("train.py:1:train", 100.0)]
    events = [event(0, 2, 1, 100)]
    for step in range(1, 4):
        events += [event(step, 2, step + 1, 100), event(step, 3, step, -100)]
    assert lines_of(tmp_path / "second", events) == []
    events = [event(0, 2, 1, 4000)]
    for step in range(1, 4):
        events += [event(step, 2, 7, 8), event(step, 3, 7, -8)]
    assert lines_of(tmp_path / "third", events) == []
    events = [event(step, 2, step + 1, 100, site="torch/nn/functional.py:9:linear") for step in range(4)]
    assert lines_of(tmp_path / "library", events) == [], "code that is not the user's is not blamed"
