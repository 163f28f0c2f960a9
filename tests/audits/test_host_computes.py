"""host_computes: tells what the host does while a device waits for it, and is silent where it launches or fetches."""

from collections.abc import Callable
from pathlib import Path

import pytest

from efprof.audits.host_computes import host_computes
from efprof.audits.launch_bound import launch_bound
from efprof.facts.time.what_bounds import next_experiment
from efprof.model import Finding, NothingToLookAt
from tests.support.builders import trace_event
from tests.support.device_traces import (
    Events,
    call,
    foreign_run,
    found_by,
    has_real_traces,
    kernel,
    launched,
    operator,
    real_run,
    runtime,
    step,
)
from tests.support.rating import severity_in

STEP_MS = 10.0
PREPROCESS = "transformers/image_processing.py(235): preprocess"


def steps(inside: Callable[[float], Events], *, num: int = 4) -> Events:
    """Of 10 ms each: what is `inside` for 8.8 ms, then an operator that launches a kernel of 1 ms at 9 ms."""
    events = []
    for number in range(num):
        at = STEP_MS * number
        events += [step(number, at, STEP_MS), call("train.py(12): step", at + 0.01, STEP_MS - 0.02)]
        events += inside(at + 0.05)
        events += [operator("aten::mm", at + 8.9, 0.2), *launched("gemm", at + 8.95, at + 9.0, 0.99, number + 1)]
    return events


def only(folder: Path, events: Events) -> Finding:
    (finding,) = found_by(host_computes, folder, events)
    return finding


def in_python(at: float) -> Events:
    """Two functions, none of which has most of it, under one of a library's."""
    return [
        call(PREPROCESS, at, 8.8),
        call("transformers/image_transforms.py(390): normalize", at + 0.1, 5.0),
        call("<built-in method astype of numpy.ndarray object at 0x7c>", at + 1.0, 2.0),
        call("transformers/image_transforms.py(93): rescale", at + 5.2, 3.0),
    ]


def test_the_lowest_function_with_most_of_it_is_told_and_the_users_line_blamed(tmp_path: Path) -> None:
    with foreign_run(tmp_path, steps(in_python)) as run:
        (finding,) = host_computes(run).findings
        assert severity_in(run, finding) == "high"
        assert launch_bound(run).findings == ()
        assert next_experiment(run) == "", "to compile would change nothing"
    assert str(finding.blame) == "train.py:12"
    assert "for the host, which is in `preprocess` (transformers/image_processing.py:235)." in finding.message
    assert finding.gain.step_ms == pytest.approx(9.0, rel=0.05)
    assert "data workers" in finding.fix.summary


def test_calls_for_memory_are_told_by_their_name(tmp_path: Path) -> None:
    def frees(at: float) -> Events:
        return [operator("aten::conv2d", at, 8.8), runtime("hipFree", at + 0.1, 4.0), runtime("hipFree", at + 4.2, 4.5)]

    finding = only(tmp_path, steps(frees))
    assert "which is in `hipFree`" in finding.message
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING" in finding.fix.summary
    assert finding.gain.step_ms == pytest.approx(8.5, rel=0.05)


def test_while_a_thread_runs_backward_the_engine_s_counts(tmp_path: Path) -> None:
    def backward(at: float) -> Events:
        engine = {"tid": 2}
        name = "autograd::engine::evaluate_function: ConvolutionBackward0"
        return [
            call("<built-in method run_backward of torch._C._EngineBase object at 0x7f>", at, 8.8),
            operator(name, at + 0.1, 8.6) | engine,
            runtime("cudaFree", at + 0.2, 8.2) | engine,
            *[
                one | engine if one["cat"] != "kernel" else one
                for one in launched("dgrad", at + 8.5, at + 8.6, 0.01, 900)
            ],
        ]

    finding = only(tmp_path, steps(backward))
    assert "which is in `cudaFree`" in finding.message
    assert finding.gain.step_ms == pytest.approx(8.2, rel=0.05)


def test_operators_that_launch_nothing_are_told(tmp_path: Path) -> None:
    finding = only(tmp_path, steps(lambda at: [operator("aten::randn", at, 8.8)]))
    assert "which is in `aten::randn`" in finding.message
    assert "on the device" in finding.fix.summary


def test_first_calls_are_told_of_a_trace_without_a_warm_up(tmp_path: Path) -> None:
    events = steps(lambda at: [operator("aten::mm", at, 5.0), runtime("cudaLaunchKernel", at + 0.1, 0.01)], num=6)
    later = [one | {"ts": one["ts"] + 50_000} for one in events if one["ts"] >= 1000 * STEP_MS]
    first = [one | {"dur": one["dur"] + 50_000} if one["name"].startswith(("Profiler", "train.py", "cudaL")) else one
             for one in events if one["ts"] < 1000 * STEP_MS]  # fmt: skip
    told = [one for one in found_by(host_computes, tmp_path, first + later) if "warm-up" in one.headline]
    assert len(told) == 1
    assert "of the trace" in told[0].message
    assert told[0].why.startswith("`cudaLaunchKernel` alone took ")
    assert (told[0].severity, told[0].gain.step_ms) == ("medium", None)


def test_launching_waiting_and_fetching_are_others_matters(tmp_path: Path) -> None:
    def launches(at: float) -> Events:
        made = []
        for number in range(88):
            start = at + 0.1 * number
            made += [
                operator("aten::add", start, 0.09),
                *launched("add", start + 0.08, start + 0.085, 0.005, 7000 + number),
            ]
        return made

    def fetches(at: float) -> Events:
        return [trace_event("enumerate(DataLoader)#_X.__next__", at, 8.8, category="user_annotation")]

    def waits(at: float) -> Events:
        return [kernel("long", at, 8.7, 999), runtime("cudaDeviceSynchronize", at, 8.8)]

    for name, inside in (("launches", launches), ("fetches", fetches), ("waits", waits)):
        (tmp_path / name).mkdir()
        assert found_by(host_computes, tmp_path / name, steps(inside)) == (), name


def test_a_trace_without_a_device_has_nothing_to_look_at(tmp_path: Path) -> None:
    events = [one for one in steps(in_python) if one["cat"] not in ("kernel", "cuda_runtime")]
    with pytest.raises(NothingToLookAt):
        found_by(host_computes, tmp_path, events)


@has_real_traces
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("tracelens__mi300__ddp_resnet18_no_caching", "`hipFree`"),
        ("tracelens__h100__timesformer", "`preprocess` ("),
        ("hta__critical_path__alexnet", "first calls"),
    ],
)
def test_the_cause_in_real_traces_is_told(name: str, told: str) -> None:
    with real_run(name) as run:
        assert told in host_computes(run).findings[0].message


@has_real_traces
@pytest.mark.parametrize(
    "name", ["tracelens__b200", "pytorch_ao__quant", "hta__trace_diff__test", "hta__ns_resolution"]
)
def test_real_traces_of_busy_devices_or_launches_are_silent(name: str) -> None:
    with real_run(name) as run:
        assert host_computes(run).findings == ()
