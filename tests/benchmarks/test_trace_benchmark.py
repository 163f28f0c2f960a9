"""A made trace is the real one again and again, and `make bench-trace` times and judges what reads it."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.trace import MIDDLE, RANKS, REPEATED, SMALL, main
from benchmarks.tracing.made import GAP_US, make_trace
from benchmarks.tracing.table import (
    ALONE,
    BARE,
    BY_TWO,
    HTA,
    HUGE,
    LARGE,
    MAX_HUGE_BYTES,
    MAX_OTHERS,
    MAX_REPORT_BYTES,
    MB,
    Row,
    report_lines,
    requirements,
    table_line,
)
from benchmarks.tracing.works import Cost, Whole, by_two, cost_of, ours, whole_of

SPAN_US = 103
EVENTS = [
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 10, "dur": SPAN_US},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 20.5, "dur": 2}
    | {"args": {"correlation": 7, "External id": 3}},
    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 30, "dur": 9, "args": {"correlation": 7}},
]


def real(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": EVENTS}).encode()))
    return path


def cost(seconds: float, *, others: float = 0.0, peak_bytes: int = MB) -> Cost:
    figures = {"wall_s": seconds, "cpu_s": seconds, "others": others, "peak_bytes": peak_bytes}
    return Cost(**figures, num_events=1000, num_bytes=40_000)


def row(num_bytes: int, **seconds: float) -> Row:
    names = {"bare": BARE, "alone": ALONE, "by_two": BY_TWO, "hta": HTA}
    return Row(name="f", num_bytes=num_bytes, costs={names[key]: [cost(value)] for key, value in seconds.items()})


def test_a_repetition_comes_later_and_has_ids_of_its_own(tmp_path: Path) -> None:
    make_trace(real(tmp_path, "a.json.gz"), tmp_path / "made.json.gz", 800)
    events: list[dict[str, Any]] = json.loads(gzip.decompress((tmp_path / "made.json.gz").read_bytes()))["traceEvents"]
    num_repetitions = len(events) // len(EVENTS)
    assert num_repetitions >= 2
    assert events[: len(EVENTS)] == EVENTS
    assert [event["ts"] for event in events[1 :: len(EVENTS)]] == [
        20.5 + number * (SPAN_US + GAP_US) for number in range(num_repetitions)
    ]
    launches, kernels = ([event["args"]["correlation"] for event in events[place :: len(EVENTS)]] for place in (1, 2))
    assert launches == kernels
    assert len(set(launches)) == num_repetitions


@pytest.mark.long
def test_the_benchmark_prints_and_writes_its_tables(tmp_path: Path) -> None:
    for name in (SMALL, RANKS, *REPEATED):
        real(tmp_path, name)
    table = tmp_path / "trace.md"
    arguments = ["--traces", str(tmp_path), "--rounds", "1", "--large", "5000", "--ranks", "2", "--write"]
    done = CliRunner().invoke(main, [*arguments, str(table)], catch_exceptions=False)
    text = table.read_text(encoding="utf-8")
    assert done.output == text
    assert "| df_index_resolver | 0.0 MB | 3 |" in text
    assert "| control repeated | 0.0 MB | " in text
    assert "| not installed |" in text
    assert "- Peak of one process, df_index_resolver held: " in text
    assert "| efprof report | " in text
    assert "## A report of 2 ranks" in text
    assert done.exit_code == 0


def test_without_real_traces_nothing_is_measured(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--traces", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0
    assert f"Left out: {tmp_path} has not {SMALL}" in done.output


def test_a_work_by_two_processes_is_measured_with_both(tmp_path: Path) -> None:
    found = cost_of(ours(by_two, real(tmp_path, MIDDLE)))
    assert found.num_events == len(EVENTS)
    assert found.cpu_s > 0
    assert found.peak_bytes > 10 * MB
    assert whole_of(ours(by_two, tmp_path / MIDDLE)).peak_bytes > 10 * MB


def test_a_work_that_fails_is_not_timed() -> None:
    for run in (cost_of, whole_of):
        with pytest.raises(RuntimeError, match="ended with 3"):
            run([sys.executable, "-c", "raise SystemExit(3)"])


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (row(20 * MB, bare=1, alone=2.5), ["held"]),
        (row(20 * MB, bare=1, alone=2.6), ["not held"]),
        (row(19 * MB, bare=1, alone=2.6), []),
        (row(LARGE, bare=1, alone=2, by_two=1.5), ["held", "held"]),
        (row(LARGE, bare=1, alone=2, by_two=1.6), ["held", "not held"]),
        (row(2 * MB, bare=1, alone=2, hta=16), ["held"]),
        (row(2 * MB, bare=1, alone=2, hta=15), ["not held"]),
        (row(LARGE, bare=1, alone=2, by_two=1, hta=20), ["held", "held", "held", "held"]),
        (row(LARGE, bare=1, alone=2, by_two=1, hta=19), ["held", "held", "not held", "held"]),
        (row(LARGE, bare=1, alone=1, by_two=1, hta=17), ["held", "held", "held", "not held"]),
    ],
)
def test_each_size_is_judged_by_what_it_must_hold(found: Row, verdict: list[str]) -> None:
    times = [line for line in requirements([found]) if not line.startswith("- Peak")]
    assert [_verdict(line) for line in times] == verdict


def test_the_median_file_decides_over_a_bare_decoding() -> None:
    rows = [row(20 * MB, bare=1, alone=seconds) for seconds in (2, 2.4, 9)]
    assert "held: 2.40 times" in next(iter(requirements(rows)))


def test_two_processes_are_not_blamed_for_what_other_programs_took() -> None:
    found = row(LARGE, bare=1, alone=2, by_two=1.6)
    found.costs[BY_TWO] = [cost(1.6, others=MAX_OTHERS + 0.1)]
    line = list(requirements([found]))[1]
    assert " unclear: 1.60 times" in line
    assert line.endswith("Other programs kept 0.4 processors busy meanwhile.")


def test_memory_is_judged_by_events_and_a_huge_file_by_all_its_processes() -> None:
    most = 60 * MB + 120 * 1000
    for peak_bytes, by_two_bytes, verdict in (
        (most, MAX_HUGE_BYTES, "held"),
        (most + 1, MAX_HUGE_BYTES + 1, "not held"),
    ):
        found = Row(name="f", num_bytes=HUGE, costs={ALONE: [cost(1, peak_bytes=peak_bytes)]}, peak_by_two=by_two_bytes)
        found.costs |= {BARE: [cost(1)], BY_TWO: [cost(1)]}
        lines = [line for line in requirements([found]) if line.startswith("- Peak")]
        assert [_verdict(line) for line in lines] == [verdict, verdict]


def test_a_report_takes_a_sixth_of_what_tracelens_does() -> None:
    own = Whole(wall_s=1, cpu_s=1, peak_bytes=MAX_REPORT_BYTES)
    for times, verdict in ((6, "held"), (5, "not held")):
        lines = list(report_lines([own], [Whole(wall_s=1, cpu_s=times, peak_bytes=1)]))
        assert [_verdict(line) for line in lines if line.startswith("- ")] == ["held", verdict]


def test_a_ratio_is_of_works_in_the_same_round() -> None:
    found = row(MB, bare=1, alone=1)
    found.costs = {BARE: [cost(1), cost(10), cost(1)], ALONE: [cost(2), cost(20), cost(2)]}
    assert "| 2.0 |" in table_line(found, "not installed")


def _verdict(line: str) -> str:
    return next(word for word in ("not held", "unclear", "held") if f" {word}: " in line)
