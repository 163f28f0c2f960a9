"""Where a step's time goes: in words, tables and pictures, of recorded runs and of anybody's traces."""

import statistics
from pathlib import Path

import numpy as np
import pytest

from efprof.artifacts.foreign import as_run
from efprof.artifacts.trace.read import read_window
from efprof.facts.run.run import open_run
from efprof.facts.steps.step_times import StepTimes
from efprof.facts.time.device_lanes import device_use, idle_gaps, kind_of
from efprof.facts.time.rank_times import RankTimes
from efprof.facts.time.step_pictures import MAX_BARS, MAX_BARS_OF_STEP
from efprof.facts.time.time_use import TimeUse, time_evidence
from efprof.facts.time.what_bounds import next_experiment, where_it_goes
from efprof.model import Evidence, Intervals, Narrative, NotRecorded, Table, UnreadableInput
from tests.facts.time.traces import REAL, STREAM, event, foreign_run, kernel, launch, step, write
from tests.support.builders import make_steps, write_run

RECORDED = Path(__file__).parents[2] / "runs" / "attention_activations-sick"
LINE = "tests/casebook/attention_activations.py"


def of_kind(evidence: tuple[Evidence, ...], kind: type) -> list[Evidence]:
    return [one for one in evidence if isinstance(one, kind)]


def test_the_lines_of_a_recorded_run_have_the_step_among_them() -> None:
    use = open_run(RECORDED).get(TimeUse)
    shares = {str(line.blame): line.host_ms / use.step_ms for line in use.lines}
    attention = sum(shares[f"{LINE}:{number}"] for number in (27, 28, 29))
    assert 0.4 < attention < 0.7
    assert 0.9 < sum(shares.values()) <= 1.0
    (first, *_) = use.lines
    assert first.backward_ms > first.stage_ms["forward"], "a backward pass costs twice its forward pass"


def test_times_of_the_host_are_those_of_a_step_outside_windows() -> None:
    use = open_run(RECORDED).get(TimeUse)
    assert use.step_ms == pytest.approx(use.window.steady_ms)
    assert use.window.step_ms > use.step_ms
    (table,) = (one for one in of_kind(time_evidence(open_run(RECORDED)), Table) if one.title.startswith("Your lines"))
    (known,) = of_kind(time_evidence(open_run(RECORDED)), Narrative)
    assert "times of the host are scaled" in known.paragraphs[0]
    assert sum(row[-1] for row in table.rows) <= 100.5


@pytest.mark.parametrize("stage", ["forward", "backward", "optimizer"])
def test_the_lines_of_a_stage_take_together_what_it_takes_in_a_usual_step(stage: str) -> None:
    run = open_run(RECORDED)
    times, lines = run.get(StepTimes), run.get(TimeUse).lines
    light = times.median_ms() / statistics.median(time.total_ms for time in times.steady)
    usual_ms = light * statistics.median(time.of(stage) for time in times.steady)
    assert sum(line.stage_ms.get(stage, 0.0) for line in lines) == pytest.approx(usual_ms, rel=0.02)


def test_a_run_in_which_nothing_is_wrong_says_where_its_time_goes_and_advises_nothing_where_operators_are_long() -> (
    None
):
    run = open_run(RECORDED)
    assert f"at {LINE}:30 (`return hidden + self.narrow" in where_it_goes(run)
    assert next_experiment(run) == ""


def test_nested_bars_lie_within_the_bar_above_them_and_are_not_too_many() -> None:
    (host, *_) = of_kind(time_evidence(open_run(RECORDED)), Intervals)
    assert isinstance(host, Intervals)
    assert sum(len(row.intervals) for row in host.rows) <= MAX_BARS
    for outer, inner in zip(host.rows, host.rows[1:], strict=False):
        spans = [(bar.start_ms, bar.start_ms + bar.length_ms) for bar in outer.intervals]
        for bar in inner.intervals:
            assert any(a - 1e-6 <= bar.start_ms and bar.start_ms + bar.length_ms <= b + 1e-6 for a, b in spans)
    widths = [bar.length_ms for bar in host.rows[0].intervals]
    assert sum(widths) == pytest.approx(host.span_ms, rel=0.02)


