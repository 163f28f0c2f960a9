"""The engine says of traces what a slow script that knows nothing of it reckons from their JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from efprof.facts.time.idle_causes import IdleCauses
from efprof.facts.time.time_use import TimeUse
from tests.facts.time.against_oracle import differences
from tests.facts.time.oracle import truth_of
from tests.facts.time.traces import ENGINE, REAL, STREAM, event, foreign_run, kernel, launch, run_of, step, write

SMALL = (
    "hta__amd_trace__mi250_minitoy_train_ROCm6_2_kineto",
    "hta__critical_path__alexnet__benchmark_result_2869224_1695835535_trace",
    "marcalph_kernelforge__T4_notebook",
    "pytorch_ao__quant_vit_graphs",
    "tracelens__h100__Falconsai_nsfw_image_detection__1016002",
)


@pytest.mark.parametrize("name", SMALL)
def test_of_real_traces(name: str) -> None:
    path = REAL / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    assert truth_of(path).not_launched_ms > 0
    assert differences(path) == {}


def test_of_steps_after_a_long_one_with_a_kernel_that_runs_into_the_next(tmp_path: Path) -> None:
    first = [{**one, "ts": one["ts"] * 9, "dur": one["dur"] * 9} for one in step()]
    later = [one for number in range(1, 6) for one in step(8000 + 1000 * number, number)]
    late = [launch(99, 13_995), kernel(99, 14_100, 300), event("ncclKernel", 13_200, 900, "kernel", STREAM)]
    path = write(tmp_path / "trace.json.gz", *first, *later, *late)
    truth = truth_of(path)
    assert (truth.num_warm_up, truth.num_steps, truth.step_ms) == (1, 5, 1.0)
    assert truth.loader_ms == pytest.approx(0.3)
    assert truth.exposed_ms > 0
    assert differences(path) == {}


def test_the_oracle_finds_a_figure_that_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "trace.json.gz", *step())
    assert differences(path) == {}
    monkeypatch.setattr("efprof.facts.time.trace_windows.LONG_QUEUE_NS", 0)
    assert {"device_period_ms", "not_launched_ms"} <= differences(path).keys()


def test_what_the_host_is_in_while_the_device_waits(tmp_path: Path) -> None:
    """A second and a half of Python, in a function that another one calls."""
    calls: list[dict[str, Any]] = [
        event("ProfilerStep#1", 0, 3_000, "user_annotation"),
        event("data.py(3): prepare", 0, 2_000, "python_function"),
        event("data.py(9): scale", 100, 1_500, "python_function"),
        launch(1, 2_500),
        kernel(1, 2_510, 400),
    ]
    (name, spent_ms), *_ = truth_of(write(tmp_path / "trace.json.gz", *calls)).in_function
    assert (name, spent_ms) == ("data.py(9): scale", pytest.approx(1.5))
    cause = foreign_run(tmp_path, *calls).get(IdleCauses).of("Python")
    assert cause is not None
    assert cause.parts[0] == (name, 1_500_000)


@pytest.mark.parametrize("names", [("gemm",), tuple(f"kernel {number}" for number in range(8))])
def test_each_first_launch_of_a_kernel_is_a_first_call_and_a_long_one_later_is_none(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    events = [event("ProfilerStep#1", 0, 100_000, "user_annotation")]
    for number in range(60):
        long = number < 8
        at = 10_000 * number if long else 80_000 + 200 * number
        events += [
            event("cudaLaunchKernel", at, 5_000 if long else 5, "cuda_runtime", correlation=number),
            kernel(number, at + 5_100, 20, names[number % len(names)]),
        ]
    path = write(tmp_path / "trace.json.gz", *events)
    assert truth_of(path).first_calls_ms == (40.0 if len(names) == 8 else 5.0)
    assert differences(path) == {}


def test_the_autograd_profiler_of_old_is_read(tmp_path: Path) -> None:
    """It names no categories, and has stretches of operators on the device."""
    (path := tmp_path / "old.json").write_text(
        json.dumps(
            [
                {"ph": "X", "name": name, "ts": at, "dur": length, "tid": 1, "pid": pid, "args": {}}
                for name, at, length, pid in (
                    ("aten::conv2d", 0, 400, "CPU functions"),
                    ("aten::conv2d", 100, 800, "CUDA functions"),
                )
            ]
        )
    )
    window = run_of(path).get(TimeUse).window
    assert window.device is not None
    assert (window.step_ms, window.device.busy_ns) == (0.9, 800_000)


def busy_steps(*within: dict[str, Any]) -> list[dict[str, Any]]:
    """Four steps of 100 ms, each with a kernel at its begin and one at its end, and this between them."""
    found = []
    for number in range(4):
        at = 100_000 * number
        found += [
            event(f"ProfilerStep#{number}", at, 100_000, "user_annotation"),
            launch(2 * number, at + 100),
            kernel(2 * number, at + 110, 5_000),
            *({**one, "ts": one["ts"] + at} for one in within),
            launch(2 * number + 1, at + 95_000),
            kernel(2 * number + 1, at + 95_010, 1_000),
        ]
    return found


def test_what_a_thread_waits_for_in_backward_is_the_engine_s_below_whatever_functions(tmp_path: Path) -> None:
    frames = (
        "train.py(5): main",
        "torch/_tensor.py(600): backward",
        "torch/autograd/graph.py(9): _engine_run_backward",
    )
    waits = [event(name, 5_000 + place, 85_000 - 2 * place, "python_function") for place, name in enumerate(frames)]
    waits.append(event("<built-in method run_backward of torch._C._EngineBase>", 5_010, 84_000, "python_function"))
    frees = event("cudaFree", 6_000, 80_000, "cuda_runtime", ENGINE, correlation=99)
    node = event("autograd::engine::evaluate_function: MmBackward0", 5_900, 80_500, lane=ENGINE)
    path = write(tmp_path / "trace.json.gz", *busy_steps(*waits, node, frees))
    assert differences(path) == {}
    cause = run_of(path).get(IdleCauses).of("memory")
    assert cause is not None
    assert cause.spent_ns > 0.9 * 4 * 80_000_000


def test_what_lies_in_steps_and_in_a_label_around_them_all_counts_once(tmp_path: Path) -> None:
    around = event("epoch", -10, 400_100, "user_annotation")
    path = write(tmp_path / "trace.json.gz", around, *busy_steps(event("aten::randn", 10_000, 60_000)))
    assert differences(path) == {}
    causes = run_of(path).get(IdleCauses)
    assert causes.causes[0].kind == "operators"
    assert causes.causes[0].function == "aten::randn"


def test_what_takes_long_in_each_step_is_no_first_call_and_threads_at_once_count_once(tmp_path: Path) -> None:
    asks = event("cudaMalloc", 10_000, 60_000, "cuda_runtime", correlation=99)
    short = [event("cudaMalloc", 7_000 + 10 * number, 2, "cuda_runtime") for number in range(30)]
    path = write(tmp_path / "each.json.gz", *busy_steps(asks, *short))
    assert truth_of(path).first_calls_ms == 0
    assert differences(path) == {}
    threads = [event("cudaFuncLoad", 10_000, 400_000, "cuda_runtime", (1, 50 + number)) for number in range(3)]
    quick = [event("cudaFuncLoad", 5 + 2 * number, 1, "cuda_runtime") for number in range(5)]
    path = write(tmp_path / "threads.json.gz", *busy_steps(), *threads, *quick)
    assert truth_of(path).first_calls_ms == pytest.approx(390.0, abs=20)
    assert differences(path) == {}
