"""The made snapshot is what torch would have written, and `make bench-memory` replays and times it."""

import pickle
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks.memory.__main__ import main
from benchmarks.memory.made_snapshots import made_snapshot
from benchmarks.memory.speed import BUDGET_EVENTS, MAX_PEAK_BYTES, MAX_SECONDS, Cost, Work, budgets, measure
from benchmarks.memory.truth import truth_lines
from efprof.artifacts.snapshot import Snapshot
from efprof.facts.allocator.history import history_of
from efprof.facts.allocator.replay import replay

NUM_EVENTS = 20_000


@pytest.fixture(scope="module")
def made() -> Any:
    return made_snapshot(NUM_EVENTS)


def test_a_made_history_is_as_long_as_wanted_and_replays_exactly(made: Any) -> None:
    history = history_of(msgspec.convert(made, Snapshot), device=0)
    replayed = replay(history)
    assert len(history.entries) in {NUM_EVENTS, NUM_EVENTS + 1}
    assert replayed.allocations > NUM_EVENTS / 4
    assert replayed.segments > 0
    assert replayed.match_share == 1


def test_stacks_are_shared_as_torch_shares_them(made: Any) -> None:
    events = made["device_traces"][0]
    lists = {id(event["frames"]) for event in events}
    assert len(lists) == sum(event["action"] in {"alloc", "free_completed"} for event in events)
    assert len({id(frame) for event in events for frame in event["frames"]}) < NUM_EVENTS / 4
    assert all(10 <= len(event["frames"]) <= 30 for event in events)


def test_made_training_is_the_same_every_time(made: Any) -> None:
    assert made_snapshot(NUM_EVENTS) == made


@pytest.mark.long
def test_the_benchmark_prints_and_writes_both_tables(tmp_path: Path) -> None:
    table = tmp_path / "memory.md"
    arguments = ["--events", "2000", "--rounds", "1", "--recordings", str(tmp_path), "--write", str(table)]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    text = table.read_text(encoding="utf-8")
    assert done.exit_code == 0
    assert done.output == text
    assert f"Left out: there is no recording in {tmp_path}." in text
    assert "| efprof: read and replay | " in text
    assert " of trace |" in text
    assert "Not judged" in text


def test_a_work_that_fails_is_not_timed() -> None:
    with pytest.raises(RuntimeError, match="broken ended with 3"):
        measure([Work(name="broken", command=[sys.executable, "-c", "raise SystemExit(3)"])], rounds=1)


@pytest.mark.parametrize(
    ("cost", "verdicts"),
    [
        (Cost(wall_s=MAX_SECONDS, cpu_s=0, peak_bytes=MAX_PEAK_BYTES), (" held: ", " held: ")),
        (Cost(wall_s=MAX_SECONDS + 1, cpu_s=0, peak_bytes=MAX_PEAK_BYTES), (" not held: ", " held: ")),
        (Cost(wall_s=MAX_SECONDS, cpu_s=0, peak_bytes=MAX_PEAK_BYTES + 1), (" held: ", " not held: ")),
    ],
)
def test_a_million_events_are_judged_by_time_and_memory(cost: Cost, verdicts: tuple[str, str]) -> None:
    lines = budgets([cost], BUDGET_EVENTS)
    assert [verdict in line for verdict, line in zip(verdicts, lines, strict=True)] == [True, True]


def test_the_median_round_decides() -> None:
    fast, slow = Cost(wall_s=1, cpu_s=0, peak_bytes=0), Cost(wall_s=1000, cpu_s=0, peak_bytes=0)
    assert " held: 1.0 s" in budgets([fast, slow, fast], BUDGET_EVENTS)[0]


def test_a_recording_has_a_row_for_its_device_and_one_without_a_history_a_reason(tmp_path: Path, made: Any) -> None:
    (tmp_path / "made.pickle").write_bytes(pickle.dumps(made))
    (tmp_path / "torn.pickle").write_bytes(pickle.dumps(made)[:-9])
    (tmp_path / "unused.pickle").write_bytes(pickle.dumps(made_snapshot(1) | {"device_traces": [[]]}))
    lines = list(truth_lines(tmp_path))
    (row,) = [line for line in lines if line.startswith("| made |")]
    assert "| equal | began cold |" in row
    assert any("torn.pickle is no whole pickle" in line for line in lines)
    assert any(
        "unused, device 0: its history holds no allocation, so nothing can be replayed." in line for line in lines
    )