def test_a_step_has_few_bars_however_much_happens_on_however_many_streams(tmp_path: Path) -> None:
    """Kernels and copies by turns, one right after the other, on twelve streams at once."""
    events = [event("ProfilerStep#1", 0, 60_000, "user_annotation")]
    for at in range(6000):
        category, stream = ("kernel", "gpu_memcpy")[at // 12 % 2], at % 12 + 1
        events.append(event(category, at // 12 * 120 + stream, 110, category, (0, stream)))
    *_, picture = of_kind(time_evidence(foreign_run(tmp_path, *events)), Intervals)
    assert isinstance(picture, Intervals)
    assert sum(len(row.intervals) for row in picture.rows) <= MAX_BARS_OF_STEP
    labels = [row.label for row in picture.rows]
    assert labels[-2:] == ["GPU 0 stream 8", "4 more streams"]
    long = event("gemm", 30_000, 29_000, "kernel", (0, 1))
    *_, picture = of_kind(time_evidence(foreign_run(tmp_path, *events, long)), Intervals)
    assert any(bar.label == "gemm" and bar.length_ms > 28 for row in picture.rows for bar in row.intervals)


def test_a_device_is_busy_or_idle_for_a_reason(tmp_path: Path) -> None:
    trace = read_window(write(tmp_path / "t.json.gz", *step()))
    use = device_use(trace, 0, 1_000_000)
    assert use is not None
    assert use.busy_ns == 350_000
    assert use.busy_ns + sum(use.idle_ns.values()) == 1_000_000
    gaps = [(gap.start_ns // 1000, gap.end_ns // 1000, gap.cause) for gap in idle_gaps(trace, 0, 1_000_000)]
    assert gaps[:2] == [(0, 402, "the host had launched nothing"), (402, 410, "launched, not begun")]


def test_a_kernel_named_after_a_copy_computes(tmp_path: Path) -> None:
    names = {
        "triton_poi_fused_Memset_0": "compute", "Memcpy DtoH (Device -> Pinned)": "copy",
        "multimem_all_reduce_kernel": "communication", "void gemm": "compute",
    }  # fmt: skip
    events = [event(name, at, 1, "kernel", STREAM) for at, name in enumerate(names)]
    trace = read_window(write(tmp_path / "t.json.gz", *events))
    assert {trace.text(place): kind_of(trace, place) for place in range(4)} == names


def test_operators_and_kernels_stand_with_the_shapes_that_they_have_most_often(tmp_path: Path) -> None:
    odd = [event("aten::mm", 960 + 5 * at, 3, Input_Dims=dims) for at, dims in enumerate(("no list", [3, {}], [[]]))]
    often = [event("aten::mm", 1960 + 5 * at, 3, Input_Dims=[[64, 8], [], [[8, 2], [5]]]) for at in range(2)]
    inner = [event("aten::addmm", at + 350, 80, Input_Dims=[[2], [8, 4]]) for at in (0, 1000)]
    run = foreign_run(tmp_path, *step(0, 0), *step(1000, 1), *odd, *often, *inner, event("aten::mm", 1990, 5))
    tables = {table.title: table.rows for table in of_kind(time_evidence(run), Table) if isinstance(table, Table)}
    shapes = {row[0]: row[-1] for row in tables["Operators, per step"]}
    by = "\N{MULTIPLICATION SIGN}"
    assert shapes["`aten::linear`"] == f"8{by}4"
    assert shapes["`aten::mm`"] == f"64{by}8, 8{by}2"
    assert shapes["`aten::add_`"] == ""
    (gemm,) = tables["Kernels, per step"]
    assert (gemm[2], gemm[-1]) == ("`aten::linear`", f"8{by}4")


def test_a_trace_from_elsewhere_names_what_it_lacks_and_the_flag_that_records_it(tmp_path: Path) -> None:
    run = foreign_run(tmp_path, event("aten::mm", 0, 10), launch(1, 2), kernel(1, 20, 5))
    (known,) = of_kind(time_evidence(run), Narrative)
    text = " ".join(known.paragraphs)
    assert all(flag in text for flag in ("with_stack=True", "record_shapes=True", "profile_memory=True", "step()"))
    whole = foreign_run(tmp_path, *step(0, 0), *step(1000, 1))
    (known,) = of_kind(time_evidence(whole), Narrative)
    assert "with_stack" not in " ".join(known.paragraphs)


def test_events_without_a_time_are_said_to_be_left_out(tmp_path: Path) -> None:
    untimed = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": "soon"}] * 3
    (known,) = of_kind(time_evidence(foreign_run(tmp_path, *step(), *untimed)), Narrative)
    assert "Events that cannot be read, 3 of them, are left out." in known.paragraphs


def test_what_bounds_a_step_is_said_from_what_the_device_does(tmp_path: Path) -> None:
    assert "idle mostly while the host " in where_it_goes(foreign_run(tmp_path, *step()))
    busy = foreign_run(tmp_path, *step(), kernel(3, 0, 1000))
    assert "only less or faster work on it" in where_it_goes(busy)
    assert "bfloat16" in next_experiment(busy)


def test_a_run_without_traces_has_no_such_section(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=make_steps(30))
    assert (time_evidence(run), where_it_goes(run), next_experiment(run)) == ((), "", "")
    with pytest.raises(NotRecorded):
        run.get(TimeUse)


def test_of_several_ranks_a_broken_one_costs_one_sentence(tmp_path: Path) -> None:
    write(tmp_path / "a.json.gz", *step(), rank=1)
    write(tmp_path / "b.json.gz", *step(), rank=0)
    (tmp_path / "c.json").write_text('{"traceEvents": [')
    with as_run(tmp_path) as made:
        traces = open_run(made).get(RankTimes)
    assert sorted(traces.ranks) == [0, 1]
    (error,) = traces.errors
    assert str(tmp_path / "c.json") in error
    broken = tmp_path / "c.json"
    with as_run(broken) as made, pytest.raises(UnreadableInput):
        open_run(made).get(TimeUse)


def test_a_stage_is_one_band_as_long_as_it_lasts(tmp_path: Path) -> None:
    (_, _, lanes, *_) = of_kind(time_evidence(foreign_run(tmp_path, *step())), Intervals)
    assert isinstance(lanes, Intervals)
    bands = [(bar.label, round(bar.start_ms, 2), round(bar.length_ms, 2)) for bar in lanes.rows[0].intervals]
    assert bands == [("data", 0.01, 0.3), ("forward", 0.33, 0.18), ("backward", 0.53, 0.3), ("optimizer", 0.85, 0.1)]


def test_a_trace_of_a_rank_and_one_of_none_are_both_kept(tmp_path: Path) -> None:
    for name, rank in (("a", 1), ("c", None)):
        write(tmp_path / f"{name}.json.gz", *step(), rank=rank)
    with as_run(tmp_path) as made:
        assert sorted(open_run(made).get(RankTimes).ranks) == [0, 1]


def test_ranks_stand_side_by_side(tmp_path: Path) -> None:
    write(tmp_path / "a.json.gz", *step(), rank=1)
    write(tmp_path / "b.json.gz", *step(), kernel(3, 0, 900), rank=0)
    with as_run(tmp_path) as made:
        run = open_run(made)
        (table, *_) = of_kind(time_evidence(run), Table)
    assert isinstance(table, Table)
    assert [(row[0], row[3]) for row in table.rows] == [("0", pytest.approx(0.93)), ("1", pytest.approx(0.35))]


@pytest.mark.skipif(not REAL.is_dir(), reason="needs ../shared/data/traces")
@pytest.mark.parametrize(("name", "idle"), [("hta__trace_diff__control", 0.1636), ("hta__df_index_resolver", 0.4226)])
def test_a_device_is_idle_for_the_share_that_holistic_trace_analysis_reckons(name: str, idle: float) -> None:
    """On traces in microseconds; those in nanoseconds it rounds, until stretches are shorter than nothing."""
    (path,) = REAL.glob(f"{name}*")
    trace = read_window(path)
    events = np.flatnonzero(trace.is_of("kernel", "gpu_memcpy", "gpu_memset"))
    use = device_use(trace, int(trace.start_ns[events].min()), int(trace.end_ns[events].max()))
    assert use is not None
    assert 1 - use.busy_ns / use.span_ns == pytest.approx(idle, abs=0.00005)


def test_a_line_is_told_with_its_largest_stage_beside_the_forward_pass(tmp_path: Path) -> None:
    host = [one for one in (*step(0, 0), *step(1000, 1)) if one["cat"] not in ("kernel", "cuda_runtime")]
    loop, *_ = where_it_goes(foreign_run(tmp_path, *host)).split("; ")
    assert loop == "Most of the step goes to: 55 % at train.py:5 (`main`, 55 % data)"
