"""exposed_communication: fires where collectives run alone, is silent where the device computes beside them."""

from pathlib import Path
from typing import Any

import pytest

from efprof.audits.exposed_communication import exposed_communication
from efprof.audits.slow_rank import slow_rank
from efprof.model import NothingToLookAt, NotRecorded, ThinEvidence
from tests.support.builders import make_steps, trace_event, write_run
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
from tests.support.rating import severity_in

OLD, NEW = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)"


def label(name: str, start_ms: float, length_ms: float) -> dict[str, Any]:
    return trace_event(name, start_ms, length_ms, category="user_annotation")


def a_step(
    number: int,
    *,
    name: str = NEW,
    beside: bool = False,
    frames: bool = True,
    passes: int = 1,
    exchanges: int = 1,
    synced: int | None = None,
    operators: bool = True,
    **args: Any,
) -> Events:
    """One of 10 ms: `passes` of DDP, whose backward passes compute for 6 ms and exchange gradients for 3 ms in all.

    Only the last `synced` passes exchange; `beside` says that the computing goes on meanwhile.
    """
    start, each = 10.0 * number, 9.0 / passes
    events = [step(number, start, 10.0)]
    for index in range(passes):
        at = start + index * each
        events.append(label("DistributedDataParallel.forward", at, 0.1))
        events += [call("train.py(30): train", at + 0.2, 0.7)] if frames else []
        events += [call("torch/_tensor.py(600): backward", at + 0.3, 0.5)] if frames else []
        correlation = 1000 * number + 100 * index + 1
        events += [operator("aten::linear", at + 0.21, 0.05)] if operators else []
        node = operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", at + 0.32, 0.4)
        events += [node | {"tid": 2}] if operators else []
        num = exchanges if index >= passes - (passes if synced is None else synced) else 0
        busy_ms = each * (0.95 if beside else 2 / 3)
        compute, *launches = launched("gemm", at + 0.33, at + 0.4, busy_ms, correlation)
        for place in range(num):
            length_ms = each / 3 / num
            begin = at + 0.4 + each * (0.5 if beside else 2 / 3) + place * length_ms
            launches += launched(name, at + 0.35 + 0.001 * place, begin, length_ms, correlation + place + 1, stream=20)
            launches[-1]["args"] |= args
        events += [one | {"tid": 2} if one["cat"] == "cuda_runtime" else one for one in (compute, *launches)]
    return events


def steps(**fields: Any) -> Events:
    return [event for number in range(4) for event in a_step(number, **fields)]


@pytest.mark.parametrize("name", [OLD, NEW])
def test_it_tells_how_long_collectives_run_alone_under_both_names_of_their_kernels(tmp_path: Path, name: str) -> None:
    (finding,) = found_by(exposed_communication, tmp_path, steps(name=name))
    assert str(finding.blame) == "train.py:30"  # that calls backward: autograd's own calls have no line
    assert finding.gain.step_ms == pytest.approx(3.0, abs=0.01)
    assert finding.message == "For 3.00 ms of each step (30 %) the device does nothing but communicate."
    assert "all-reduce of gradients 100 %" in finding.why
    with foreign_run(tmp_path, steps(name=name)) as run:
        assert severity_in(run, finding) == "high"
    assert "bucket_cap_mb" in finding.fix.summary
    assert "no_sync():" not in finding.fix.summary


def test_what_the_device_computes_beside_costs_nothing(tmp_path: Path) -> None:
    assert found_by(exposed_communication, tmp_path, steps(beside=True)) == ()


def test_without_lines_it_names_the_operator_and_the_flag(tmp_path: Path) -> None:
    (finding,) = found_by(exposed_communication, tmp_path, steps(frames=False))
    assert finding.blame.file.startswith("operator torch::autograd::AccumulateGrad")
    assert "`with_stack=True` tells" in finding.why


def test_a_call_outside_of_backward_is_blamed_on_its_function_and_named_by_its_argument(tmp_path: Path) -> None:
    events = []
    for number in range(3):
        start = 10.0 * number
        events += [step(number, start, 10.0), call("train.py(50): gather", start + 1, 1)]
        events += launched("ncclDevKernel_Generic(args)", start + 1.1, start + 2, 4.0, number + 1)
        events[-1]["args"]["Collective name"] = "_allgather_base"
    (finding,) = found_by(exposed_communication, tmp_path, events)
    assert str(finding.blame) == "train.py:50"
    assert "all-gather 100 %" in finding.why
    assert finding.fix.summary.startswith("Start the all-gather earlier")
    events.append(call("torch/distributed/fsdp/_runtime_utils.py(300): _unshard", 2.0, 0.5))
    (finding,) = found_by(exposed_communication, tmp_path, events)
    assert "forward_prefetch=True" in finding.fix.summary


