"""The engine says of traces what a slow script that knows nothing of it reckons from their JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from efprof.facts.time.idle_causes import IdleCauses
from efprof.facts.time.time_use import TimeUse
from tests.facts.time.against_oracle import differences
from tests.facts.time.oracle import truth_of
from tests.facts.time.traces import REAL, STREAM, event, foreign_run, kernel, launch, run_of, step, write

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
    assert list(differences(path)) == ["device_period_ms", "not_launched_ms"]


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
