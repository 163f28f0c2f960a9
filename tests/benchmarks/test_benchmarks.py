"""The arithmetic of the overhead table, and that a loop can be measured with and without the recorder."""

import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import efprof
from benchmarks.intervals import Estimate, median_with_interval
from benchmarks.recording.blocks import BlockTimes, Side
from benchmarks.recording.loops import LOOPS
from benchmarks.recording.measuring import Pair, measure, run_whole
from benchmarks.recording.modes import mode_lines
from benchmarks.recording.start_up import measure_start_up
from benchmarks.recording.switch import Switch
from benchmarks.recording.table import MAX_PEAK_BYTES, Row, budgets, row_of, start_up_budget, table_line
from benchmarks.recording.variants import ALWAYS_ON
from efprof.artifacts.steps import read_steps

SHORT, LONG = 2.0, 30.0


def block(step_ms: float, cpu_ms: float) -> BlockTimes:
    return BlockTimes(times_ms=[step_ms] * 10, cpu_ms=cpu_ms, around_s=0.0, peak_bytes=0)


def row(bare_ms: float, *, ratio: Estimate, added_us: Estimate) -> Row:
    pairs = [Pair(tool=block(bare_ms, bare_ms), bare=block(bare_ms, bare_ms))]
    one = row_of("mlp", "always on", pairs, is_by_wall=False, peak_added_bytes=0)
    return replace(one, cpu_ratio=ratio, added_us=added_us)


def test_the_interval_of_thirty_pairs_leaves_nine_out_at_each_end() -> None:
    assert median_with_interval(range(1, 31)) == Estimate(value=15.5, low=10, high=21)


def test_six_pairs_are_the_fewest_that_have_an_interval() -> None:
    assert median_with_interval(range(6)) == Estimate(value=2.5, low=0, high=5)
    assert math.isinf(median_with_interval(range(5)).high)


@pytest.mark.parametrize(
    ("bare_ms", "low", "high", "verdict"),
    [
        (LONG, 0.99, 1.008, "held"),
        (LONG, 1.002, 1.02, "unclear"),
        (LONG, 1.011, 1.02, "not held"),
        (SHORT, 1.011, 1.029, "held"),
        (SHORT, 1.02, 1.04, "unclear"),
        (SHORT, 1.031, 1.04, "not held"),
    ],
)
def test_a_step_is_judged_by_its_ratio_a_short_one_less_strictly(
    bare_ms: float, low: float, high: float, verdict: str
) -> None:
    ratio = Estimate(value=1.0, low=low, high=high)
    by_cpu, by_wall, _ = budgets(row(bare_ms, ratio=ratio, added_us=Estimate(value=900.0)))
    assert f"CPU time {verdict}:" in by_cpu
    assert "wall unclear:" in by_wall, "one pair tells nothing"


def test_what_windows_take_beyond_the_allowance_is_part_of_the_cost() -> None:
    within = row(LONG, ratio=Estimate(value=1.004, low=1.002, high=1.006), added_us=Estimate(value=0.0))
    assert "CPU time held: ratio 1.004" in budgets(within)[0]
    assert "CPU time not held: ratio 1.014" in budgets(replace(within, beyond_share=0.01))[0]


def test_memory_has_a_budget_of_its_own() -> None:
    within = row(SHORT, ratio=Estimate(value=1.0), added_us=Estimate(value=0.0))
    assert "memory held" in budgets(replace(within, peak_added_bytes=MAX_PEAK_BYTES))[-1]
    assert "memory not held" in budgets(replace(within, peak_added_bytes=MAX_PEAK_BYTES + 1))[-1]


def test_each_round_is_compared_with_its_own_bare_block() -> None:
    pairs = [
        Pair(tool=block(slow * 1.1, slow * 1.05), bare=block(slow, slow)) for slow in (2.0, 4.0, 3.0, 9.0, 2.0, 5.0)
    ]
    one = row_of("mlp", "always on", pairs, is_by_wall=False, peak_added_bytes=2**20)
    assert one.wall_ratio.value == pytest.approx(1.1)
    assert one.cpu_ratio.low == one.cpu_ratio.value == pytest.approx(1.05)
    assert table_line(one).endswith("| 1 MiB |")


