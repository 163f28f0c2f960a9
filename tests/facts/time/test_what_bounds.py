"""What most of a step goes to is told by lines, else by the modules within the one line there is, else by operators."""

from pathlib import Path
from typing import Any

import pytest

from efprof.facts.time.time_use import TimeUse
from efprof.facts.time.trace_windows import TraceWindow
from efprof.facts.time.what_bounds import next_experiment, where_it_goes
from tests.facts.time.traces import REAL, STREAM, event, foreign_run, run_of, step
from tests.support.builders import make_step, make_steps, trace_event, write_run


def module(name: str, start_us: float, length_us: float) -> list[dict[str, Any]]:
    return [
        event(f"nn.Module: {name}", start_us, length_us, "python_function"),
        event("aten::linear", start_us + 1, length_us - 2, Sequence_number=1),
    ]


def test_lines_are_told_where_there_are_several(tmp_path: Path) -> None:
    busy = event("gemm", 5, 980, "kernel", STREAM, correlation=1)
    text = where_it_goes(foreign_run(tmp_path, *step(), busy))
    assert "Most of the device's time goes to: 96 % at train.py:10 (`forward`)." in text
    text = where_it_goes(foreign_run(tmp_path, *step()))
    assert "55 % at train.py:5 (`main`, 55 % data); 45 % at train.py:10 (`forward`, 56 % backward)." in text


def test_where_one_line_has_everything_the_modules_within_it_are_told(tmp_path: Path) -> None:
    blocks = [one for at in (10, 410) for one in (*module("Attention_0", at, 300), *module("MLP_1", at + 300, 90))]
    outer = [
        event("train.py(3): main", 0, 900, "python_function"),
        event("nn.Module: Model_0", 5, 890, "python_function"),
    ]
    assert "67 % in `Attention`; 20 % in `MLP`" in where_it_goes(foreign_run(tmp_path, *outer, *blocks))


def test_without_lines_and_modules_operators_are_told(tmp_path: Path) -> None:
    events = [event("aten::mm", 0, 60), event("aten::add", 60, 39), event("aten::to", 99, 1)]
    assert where_it_goes(foreign_run(tmp_path, *events)).endswith("60 % in `aten::mm`; 39 % in `aten::add`.")


def test_without_launches_kernels_are_told(tmp_path: Path) -> None:
    events = [event(name, at, 60, "kernel", STREAM) for at, name in ((0, "gemm"), (60, "gemm"), (120, "norm"))]
    text = where_it_goes(foreign_run(tmp_path, *events))
    assert text.endswith("Most of the device's time goes to: 67 % in `gemm`; 33 % in `norm`.")


def test_a_step_of_which_next_to_nothing_was_recorded_has_no_experiment(tmp_path: Path) -> None:
    run = foreign_run(tmp_path, event("ProfilerStep#3", 0, 1000, "user_annotation"), event("aten::empty", 10, 2))
    assert where_it_goes(run) == "No line, module, operator or kernel takes 5.0 % of the step."
    assert next_experiment(run) == ""


def operators(num: int, length_us: float) -> list[dict[str, Any]]:
    """So many in each of two steps of a millisecond on a CPU."""
    return [
        one
        for number, start in enumerate((0.0, 1000.0))
        for one in (
            event(f"ProfilerStep#{number}", start, 1000, "user_annotation"),
            *(event("aten::add", start + 5 + place * 990 / num, length_us) for place in range(num)),
        )
    ]


@pytest.mark.parametrize(("num", "length_us"), [(60, 15.0), (28, 18.0), (47, 20.0)])
def test_on_a_cpu_compiling_is_advised_where_short_operators_make_up_the_step(
    num: int, length_us: float, tmp_path: Path
) -> None:
    told = next_experiment(foreign_run(tmp_path, *operators(num, length_us)))
    assert told.startswith(f"{num} operators of {length_us:.0f} us each take ")
    assert told.endswith("mostly the cost of calling them: try a larger batch, or `torch.compile(model)`.")


@pytest.mark.parametrize(("num", "length_us"), [(40, 21.0), (20, 18.0), (2, 400.0)], ids=["long", "few", "very long"])
def test_on_a_cpu_nothing_is_advised_where_operators_compute_or_are_not_most_of_the_step(
    num: int, length_us: float, tmp_path: Path
) -> None:
    assert next_experiment(foreign_run(tmp_path, *operators(num, length_us))) == ""


def test_a_few_long_operators_are_not_counted_among_many_short_ones(tmp_path: Path) -> None:
    lstm = [event("mkldnn_rnn", start + 400, 590) for start in (0.0, 1000.0)]
    short = [one for one in operators(100, 3.5) if one["ts"] % 1000 < 380 or one["cat"] == "user_annotation"]
    assert next_experiment(foreign_run(tmp_path, *short, *lstm)) == ""


def test_parts_that_are_less_than_half_are_not_called_most_of_it(tmp_path: Path) -> None:
    names = ("mm", "add", "mul", "exp", "div", "sub", "log", "sin")
    events = [event(f"aten::{name}", 10.0 * place, 10) for place, name in enumerate(names)]
    text = where_it_goes(foreign_run(tmp_path, *events))
    assert "The largest parts of " in text
    assert "Most" not in text


def test_nothing_is_told_of_nothing(tmp_path: Path) -> None:
    run = foreign_run(tmp_path, {"ph": "M", "name": "process_name", "args": {"name": "python"}})
    assert (where_it_goes(run), next_experiment(run)) == ("", "")