def test_accumulation_that_exchanges_in_each_pass_is_to_exchange_in_the_last(tmp_path: Path) -> None:
    (finding,) = found_by(exposed_communication, tmp_path, steps(passes=3))
    assert "no_sync():` around all but the last of the 3 passes" in finding.fix.summary


def test_accumulation_that_exchanges_in_the_last_pass_is_right(tmp_path: Path) -> None:
    (finding,) = found_by(exposed_communication, tmp_path, steps(passes=2, synced=1))
    assert "no_sync():" not in finding.fix.summary


def test_two_models_with_an_update_each_do_not_accumulate(tmp_path: Path) -> None:
    updates = [label("Optimizer.step#Adam.step", 10.0 * number + at, 0.1) for number in range(4) for at in (4.2, 9.2)]
    (finding,) = found_by(exposed_communication, tmp_path, steps(passes=2) + updates)
    assert "no_sync():" not in finding.fix.summary


def test_many_short_exchanges_are_to_be_put_together(tmp_path: Path) -> None:
    (finding,) = found_by(exposed_communication, tmp_path, steps(exchanges=50))
    assert "a larger `bucket_cap_mb`" in finding.fix.summary
    assert "50 per step" in finding.fix.summary
    assert "fewer, larger parts" not in found_by(exposed_communication, tmp_path, steps(exchanges=20))[0].fix.summary


def test_views_are_suggested_only_where_buckets_are_seen_to_be_copied(tmp_path: Path) -> None:
    assert "gradient_as_bucket_view" not in found_by(exposed_communication, tmp_path, steps())[0].fix.summary
    copy = operator("torch.distributed.ddp.reducer::copy_bucket_to_grad", 9.5, 0.1)
    assert "gradient_as_bucket_view" in found_by(exposed_communication, tmp_path, [*steps(), copy])[0].fix.summary


def test_without_a_trace_or_collectives_it_is_not_applicable(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded):
        exposed_communication(write_run(tmp_path / "run", steps=make_steps(3)))
    events = [step(0, 0.0, 2.0), *launched("gemm", 0.5, 0.6, 1.0, 1)]
    with foreign_run(tmp_path, events) as run, pytest.raises(NothingToLookAt, match="Needs collectives on a device"):
        exposed_communication(run)


@has_real_traces
@pytest.mark.parametrize(
    ("name", "kind", "advice"),
    [
        ("hta__df_index_resolver", "all-reduce of gradients 100 %", "404 per step"),
        ("hta__trace_diff__control", "all-to-all 95 %", "async_op=True"),
        ("hta__negative_queue", "all-reduce of gradients 67 %", "bf16_compress_hook"),
    ],
)
def test_real_traces_in_which_communication_is_exposed_are_found(name: str, kind: str, advice: str) -> None:
    with real_run(name) as run:
        (finding,) = exposed_communication(run).findings
    assert kind in finding.why
    assert advice in finding.fix.summary


@has_real_traces
@pytest.mark.parametrize("name", ["hta__trace_diff__test", "hta__nccl_parser_config", "tracelens__b200"])
def test_real_traces_in_which_it_overlaps_or_is_short_are_not(name: str) -> None:
    with real_run(name) as run:
        assert exposed_communication(run).findings == ()


def two_ranks(num: int) -> tuple[Events, Events]:
    """The second comes last: it stays in each collective for a tenth of the time, and to the same end."""
    first = [event for number in range(num) for event in a_step(number)]
    second = [
        one | {"ts": one["ts"] + 0.9 * one["dur"], "dur": 0.1 * one["dur"]} if one["name"] == NEW else one
        for one in first
    ]
    return first, second


WORLD = [{"rank": rank, "world_size": 2} for rank in (0, 1)]


def test_what_a_rank_waits_for_the_last_one_is_told_apart_from_what_moves(tmp_path: Path) -> None:
    (finding,) = found_by(exposed_communication, tmp_path, *two_ranks(4), distributed=WORLD)
    assert finding.message.endswith(" 2.70 ms of that it waits for the last rank.")
    assert finding.gain.step_ms == pytest.approx(2.7, rel=0.02)
    assert finding.fix.summary.startswith("Even out the ranks' work")
    (tmp_path / "alike").mkdir()
    alike = found_by(exposed_communication, tmp_path / "alike", steps(), steps(), distributed=WORLD)
    assert "waits for the last rank" not in alike[0].message
    assert alike[0].gain.step_ms == pytest.approx(3.0, rel=0.02)


def test_in_few_steps_it_is_said_who_came_last_and_no_rank_is_blamed(tmp_path: Path) -> None:
    with pytest.raises(ThinEvidence, match="of which rank 1 came last to 2: too few"):
        found_by(slow_rank, tmp_path, *two_ranks(2), distributed=WORLD)