def test_a_block_leaves_out_its_slowest_tenth() -> None:
    times = BlockTimes(times_ms=[1.0] * 18 + [50.0] * 2, cpu_ms=1.0, around_s=0.0, peak_bytes=0)
    assert times.step_ms == 1.0


@pytest.mark.long
def test_a_loop_is_measured_recorded_and_bare_in_one_process() -> None:
    variant = replace(ALWAYS_ON, switched_s=0.0)
    (pair,) = measure(variant, "mlp", "cpu", bare_ms=50.0, rounds=1)
    assert len(pair.tool.times_ms) == len(pair.bare.times_ms) == 10
    assert min(pair.tool.times_ms) > 0
    assert pair.own_us is not None
    assert 0 < pair.own_us < 1000 * sum(pair.tool.times_ms)
    assert pair.bare.folder is None


@pytest.mark.long
def test_recorded_and_bare_blocks_take_turns_within_one_recording() -> None:
    pairs = measure(replace(ALWAYS_ON, switched_s=0.4, num_processes=1), "mlp", "cpu", bare_ms=30.0, rounds=1)
    assert pairs
    assert all(min(pair.tool.cpu_ms, pair.bare.cpu_ms) > 0 for pair in pairs)
    assert pairs[0].own_us is not None
    assert pairs[0].own_us > 0


@pytest.mark.long
def test_a_whole_run_tells_what_it_cost_beyond_its_allowance() -> None:
    assert 0 <= run_whole("mlp", "cpu", bare_ms=20.0, seconds=0.5) < 0.5


@pytest.mark.parametrize(
    "name",
    [
        "mlp",
        "scaler",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("accumulation", "by_hand", "closures", "gan", "teacher")
        ),
    ],
)
def test_a_recorder_sees_each_step_of_a_loop_whose_bare_slices_come_between(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loop = LOOPS[name](torch.device("cpu"))
    switch = Switch(loop.model)
    sides: tuple[Side, ...] = ("bare", "light", "full", "bare", "light")
    within_bare = list[int]()
    with efprof.record(windows="none", holders=False) as recording:
        for _ in range(25):
            loop.train(next(loop.batches))
        switch.learn()
        for side in sides:
            switch.turn(side)
            for number in range(25):
                loop.train(next(loop.batches))
                if side == "bare" and number == 12:
                    within_bare.append(time.time_ns())
        switch.turn("recorded")
    steps = read_steps(recording.folder / "rank0")[0]
    assert len(steps) == 25 * 4
    assert not any(step.is_full for step in steps[25:50])
    assert all(step.is_full for step in steps[52:75])
    spans = [(step.started_ns, step.started_ns + step.total_us * 1000) for step in steps]
    assert [at for at in within_bare if any(start < at < end for start, end in spans)] == []
    assert {step.micro_batches for step in steps[:20]} == {step.micro_batches for step in steps if not step.is_full}


@pytest.mark.long
def test_what_light_steps_add_is_told_beside_what_full_ones_do() -> None:
    (line,) = mode_lines(["scaler"], "cpu", 0.1)
    assert line.startswith("| scaler |")
    assert line.count("too few rounds") == 2


def test_the_start_of_a_child_is_measured_with_the_hook_and_without() -> None:
    added_ms = measure_start_up(2)
    assert math.isfinite(added_ms.value)
    assert added_ms.low == -math.inf, "two rounds tell nothing"
    line = start_up_budget(Estimate(value=2.0, low=1.5, high=2.5))
    assert line == "- A Python child that never imports torch held: added 2.0 (1.5 to 2.5) ms, at most 5 ms."
    assert "not held" in start_up_budget(Estimate(value=7.0, low=6.0, high=8.0))