@pytest.mark.parametrize(("busy_ms", "said"), [(17, "only less or"), (14, "It is unclear"), (4, "The host bounds")])
def test_what_bounds_a_step_is_unclear_where_the_profiler_may_have_made_it(
    tmp_path: Path, busy_ms: float, said: str
) -> None:
    """A step of 20 ms in the window and of 15.5 ms outside."""
    steps = [*make_steps(30), make_step(30, window="trace-1", other_ms=5.0)]
    calls = [
        trace_event("cudaLaunchKernel", 30_001, 1, category="cuda_runtime", correlation=1),
        trace_event("gemm", 30_002, busy_ms, category="kernel", thread=7, correlation=1),
    ]
    run = write_run(tmp_path / "run", steps=steps, traces=[calls])
    assert said in where_it_goes(run)
    assert bool(next_experiment(run)) == ("only" in said), "of the host nothing but the launch was recorded"


@pytest.mark.skipif(not REAL.is_dir(), reason="needs ../shared/data/traces")
def test_a_real_model_of_one_line_is_told_by_its_modules() -> None:
    (path,) = REAL.glob("tracelens__h100__Qwen*")
    assert "49 % in `Qwen2Attention`; 25 % in `Qwen2MLP`" in where_it_goes(run_of(path))


def test_where_steps_change_their_length_the_traced_ones_speak_for_themselves_alone(tmp_path: Path) -> None:
    def told(name: str, growth_ms: float) -> tuple[str, str]:
        steps = make_steps(
            60,
            forward_ms=lambda step: 4.0 + growth_ms * step,
            window=lambda step: "trace-1" if step in (20, 21) else None,
        )
        events = [
            trace_event("aten::add", 1000.0 * step + 1.0 + 0.01 * place, 0.009, category="cpu_op")
            for step in (20, 21)
            for place in range(1100)
        ]
        run = write_run(tmp_path / name, steps=steps, traces=[events])
        return where_it_goes(run), next_experiment(run)

    where, what = told("alike", 0.0)
    assert where.startswith("Most of the step goes to: ")
    assert what.startswith("1,100 operators of ")
    where, what = told("growing", 0.3)
    assert where.startswith("The largest parts of steps 20 to 21: ")
    assert what == ""


def launching(num: int = 1) -> list[dict[str, Any]]:
    return [
        event("ProfilerStep#1", 0, 1000, "user_annotation"),
        event("aten::mm", 10, 600),
        event("aten::add", 700, 100),
        *(event("cudaLaunchKernel", 20 + number, 1, "cuda_runtime", correlation=number) for number in range(num)),
    ]


def test_a_host_that_bounds_the_step_leads_with_its_own_shares(tmp_path: Path) -> None:
    kernels = [event("gemm", 30 + 900 * number, 5, "kernel", STREAM, correlation=number) for number in range(2)]
    late = {**launching(2)[-1], "ts": 920}
    text = where_it_goes(foreign_run(tmp_path, *launching(), late, *kernels))
    assert text.startswith("The host bounds the step")
    assert text.endswith("Most of the step goes to: 60 % in `aten::mm`; 10 % in `aten::add`.")


def test_launches_without_the_device_s_work_are_said_and_so_is_what_the_host_waits(tmp_path: Path) -> None:
    waits = event("cudaDeviceSynchronize", 810, 180, "cuda_runtime", correlation=7)
    text = where_it_goes(foreign_run(tmp_path, *launching(), waits))
    assert "The host launches work for a device, but none of that work is in the trace" in text
    assert "For 180 us of the step (18 %) it waits in `cudaDeviceSynchronize`." in text
    (tmp_path / "cpu").mkdir()
    assert where_it_goes(foreign_run(tmp_path / "cpu", *launching(0))).startswith("Most of the step goes to")


def test_a_device_whose_events_do_not_tell_when_it_is_busy_is_named(tmp_path: Path) -> None:
    events = [event("mtiaLaunchKernel", 20, 1, "mtia_runtime", correlation=0), event("fc", 50, 900, "kernel", STREAM)]
    text = where_it_goes(foreign_run(tmp_path, *launching(0), *events))
    assert text.startswith("What its MTIA does is not read: times are the host's. Most of the step goes to: 60 %")


def test_work_that_the_trace_does_not_have_is_no_idleness(tmp_path: Path) -> None:
    events = [event("ProfilerStep#1", 0, 100_000, "user_annotation"), event("aten::mm", 10, 30)]
    events += [event("cudaLaunchKernel", 20, 1, "cuda_runtime", correlation=1)]
    events += [event("gemm", 90_000, 2_000, "kernel", STREAM, correlation=1)]
    text = where_it_goes(foreign_run(tmp_path, *events))
    assert "it was at work that is not in this trace" in text


def window_in(folder: Path, *events: dict[str, Any]) -> TraceWindow:
    return foreign_run(folder, *events).get(TimeUse).window


def test_a_trace_of_inference_is_told_as_that_and_a_piece_of_a_training_is_not(tmp_path: Path) -> None:
    many = [event("aten::mm", 10 + 20 * number, 10) for number in range(30)]
    assert window_in(tmp_path, *many).is_inference
    for name in ("autograd::engine::evaluate_function: MmBackward0", "Optimizer.step#SGD.step", "AddmmBackward0"):
        assert not window_in(tmp_path, *many, event(name, 800, 10)).is_inference
    assert not window_in(tmp_path, *many[:10]).is_inference
