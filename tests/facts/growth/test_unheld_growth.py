"""Growth that no holder explains: the trend of host memory, and lines whose allocations outlive the next step."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efprof.artifacts.allocations import AllocationEvent
from efprof.audits.memory_growth import memory_growth
from efprof.facts.growth.unheld_growth import HostGrowth, surviving_lines
from efprof.units import KIB, MIB
from tests.audits.test_growing_host_memory import growing, run_of
from tests.facts.allocations import allocation
from tests.support.builders import START_NS, make_steps, write_run

SOURCES = {"train.py": "loss = model(x)\n"}


def test_what_the_program_lets_go_of_at_its_end_is_no_reading(tmp_path: Path) -> None:
    steps = growing()
    steps[-1].rss_bytes -= 500 * MIB
    assert run_of(tmp_path, steps).get(HostGrowth).is_growing


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), noise=st.floats(0, 30 * MIB), jumps=st.integers(0, 4))
def test_a_run_of_twenty_steps_is_told_of_a_plain_line_only(
    seed: int, noise: float, jumps: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    draw, folder = random.Random(seed), tmp_path_factory.mktemp("run")
    leaking, sound = growing(20, python_bytes=8 * MIB), growing(20, python_bytes=0)
    jumping = [draw.randrange(20) for _ in range(jumps)]
    for step in sound:
        step.rss_bytes += round(abs(draw.gauss(0, noise))) + sum(step.step >= at for at in jumping) * 12 * MIB
    for step in leaking + sound:
        step.window = "trace-1" if step.step in (5, 6) else None
    growth = run_of(folder / "leaking", leaking).get(HostGrowth)
    assert growth.is_growing
    assert growth.fit.trend.slope == pytest.approx(8 * MIB, rel=0.01)
    assert not run_of(folder / "sound", sound).get(HostGrowth).is_growing


@pytest.mark.parametrize(("tensor_bytes", "num_findings"), [(9 * KIB, 0), (300 * KIB, 0), (500 * KIB, 1)])
def test_a_list_that_fills_the_host_is_told_of_once_though_its_pointers_lie_in_the_heap(
    tensor_bytes: int, num_findings: int, tmp_path: Path
) -> None:
    """8 bytes in the C heap for each object of 24 or more outside of it; what grows faster is another leak."""
    run = run_of(tmp_path, growing(tensor_bytes=tensor_bytes, python_bytes=MIB))
    assert run.get(HostGrowth).is_growing
    assert len(memory_growth(run).findings) == num_findings


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
