"""exposed_communication: fires where collectives run alone, is silent where the device computes beside them."""

from pathlib import Path
from typing import Any

import pytest

from efprof.audits.exposed_communication import exposed_communication
from efprof.model import NotRecorded
from tests.support.builders import make_steps, write_run
from tests.support.device_traces import (
    Events,
    call,
    foreign_run,
    found_by,
    has_real_traces,
    launched,
    operator,
    real_run,
    step,
)

OLD, NEW = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)"


def a_step(
    number: int,
    *,
    name: str = NEW,
    beside: bool = False,
    frames: bool = True,
    operators: bool = True,
) -> Events:
    """One of 10 ms, whose backward pass computes for 6 ms and exchanges gradients for 3 ms.

    `beside` says that the computing goes on meanwhile.
    """
    at = 10.0 * number
    events = [step(number, at, 10.0)]
    events += [call("train.py(30): train", at + 0.2, 0.7)] if frames else []
    events += [call("torch/_tensor.py(600): backward", at + 0.3, 0.5)] if frames else []
    events += [operator("aten::linear", at + 0.21, 0.05)] if operators else []
    node = operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", at + 0.32, 0.4)
    events += [node | {"tid": 2}] if operators else []
    compute, *launches = launched("gemm", at + 0.33, at + 0.4, 8.55 if beside else 6.0, 1000 * number + 1)
    launches += launched(name, at + 0.35, at + (4.9 if beside else 6.4), 3.0, 1000 * number + 2, stream=20)
    return events + [one | {"tid": 2} if one["cat"] == "cuda_runtime" else one for one in (compute, *launches)]


def steps(**fields: Any) -> Events:
    return [event for number in range(4) for event in a_step(number, **fields)]


@pytest.mark.parametrize("name", [OLD, NEW])
def test_it_tells_how_long_collectives_run_alone_under_both_names_of_their_kernels(tmp_path: Path, name: str) -> None:
    (finding,) = found_by(exposed_communication, tmp_path, steps(name=name))
    assert str(finding.blame) == "train.py:30"  # that calls backward: autograd's own calls have no line
    assert finding.gain.step_ms == pytest.approx(3.0, abs=0.01)
    assert "all-reduce of gradients 100 %" in finding.message
    assert finding.severity == "high"
    assert "bucket_cap_mb" in finding.fix.summary


def test_what_the_device_computes_beside_costs_nothing(tmp_path: Path) -> None:
    assert found_by(exposed_communication, tmp_path, steps(beside=True)) == ()


def test_without_lines_it_names_the_operator_and_the_flag(tmp_path: Path) -> None:
    (finding,) = found_by(exposed_communication, tmp_path, steps(frames=False))
    assert finding.blame.file.startswith("operator torch::autograd::AccumulateGrad")
    assert "`with_stack=True` tells" in finding.message


def test_a_call_outside_of_backward_is_blamed_on_its_function_and_named_by_its_argument(tmp_path: Path) -> None:
    events = []
    for number in range(3):
        start = 10.0 * number
        events += [step(number, start, 10.0), call("train.py(50): gather", start + 1, 1)]
        events += launched("ncclDevKernel_Generic(args)", start + 1.1, start + 2, 4.0, number + 1)
        events[-1]["args"]["Collective name"] = "_allgather_base"
    (finding,) = found_by(exposed_communication, tmp_path, events)
    assert str(finding.blame) == "train.py:50"
    assert "all-gather 100 %" in finding.message
    assert "forward_prefetch=True" in finding.fix.summary


def test_without_a_trace_it_is_not_applicable_and_without_collectives_it_passes(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded):
        exposed_communication(write_run(tmp_path / "run", steps=make_steps(3)))
    with foreign_run(tmp_path, [step(0, 0.0, 2.0), *launched("gemm", 0.5, 0.6, 1.0, 1)]) as run:
        assert exposed_communication(run).looked_at == "a trace without collectives on a device"


@has_real_traces
@pytest.mark.parametrize(
    ("name", "kind", "advice"),
    [
        ("hta__df_index_resolver", "all-reduce of gradients 100 %", "404 per step"),
        ("hta__trace_diff__control", "all-to-all 95 %", "async_op=True"),
        ("hta__negative_queue", "all-reduce of gradients 63 %", "bf16_compress_hook"),
    ],
)
def test_real_traces_in_which_communication_is_exposed_are_found(name: str, kind: str, advice: str) -> None:
    with real_run(name) as run:
        (finding,) = exposed_communication(run).findings
    assert kind in finding.message
    assert advice in finding.fix.summary


@has_real_traces
@pytest.mark.parametrize("name", ["hta__trace_diff__test", "hta__nccl_parser_config", "tracelens__b200"])
def test_real_traces_in_which_it_overlaps_or_is_short_are_not(name: str) -> None:
    with real_run(name) as run:
        assert exposed_communication(run).findings == ()
