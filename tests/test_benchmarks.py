"""The arithmetic of the overhead table, and that a loop can be measured with and without the recorder."""

import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import efprof
from benchmarks.at_hooks import Shims, run_at_hooks
from benchmarks.blocks import AtHooksRequest, BlockTimes
from benchmarks.intervals import Estimate, median_with_interval
from benchmarks.loops import TrainingLoop
from benchmarks.measuring import Pair, measure
from benchmarks.start_up import measure_start_up
from benchmarks.switch import Switch
from benchmarks.table import MAX_PEAK_BYTES, Row, budgets, row_of, start_up_budget, table_line
from benchmarks.variants import TIER_1
from efprof.artifacts.steps import read_steps

SHORT, LONG = 2.0, 30.0


def block(step_ms: float, cpu_ms: float) -> BlockTimes:
    return BlockTimes(times_ms=[step_ms] * 10, cpu_ms=cpu_ms, around_s=0.0, peak_bytes=0)


def row(bare_ms: float, *, ratio: Estimate, added_us: Estimate) -> Row:
    pairs = [Pair(tool=block(bare_ms, bare_ms), bare=block(bare_ms, bare_ms))]
    one = row_of("mlp", "tier 1", pairs, is_by_wall=False, peak_added_bytes=0)
    return replace(one, cpu_ratio=ratio, added_us=added_us)


def test_the_interval_of_thirty_pairs_leaves_nine_out_at_each_end() -> None:
    assert median_with_interval(range(1, 31)) == Estimate(value=15.5, low=10, high=21)


def test_six_pairs_are_the_fewest_that_have_an_interval() -> None:
    assert median_with_interval(range(6)) == Estimate(value=2.5, low=0, high=5)
    assert math.isinf(median_with_interval(range(5)).high)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.99, 1.008, "held"), (1.002, 1.02, "unclear"), (1.011, 1.02, "not held")],
)
def test_a_long_step_is_judged_by_its_ratio(low: float, high: float, verdict: str) -> None:
    verdict_on_time, _ = budgets(
        row(LONG, ratio=Estimate(value=1.0, low=low, high=high), added_us=Estimate(value=900.0))
    )
    assert f"time {verdict}:" in verdict_on_time


@pytest.mark.parametrize(("low", "high", "verdict"), [(20, 39, "held"), (30, 50, "unclear"), (41, 60, "not held")])
def test_a_short_step_is_judged_by_what_is_added(low: float, high: float, verdict: str) -> None:
    verdict_on_time, _ = budgets(
        row(SHORT, ratio=Estimate(value=1.5), added_us=Estimate(value=40.0, low=low, high=high))
    )
    assert f"time {verdict}:" in verdict_on_time


def test_beside_it_stands_what_was_timed_at_the_hooks() -> None:
    unclear = row(SHORT, ratio=Estimate(value=1.5), added_us=Estimate(value=40.0, low=30, high=50))
    assert "at its hooks" not in budgets(unclear)[0]
    verdict_on_time, _ = budgets(replace(unclear, at_hooks_us=Estimate(value=25.0, low=24, high=26)))
    assert "unclear" in verdict_on_time
    assert "at its hooks held: 25 (24 to 26) us" in verdict_on_time


def test_memory_has_a_budget_of_its_own() -> None:
    within = row(SHORT, ratio=Estimate(value=1.0), added_us=Estimate(value=0.0))
    assert "memory held" in budgets(replace(within, peak_added_bytes=MAX_PEAK_BYTES))[1]
    assert "memory not held" in budgets(replace(within, peak_added_bytes=MAX_PEAK_BYTES + 1))[1]


def test_each_round_is_compared_with_its_own_bare_block() -> None:
    pairs = [
        Pair(tool=block(slow * 1.1, slow * 1.05), bare=block(slow, slow)) for slow in (2.0, 4.0, 3.0, 9.0, 2.0, 5.0)
    ]
    one = row_of("mlp", "tier 1", pairs, is_by_wall=False, peak_added_bytes=2**20)
    assert one.wall_ratio.value == pytest.approx(1.1)
    assert one.cpu_ratio.low == one.cpu_ratio.value == pytest.approx(1.05)
    assert table_line(one).endswith("| 1 MiB |")


def test_a_block_leaves_out_its_slowest_tenth() -> None:
    times = BlockTimes(times_ms=[1.0] * 18 + [50.0] * 2, cpu_ms=1.0, around_s=0.0, peak_bytes=0)
    assert times.step_ms == 1.0


def test_a_loop_is_measured_recorded_and_bare_in_one_process() -> None:
    variant = replace(TIER_1, switched_s=0.0)
    (pair,) = measure(variant, "mlp", "cpu", bare_ms=50.0, rounds=1)
    assert len(pair.tool.times_ms) == len(pair.bare.times_ms) == 10
    assert min(pair.tool.times_ms) > 0
    assert pair.own_us is not None
    assert 0 < pair.own_us < 1000 * sum(pair.tool.times_ms)
    assert pair.bare.folder is None


def test_recorded_and_bare_blocks_take_turns_within_one_recording() -> None:
    pairs = measure(replace(TIER_1, switched_s=1.0, num_processes=1), "mlp", "cpu", bare_ms=30.0, rounds=1)
    assert pairs
    assert all(min(pair.tool.cpu_ms, pair.bare.cpu_ms) > 0 for pair in pairs)
    assert pairs[0].own_us is not None
    assert pairs[0].own_us > 0


def test_a_switch_takes_every_hook_out_and_puts_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Sequential(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(steps: int) -> None:
        for _ in range(steps):
            model(torch.ones(3, 2)).sum().backward()
            optimizer.step()

    switch = Switch(model)
    with efprof.record(windows="none") as recording:
        train(10)
        switch.learn()
        switch.turn(False)
        train(10)
        switch.turn(True)
        train(10)
    assert len(read_steps(recording.folder / "rank0")[0]) == 20


def test_what_hooks_take_is_timed_without_what_they_wrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Sequential(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    original = torch.autograd.backward

    def step() -> None:
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()

    loop = TrainingLoop(model=model, batches=iter(()), train=lambda _: None)
    switch = Switch(model)
    with efprof.record(windows="none"):
        for _ in range(10):
            step()
        switch.learn()
    shims = Shims()
    with shims.around_originals(switch.places), efprof.record(windows="none"), shims.around_hooks(switch.places):
        began = time.perf_counter()
        spent_us = shims.time_round(step, 50)
        step_us = (time.perf_counter() - began) / 50 * 1e6
    assert 0 < spent_us < 0.9 * step_us
    assert torch.autograd.backward is original
    times = run_at_hooks(step, loop, AtHooksRequest(rounds=2, steps=20, options={"windows": "none"}))
    assert len(times.bare_us) == len(times.recorded_us) == 2
    assert torch.autograd.backward is original


def test_the_start_of_a_child_is_measured_with_the_hook_and_without() -> None:
    added_ms = measure_start_up(2)
    assert math.isfinite(added_ms.value)
    assert added_ms.low == -math.inf, "two rounds tell nothing"
    line = start_up_budget(Estimate(value=2.0, low=1.5, high=2.5))
    assert line == "- A Python child that never imports torch held: added 2.0 (1.5 to 2.5) ms, at most 5 ms."
    assert "not held" in start_up_budget(Estimate(value=7.0, low=6.0, high=8.0))
