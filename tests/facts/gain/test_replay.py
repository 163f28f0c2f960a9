"""A replay of a trace: what waits for what, what is won where a fault takes no time, and what cannot be told."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efprof.artifacts.foreign import as_run
from efprof.artifacts.trace.read import read_window
from efprof.audits.input_stall import input_stall
from efprof.facts.gain.replay import Replay
from efprof.facts.run.run import open_run
from efprof.facts.time.trace_windows import foreign_window
from tests.facts.gain.machine import CALL_US, LATENCY_US, LOADER, Do, Machine, events_named, window_of
from tests.facts.time.traces import ENGINE, REAL, event, kernel, launch, write
from tests.support.builders import named

SYNC = "cudaDeviceSynchronize"
HOST, LOAD, WAIT = Do("host", 100), Do("loader", 4000), Do("sync")
needs_traces = pytest.mark.skipif(not REAL.is_dir(), reason="needs ../shared/data/traces")


def replayed_without(program: list[Do], *names: str) -> float:
    window = Machine(program).window
    return Replay.of(window).replayed_without(events_named(window, *names))


def test_a_kernel_waits_for_the_one_before_it_on_its_stream() -> None:
    program = [HOST, Do("launch", 3000), LOAD, Do("launch", 3000)]
    assert replayed_without(program, LOADER) == (100 + CALL_US + LATENCY_US + 6000) / 1000
    other_stream = [HOST, Do("launch", 3000), LOAD, Do("launch", 3000, stream=8)]
    assert replayed_without(other_stream, LOADER) == (100 + 2 * CALL_US + LATENCY_US + 3000) / 1000


def test_a_synchronisation_waits_for_the_device_when_the_host_comes_to_it_earlier() -> None:
    program = [HOST, Do("launch", 3000), LOAD, WAIT, Do("host", 500)]
    assert Machine(program).length_ms == pytest.approx(4.6, abs=0.02)
    assert replayed_without(program, LOADER) == (100 + CALL_US + LATENCY_US + 3000 + 500) / 1000


def test_without_a_synchronisation_the_host_runs_ahead_and_the_device_is_the_bound() -> None:
    program = [HOST] + 10 * [Do("launch", 1000), WAIT, Do("host", 600)]
    assert Machine(program).length_ms == pytest.approx(16.1, abs=0.2)
    assert replayed_without(program, SYNC) == (100 + CALL_US + LATENCY_US + 10_000) / 1000


def test_a_copy_to_pageable_memory_blocks_as_a_synchronisation_does() -> None:
    program = [HOST] + 5 * [Do("launch", 1000), Do("read", 10), Do("host", 600)]
    window = Machine(program).window
    assert Replay.of(window).replayed_ms == Machine(program).length_ms
    assert replayed_without(program, "cudaMemcpyAsync") < Machine(program).length_ms - 4 * 0.5


@pytest.mark.parametrize("knows_streams", [True, False])
def test_a_stream_waits_for_another(knows_streams: bool) -> None:
    copied = [HOST, Do("launch", 3000, stream=8), LOAD, Do("wait"), Do("launch", 500)]
    window = Machine(copied, knows_streams=knows_streams).window
    without = Replay.of(window).replayed_without(events_named(window, LOADER))
    assert without == (100 + CALL_US + LATENCY_US + 3500) / 1000
    assert Machine([one for one in copied if one.what != "wait"], without="loader").length_ms < without


def test_a_synchronisation_of_a_stream_waits_for_no_other_where_the_trace_tells_which() -> None:
    program = [HOST, Do("launch", 2000, stream=8), LOAD, Do("launch", 1000), Do("sync_stream"), Do("host", 5000)]
    found = []
    for knows_streams in (True, False):
        window = Machine(program, knows_streams=knows_streams).window
        found.append(Replay.of(window).replayed_without(events_named(window, LOADER)))
    assert found[0] == Machine(program, without="loader").length_ms
    assert found[1] == (100 + CALL_US + LATENCY_US + 2000 + 5000) / 1000


def test_the_thread_of_backward_begins_where_the_main_one_waits_for_it() -> None:
    backward = Do("launch", 100, lane=ENGINE)
    program = [LOAD, Do("launch", 100), HOST, backward, HOST, backward, HOST, Do("launch", 100)]
    assert replayed_without(program, LOADER) == Machine(program, without="loader").length_ms


def test_the_gain_is_that_of_a_step_and_tells_how_far_the_replay_is_off() -> None:
    window = Machine([HOST, Do("launch", 1000), LOAD, HOST]).window
    gain = Replay.of(window).gain_without(events_named(window, LOADER), "without its loader")
    assert gain is not None
    won_ms = 4.2 + CALL_US / 1000 - (100 + CALL_US + LATENCY_US + 1000) / 1000
    assert gain.basis == "replay"
    assert gain.step_ms == pytest.approx(won_ms)
    assert gain.step_ms_interval == pytest.approx((won_ms, won_ms))
    assert "0.0 % off" in gain.explanation


def test_a_gain_is_that_of_one_step_and_as_long_as_a_step_outside_of_the_window() -> None:
    steps = [event(f"ProfilerStep#{number}", 1000 * number, 1000, "user_annotation") for number in range(4)]
    window = window_of(*steps, *(event(LOADER, 1000 * number, 400, "user_annotation") for number in range(4)))
    for steady_ms, won_ms in ((None, 0.4), (0.5, 0.2)):
        gain = Replay.of(replace(window, steady_ms=steady_ms)).gain_without(events_named(window, LOADER), "without")
        assert gain is not None
        assert gain.step_ms == pytest.approx(won_ms)


def test_a_kernel_that_has_ended_when_its_launch_returns_was_not_waited_for() -> None:
    window = window_of(
        event("ProfilerStep#1", 0, 13_060, "user_annotation"),
        event(LOADER, 0, 4000, "user_annotation"), launch(1, 4000), kernel(1, 4005, 3000),
        event(LOADER, 4002, 4000, "user_annotation"),
        event("cudaLaunchKernel", 8010, 50, "cuda_runtime", correlation=2), kernel(2, 8020, 10),
        event("aten::sort", 8060, 5000),
    )  # fmt: skip
    without = Replay.of(window).replayed_without(events_named(window, LOADER))
    assert without == pytest.approx(5.06, abs=0.01), "the host goes on while the first kernel runs"


def test_a_call_of_the_driver_within_one_of_the_runtime_is_a_part_of_it() -> None:
    outer = event("cudaLaunchKernel", 100, 20, "cuda_runtime")
    inner = event("cuLaunchKernel", 105, 10, "cuda_driver", correlation=1)
    replay = Replay.of(window_of(event("aten::mul", 0, 2000), outer, inner, kernel(1, 125, 300)))
    assert (replay.refusal, len(replay.schedule.calls)) == ("", 1)
    assert len(replay.schedule.calls[0].kernels) == 1


def test_on_the_host_alone_the_gain_is_the_events_own_time() -> None:
    window = window_of(event("aten::sort", 0, 50), event("aten::mul", 50, 30), event("aten::clone", 60, 10))
    assert Replay.of(window).recorded_ms == 0.08
    assert Replay.of(window).replayed_without(events_named(window, "aten::mul", "aten::clone")) == 0.05


LAUNCHED = [event("aten::mul", 0, 9000), launch(1, 10), kernel(1, 20, 4000)]
QUEUED = [kernel(2, 4020, 1000), kernel(3, 5020, 1000), kernel(4, 6020, 1000), kernel(5, 9020, 6000)]
"""The last one begins two milliseconds after the one before it, for whatever reason."""


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        (LAUNCHED, ""),
        (LAUNCHED[:2], "its kernels were not recorded: profile with `activities="),
        ([*LAUNCHED, kernel(2, 5000, 1000)], "20 % of the device's time have no launch in the trace"),
        ([*LAUNCHED, {**launch(2, 11), "tid": 2}, kernel(2, 5000, 1000)], "several threads launch at once"),
        ([LAUNCHED[0], LAUNCHED[2]], "100 % of the device's time have no launch in the trace"),
        ([*LAUNCHED, event("cudaGraphLaunch", 20, 5, "cuda_runtime", correlation=3)], "it launches CUDA graphs"),
        (
            [*LAUNCHED, *(launch(n, 10 * n) for n in (2, 3, 4, 5)), *QUEUED],
            "13 % off: `experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)`",
        ),
    ],
)
def test_a_trace_that_lacks_what_a_replay_needs_is_refused_with_the_flag_that_records_it(
    events: list[dict[str, object]], reason: str
) -> None:
    replay = Replay.of(window_of(*events))
    assert reason in replay.refusal
    assert bool(replay.refusal) == bool(reason)


def test_a_trace_without_steps_ends_for_the_host_with_its_last_event_and_not_with_the_device() -> None:
    window = window_of(event("aten::mul", 0, 100), launch(1, 100), kernel(1, 110, 400), event("aten::sort", 102, 50))
    replay = Replay.of(window)
    assert (replay.schedule.end_ns, replay.recorded_ms) == (152_000, 0.51)


def test_what_was_launched_before_the_trace_began_is_on_the_device_whatever_the_host_does() -> None:
    earlier = kernel(9, -500, 6500)
    window = window_of(event(LOADER, 0, 4000, "user_annotation"), launch(1, 4000), earlier, kernel(1, 6000, 100))
    replay = Replay.of(window)
    assert replay.refusal == ""
    assert replay.replayed_without(events_named(window, LOADER)) == replay.recorded_ms


def test_what_was_launched_before_the_first_step_runs_into_it() -> None:
    step = event("ProfilerStep#1", 100, 9000, "user_annotation")
    launched = [launch(1, 90), kernel(1, 95, 6000), event(LOADER, 100, 7000, "user_annotation"), launch(2, 7100)]
    window = window_of(step, *launched, kernel(2, 7110, 3000))
    assert Replay.of(window).replayed_without(events_named(window, LOADER)) == (5995 + 3000) / 1000


def test_an_audit_falls_back_to_its_bound_and_says_why(tmp_path: Path) -> None:
    """The loader of a step is 5 ms long, and the device has nothing to do meanwhile."""
    step = [
        event("ProfilerStep#1", 0, 9000, "user_annotation"),
        event(LOADER, 100, 5000, "user_annotation"),
        launch(1, 5200),
        kernel(1, 5210, 3000),
    ]
    graph = event("cudaGraphLaunch", 8800, 5, "cuda_runtime", correlation=3)
    for events, basis, told in ((step, "replay", False), ([*step, graph], "measured bound", True)):
        with as_run(write(tmp_path / "trace.json.gz", *events)) as folder:
            (finding,) = input_stall(open_run(folder)).findings
        assert finding.gain.basis == basis
        assert finding.gain.step_ms == pytest.approx(5.0)
        assert ("cannot be replayed: it launches CUDA graphs" in str(finding.evidence)) == told


STREAMS = st.sampled_from([7, 8, 20])
LANES = st.sampled_from([(1, 1), ENGINE])
ACTIONS = st.builds(
    Do,
    what=st.sampled_from(["host", "loader", "launch", "launch", "launch", "sync", "wait", "read"]),
    us=st.integers(1, 200),
    stream=STREAMS,
    other=STREAMS,
    lane=LANES,
)
BEGIN = [HOST, Do("launch", 20), Do("launch", 20, lane=ENGINE)]
"""Both threads are seen to launch something."""
PROGRAMS = st.lists(ACTIONS, min_size=1, max_size=40).map(lambda made: [*BEGIN, *made, HOST])


@settings(max_examples=100, deadline=None)
@given(program=PROGRAMS, tail_us=st.integers(0, 30), knows_streams=st.booleans())
def test_any_schedule_that_is_consistent_is_replayed_as_long_as_it_was(
    program: list[Do], tail_us: int, knows_streams: bool
) -> None:
    machine = Machine(program, tail_us=tail_us, knows_streams=knows_streams)
    replay = Replay.of(machine.window)
    assert replay.recorded_ms == pytest.approx(machine.length_ms)
    assert replay.replayed_ms == pytest.approx(machine.length_ms)


@settings(max_examples=100, deadline=None)
@given(program=PROGRAMS, without=st.sampled_from(["loader", "sync"]))
def test_any_schedule_without_its_loader_or_its_synchronisations_is_as_long_as_the_machine_takes_then(
    program: list[Do], without: str
) -> None:
    window = Machine(program).window
    found = Replay.of(window).replayed_without(events_named(window, LOADER if without == "loader" else SYNC))
    calls_ms = len(program) * CALL_US / 1000
    assert found == pytest.approx(Machine(program, without=without).length_ms, abs=calls_ms)


@pytest.mark.long
@needs_traces
def test_of_the_real_traces_those_that_are_not_refused_are_replayed_as_long_as_they_were() -> None:
    replays = {path.name: Replay.of(foreign_window(read_window(path))) for path in sorted(REAL.glob("*.gz"))}
    ratios = {name: one.replayed_ms / one.recorded_ms for name, one in replays.items()}
    table = "\n".join(f"{name[:60]:60} {ratio:.3f} {replays[name].refusal}" for name, ratio in ratios.items())
    refused = {name.split(".")[0][:30] for name, replay in replays.items() if replay.refusal}
    assert refused == {
        "hta__cupti_profiler__benchmark", "hta__negative_queue_length_val", "hta__trace_diff__test__test",
        "pytorch_ao__quant_vit_graphs", "tracelens__mi300__sglang_decod", "tracelens__mi300__xdit_flux",
    }, table  # fmt: skip
    close = [name for name, ratio in ratios.items() if not replays[name].refusal and abs(ratio - 1) <= 0.02]
    assert len(close) >= 19, table


@needs_traces
def test_the_real_training_without_its_loader_is_about_as_fast_as_its_twin_with_workers() -> None:
    (path,) = REAL.glob("kineto_tb__resnet50_num_workers_0*")
    window = foreign_window(read_window(path))
    trace = window.trace
    names = [text for text in trace.texts if text.startswith("enumerate(DataLoader)#")]
    loader = [place for name in names for place in named(trace, name)]
    step_ms = Replay.of(window).replayed_without(loader) / len(window.steps)
    assert step_ms == pytest.approx(118, abs=2)
    assert 0.9 < step_ms / 126.6 < 1.0, "the median step of its twin, whose workers use the host too"
