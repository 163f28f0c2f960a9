"""launch_bound: fires where short kernels wait for their launches, is silent where a device waits otherwise."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from efprof.audits.launch_bound import launch_bound
from efprof.model import NothingToLookAt, NotRecorded, ThinEvidence
from tests.support.builders import START_NS, make_steps, trace_event, write_run
from tests.support.device_traces import (
    Events,
    call,
    foreign_run,
    found_by,
    has_real_traces,
    launched,
    operator,
    real_run,
    runtime,
    step,
)
from tests.support.rating import severity_in

NUM_LAUNCHES, EVERY_MS = 100, 0.1
"""A step of 10 ms with a launch every 100 us."""


def a_step(
    number: int,
    *,
    kernel_ms: float = 0.01,
    name: Callable[[int], str] = lambda _: "aten::add",
    kernel: str = "elementwise_kernel",
    frames: bool = True,
    num_launches: int = NUM_LAUNCHES,
) -> Events:
    """One in which `train.py:12` launches kernels, each over before the next."""
    start = number * num_launches * EVERY_MS
    events = [step(number, start, num_launches * EVERY_MS)]
    events += [call("train.py(12): step", start + 0.01, num_launches * EVERY_MS - 0.02)] if frames else []
    for index in range(num_launches):
        at = start + (index + 0.2) * EVERY_MS
        events.append(operator(name(index), at, 0.05))
        events += launched(kernel, at + 0.04, at + 0.05, kernel_ms, 1000 * number + index + 1)
    return events


def steps(**fields: Any) -> Events:
    return [event for number in range(4) for event in a_step(number, **fields)]


def test_it_blames_the_function_that_launches_and_bounds_the_gain_by_the_gaps(tmp_path: Path) -> None:
    with foreign_run(tmp_path, steps()) as run:
        (finding,) = launch_bound(run).findings
        assert severity_in(run, finding) == "high"
    assert str(finding.blame) == "train.py:12"
    assert finding.gain.step_ms == pytest.approx(
        8.4 - 0.12, abs=0.02
    )  # 100 gaps of 84 us, less what recording 202 events adds
    assert finding.message == "The device waits 8.28 ms of each step (84 %) for the host to launch."
    assert finding.why.startswith("Each of 100 launches is 10.0 us of work for the device and ")
    assert "reduce-overhead" in finding.fix.summary
    assert "foreach" not in finding.fix.summary


def test_a_device_that_is_busy_is_no_fault(tmp_path: Path) -> None:
    assert found_by(launch_bound, tmp_path, steps(kernel_ms=0.095)) == ()


def stretched(events: Events, factor: float) -> Events:
    """The same with more time between launches, each of which takes as long as before."""
    return [
        event | {"ts": event["ts"] * factor, "dur": event["dur"] * (factor if event["dur"] > 1000 else 1)}
        for event in events
    ]


def test_long_gaps_are_not_launching(tmp_path: Path) -> None:
    assert len(found_by(launch_bound, tmp_path, stretched(steps(), 5))) == 1
    assert found_by(launch_bound, tmp_path, stretched(steps(), 15)) == ()


def test_where_the_device_mostly_waits_for_something_else_that_is_to_be_mended_first(tmp_path: Path) -> None:
    """Of steps of 30 ms, the last of 10, 8.4 go by in gaps between launches, and 20 in one gap at the end."""
    events = [event | {"ts": event["ts"] + 20_000 * (event["ts"] // 10_000)} for event in steps()]
    with foreign_run(tmp_path, events) as run:
        assert launch_bound(run).looked_at.endswith("waited for 33 % of it")
        assert launch_bound(run).findings == ()


def test_gaps_after_a_synchronisation_or_within_the_loader_do_not_count(tmp_path: Path) -> None:
    for folder, other in (("waits", "cudaStreamSynchronize"), ("fetches", "enumerate(DataLoader)#_X.__next__")):
        events = []
        for event in steps():
            events.append(event)
            if event["name"] == "aten::add":
                at = event["ts"] / 1000 + 0.061  # the kernel ends 60 us after its operator began
                is_wait = other.startswith("cuda")
                events.append(
                    runtime(other, at - 0.005, 0.02)
                    if is_wait
                    else trace_event(other, at, 0.02, category="user_annotation")
                )
        (tmp_path / folder).mkdir()
        with foreign_run(tmp_path / folder, events) as run:
            assert launch_bound(run).findings == (), other


def test_an_optimizer_that_launches_much_is_to_update_all_at_once(tmp_path: Path) -> None:
    events = steps() + [
        trace_event("Optimizer.step#AdamW.step", 10.0 * number + 5.0, 4.9, category="user_annotation")
        for number in range(4)
    ]
    (finding,) = found_by(launch_bound, tmp_path, events)
    assert "Give the optimizer, which launches 49 kernels, `foreach=True`" in finding.fix.summary


@pytest.mark.parametrize(
    ("used", "never"),
    [
        ("multi_tensor_apply_kernel<AdamFunctor>", "foreach"),
        ("cudaGraphLaunch", "reduce-overhead"),
    ],
)
def test_what_is_used_is_not_suggested(tmp_path: Path, used: str, never: str) -> None:
    labels = [
        trace_event("Optimizer.step#AdamW.step", 10.0 * number + 0.1, 9.7, category="user_annotation")
        for number in range(4)
    ]
    assert never in found_by(launch_bound, tmp_path, steps() + labels)[0].fix.summary
    events = steps() + labels + [runtime(used, 3.0, 0.001)]
    assert never not in found_by(launch_bound, tmp_path, events)[0].fix.summary


def test_without_lines_it_names_the_operator_and_the_flag_that_tells_lines(tmp_path: Path) -> None:
    (finding,) = found_by(launch_bound, tmp_path, steps(frames=False))
    assert finding.blame.file.startswith("operator aten::add")
    assert "`with_stack=True` tells" in finding.why


def test_without_anything_to_name_it_abstains(tmp_path: Path) -> None:
    events = [event for event in steps(frames=False) if event["cat"] != "cpu_op"]
    with pytest.raises(ThinEvidence, match="with_stack=True"):
        found_by(launch_bound, tmp_path, events)


@pytest.mark.parametrize(("steady_ms", "gain_ms"), [(2.5, 0.9), (1.2, None)])
def test_what_recording_adds_is_not_the_program_s(tmp_path: Path, steady_ms: float, gain_ms: float | None) -> None:
    """Of 8.4 ms in gaps, what a step of 10 ms in the window is longer than those outside of it."""
    made = make_steps(40, data_ms=0.0, forward_ms=0.5, backward_ms=steady_ms - 0.5, optimizer_ms=0.0, other_ms=0.0)
    for record in made[:4]:
        record.window = "trace-1"
        record.started_ns = START_NS + record.step * 10_000_000
        record.total_us = 10_000.0
    run = write_run(tmp_path / "run", steps=made, sources={"train.py": "pass\n" * 20}, traces=[steps()])
    found = [finding.gain.step_ms for finding in launch_bound(run).findings]
    assert found == ([] if gain_ms is None else [pytest.approx(gain_ms, abs=0.01)])


def test_a_run_without_traces_or_a_device_is_not_applicable(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded):
        launch_bound(write_run(tmp_path / "none", steps=make_steps(5)))
    events = [step(1, 0.0, 5.0), operator("aten::add", 1.0, 1.0)]
    with foreign_run(tmp_path, events) as run, pytest.raises(NothingToLookAt, match=r"^Needs a CUDA device\.$"):
        launch_bound(run)


@has_real_traces
@pytest.mark.parametrize(
    ("name", "blame"),
    [
        ("tracelens__h100__gaunernst", "moca/library/model_hub/huggingface/model/adapters/text_base_model.py:28"),
        ("tracelens__h100__Falconsai", "moca/library/model_hub/huggingface/model/adapters/image_model.py:37"),
        ("tracelens__b200", "module GptOssForCausalLM_0"),
        ("hta__nccl_parser_config", "label ## forward ##"),
    ],
)
def test_real_traces_of_short_kernels_are_found(name: str, blame: str) -> None:
    with real_run(name) as run:
        (finding,) = launch_bound(run).findings
    assert str(finding.blame).startswith(blame)


@has_real_traces
@pytest.mark.parametrize(
    "name",
    [
        "tracelens__h100__Qwen",
        "hta__ns_resolution",
        "hta__negative_queue",
        "hta__trace_diff__control",
        "hta__amd_trace",
    ],
)
def test_real_traces_of_busy_devices_or_other_waits_are_not(name: str) -> None:
    with real_run(name) as run:
        assert launch_bound(run).findings == ()


@has_real_traces
def test_a_loader_that_keeps_the_device_waiting_is_not_launching() -> None:
    with real_run("kineto_tb__resnet50_num_workers_0") as run:
        assert launch_bound(run).findings == ()
