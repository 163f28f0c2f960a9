"""The trend of retained memory: silent on healthy shapes, alarmed by real slopes."""

import math
import random
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efprof.artifacts.steps import StepRecord
from efprof.facts.growth.memory_growth import MemoryGrowth, growth_gain
from efprof.facts.growth.trend import block_minima, is_leak, theil_sen
from efprof.model import Gain
from efprof.units import KIB, MIB
from tests.support.builders import make_step, write_run

LEVEL = 200 * MIB


def alarms(sizes: list[float]) -> bool:
    """Whether the rule takes these sizes, one per step, for a leak."""
    num_dropped = max(3, math.ceil(0.2 * len(sizes)))
    points = [(step, int(size)) for step, size in enumerate(sizes)][num_dropped:]
    blocks = block_minima(points)
    return is_leak(points, blocks, theil_sen(blocks))


@settings(max_examples=100)
@given(seed=st.integers(0, 10**6), num_steps=st.sampled_from([20, 60, 120, 400]), noise=st.floats(0, 40 * MIB))
def test_flat_noise_never_alarms(seed: int, num_steps: int, noise: float) -> None:
    draw = random.Random(seed)
    assert not alarms([LEVEL + abs(draw.gauss(0, noise)) for _ in range(num_steps)])


@settings(max_examples=100)
@given(num_steps=st.sampled_from([60, 120, 400]), data=st.data(), height=st.floats(0, 100 * MIB))
def test_a_sawtooth_of_several_teeth_never_alarms(num_steps: int, data: st.DataObject, height: float) -> None:
    period = data.draw(st.integers(2, num_steps // 3))
    phase = data.draw(st.integers(0, period))
    assert not alarms([LEVEL + height * ((step + phase) % period) / period for step in range(num_steps)])


@settings(max_examples=100)
@given(num_steps=st.sampled_from([60, 120, 400]), full_at=st.floats(0, 0.5), height=st.floats(0, 100 * MIB))
def test_a_cache_that_is_full_by_half_time_never_alarms(num_steps: int, full_at: float, height: float) -> None:
    filled = max(1.0, full_at * num_steps)
    assert not alarms([LEVEL + height * min(1.0, step / filled) for step in range(num_steps)])


@settings(max_examples=100)
@given(
    seed=st.integers(0, 10**6),
    num_steps=st.sampled_from([20, 60, 120, 400]),
    slope=st.floats(16 * KIB, 100 * MIB),
    unevenness=st.floats(0, 0.5),
)
def test_a_real_slope_alarms(seed: int, num_steps: int, slope: float, unevenness: float) -> None:
    draw = random.Random(seed)
    size, sizes = float(LEVEL), []
    for _ in range(num_steps):
        size += slope * draw.uniform(1 - unevenness, 1 + unevenness)
        sizes.append(size)
    assert alarms(sizes)


def test_a_fall_within_a_few_early_steps_does_not_make_the_interval_of_a_long_leak_begin_below_nothing() -> None:
    # What a list of logged tensors left after each step, in KiB: a profiler's window gave memory back before step 34.
    read = ((20, 117_872), (28, 118_002), (34, 117_692), (299, 121_606), (1375, 137_384))
    trend = theil_sen([(step, size * KIB) for step, size in read])
    assert 13 * KIB <= trend.low <= trend.slope <= trend.high <= 17 * KIB


@settings(max_examples=25)
@given(
    slope=st.integers(16 * KIB, 100 * MIB),
    gaps=st.lists(st.integers(1, 40), min_size=40, max_size=60),  # every step of a gap is written and read: 2 ms each
    residues=st.lists(st.integers(-2 * MIB, 16 * MIB), min_size=2, max_size=2),
)
def test_a_leak_has_the_same_slope_however_seldom_memory_is_read(
    slope: int, gaps: list[int], residues: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Memory is read after full steps alone, which come by chance about every gap's length."""
    looked_at = set(range(20)) | {20 + sum(gaps[:number]) for number in range(len(gaps))}
    last = max(looked_at)
    windows = {5: residues[0], last // 2: residues[1]}
    left, steps = 0, []
    for step in range(last + 1):
        left += windows.get(step, 0)
        sizes = [LEVEL + slope * step + left] * 5 if step in looked_at or step in windows else []
        steps.append(make_step(step, allocated_bytes=sizes, window="trace-1" if step in windows else None))
    growth = write_run(tmp_path_factory.mktemp("run"), steps=steps).get(MemoryGrowth)
    assert growth.is_growing
    assert growth.fit.trend.slope == pytest.approx(slope, rel=0.02)


SPARSE = {*range(23), 25, 28, 32, 299, 2364, 2999, 5052}
WINDOWS = (5, 6, 30, 31, 300, 301, 302, 303, 3000, 3001)


def sparsely_read(
    folder: Path, bytes_after: Callable[[int], int], *, residue: int, read: Container[int] = SPARSE
) -> MemoryGrowth:
    """6,000 steps of a millisecond: after the first ones memory is read once or twice between windows."""
    steps = []
    for step in range(6000):
        left = residue * sum(first < step for first in WINDOWS[::2])
        is_read = step in read or step in WINDOWS
        sizes = [LEVEL + bytes_after(step) + left] * 5 if is_read else []
        steps.append(make_step(step, allocated_bytes=sizes, window="trace-1" if step in WINDOWS else None))
    return write_run(folder, steps=steps).get(MemoryGrowth)


@pytest.mark.parametrize("slope", [18 * KIB, 96 * KIB, MIB])
@pytest.mark.parametrize("residue", [0, 2 * MIB])
def test_a_leak_that_is_read_once_between_windows_is_not_taken_for_what_they_leave(
    slope: int, residue: int, tmp_path: Path
) -> None:
    growth = sparsely_read(tmp_path, lambda step: slope * step, residue=residue)
    assert growth.is_growing
    assert growth.fit.trend.slope == pytest.approx(slope, rel=0.15)


@pytest.mark.parametrize("num_steps", [100, 300, 700])
def test_what_an_epoch_gathers_and_lets_go_is_no_leak_though_each_stretch_between_windows_rises(
    num_steps: int, tmp_path: Path
) -> None:
    growth = sparsely_read(tmp_path, lambda step: MIB * (step % num_steps), residue=2 * MIB)
    assert not growth.is_growing


def test_growth_that_slows_down_before_the_last_reading_is_no_leak(tmp_path: Path) -> None:
    """A cache is full at two thirds of the way, which only the last of the readings can tell."""
    read = {*range(33), 150, 299}
    growth = sparsely_read(tmp_path, lambda step: MIB * min(step, 200), residue=0, read=read - {*WINDOWS})
    assert not growth.is_growing


def leaking_step(step: int, needed: int, **fields: Any) -> StepRecord:
    """A step of a leak of a mebibyte each, which needs so many bytes between forward and backward."""
    level = LEVEL + MIB * step
    return make_step(step, allocated_bytes=[level, level + needed, level + needed, level, level], **fields)


def gain_of(folder: Path, steps: list[StepRecord]) -> Gain:
    """What mending all of the growth is said to save."""
    return growth_gain(write_run(folder, steps=steps).get(MemoryGrowth).fit, 1.0)


def test_the_peak_loses_what_was_kept_up_to_its_instant_and_not_what_an_early_step_lets_go(tmp_path: Path) -> None:
    gain = gain_of(tmp_path, [leaking_step(step, (50 if step < 30 else 20) * MIB) for step in range(100)])
    assert gain.peak_bytes == pytest.approx(69 * MIB, rel=0.001)  # the last step is at 99 + 20, the mended ones at 50
    assert gain.peak_bytes_interval == pytest.approx((68 * MIB, 70 * MIB), rel=0.001)
    gain = gain_of(tmp_path / "second", [leaking_step(step, (200 if step == 30 else 20) * MIB) for step in range(100)])
    assert gain.peak_bytes == pytest.approx(30 * MIB, rel=0.001)


def test_steps_that_need_ever_more_may_need_it_for_what_is_kept_so_the_interval_reaches_farther(tmp_path: Path) -> None:
    gain = gain_of(tmp_path, [leaking_step(step, 20 * MIB + step * MIB // 2) for step in range(100)])
    assert gain.peak_bytes == pytest.approx(99 * MIB, rel=0.001)
    assert gain.peak_bytes_interval == pytest.approx((98 * MIB, 149.5 * MIB), rel=0.001)
