"""Every microsecond of a trace is one path's own: of the line, module and operator that it was spent under."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from efprof.artifacts.trace.read import read_window
from efprof.facts.time.call_paths import LAUNCHES, ON_DEVICE, CallPaths
from efprof.facts.time.path_tree import CallPath
from efprof.facts.time.trace_windows import TraceWindow, foreign_window, user_frame
from tests.facts.time.traces import ENGINE, REAL, event, kernel, launch, step, write


def window_of(folder: Path, *events: dict[str, object]) -> TraceWindow:
    return foreign_window(read_window(write(folder / "trace.json.gz", *events)))


@pytest.fixture
def paths(tmp_path: Path) -> CallPaths:
    return window_of(tmp_path, *step()).paths


def name_of(path: CallPath) -> str:
    return " > ".join(part.text for part in path.parts())


def times(paths: CallPaths) -> dict[str, tuple[float, float]]:
    """Own time on the host and on the device in microseconds, by path."""
    return {name_of(path): (path.own_ns / 1000, path.device_ns / 1000) for path in paths.root.walk()}


def test_each_stage_has_its_time_and_they_add_up_to_the_step(paths: CallPaths) -> None:
    spent: Counter[str] = Counter()
    for path in paths.root.walk():
        spent[path.stage] += path.own_ns // 1000
    assert spent == {"data": 300, "forward": 180, "backward": 300, "optimizer": 100, "other": 120}
    assert [stage for _, _, stage, _ in paths.stages] == ["data", "forward", "backward", "backward", "optimizer"]


def test_what_an_optimizer_s_closure_runs_is_no_part_of_the_update(tmp_path: Path) -> None:
    events = [
        event("Optimizer.step#Adam.step", 0, 100, "user_annotation"),
        event("nn.Module: Net_0", 10, 30, "python_function"),
        event("torch/_tensor.py(600): backward", 50, 20, "python_function"),
        event("aten::add_", 80, 10),
    ]
    stages = window_of(tmp_path, *events).paths.stages
    order = ["optimizer", "forward", "optimizer", "backward", "optimizer"]
    assert [stage for _, _, stage, _ in stages] == order
    assert [end - start for start, end, *_ in stages] == [10_000, 30_000, 10_000, 20_000, 30_000]


def test_a_backward_operator_belongs_to_the_line_and_module_of_its_forward_one(paths: CallPaths) -> None:
    at = "backward > train.py:5:main > train.py:10:forward > Net_0 > AddmmBackward0"
    assert times(paths)[at] == (250.0, 200.0)


def test_the_thread_that_waits_for_the_engine_does_not_count_that_time_again(paths: CallPaths) -> None:
    assert times(paths)["backward > train.py:5:main"][0] == 300 - 250


def test_a_kernel_belongs_to_the_path_that_launched_it(paths: CallPaths) -> None:
    at = "forward > train.py:5:main > train.py:10:forward > Net_0 > linear"
    found = {name.replace("aten::", ""): device for name, (_, device) in times(paths).items()}
    assert found[at] == 100.0
    assert sum(found.values()) == 350.0


def test_a_kernel_without_its_launch_is_counted_apart(tmp_path: Path) -> None:
    paths = window_of(tmp_path, *step(), kernel(99, 900, 40)).paths
    assert paths.unlaunched_ns == 40_000


def test_the_recorder_s_own_time_is_left_out_and_what_it_calls_stays_its_caller_s(tmp_path: Path) -> None:
    events = [
        event("train.py(5): main", 0, 100, "python_function"),
        event("efprof/recorder/hooks/loop_hooks.py(9): step", 10, 50, "python_function"),
        event("aten::add_", 20, 30),
    ]
    paths = window_of(tmp_path, *events).paths
    assert paths.recorder_ns == 20_000
    assert times(paths)["train.py:5:main"][0] == 50.0
    assert times(paths)["train.py:5:main > aten::add_"][0] == 30.0


def test_threads_that_only_wait_are_no_part_of_the_step(tmp_path: Path) -> None:
    waiting = event("threading.py(600): wait", 0, 1000, "python_function", (1, 9))
    assert sum(path.own_ns for path in window_of(tmp_path, *step(), waiting).paths.root.walk()) == 1_000_000


def test_call_stacks_of_2021_give_the_exact_lines(tmp_path: Path) -> None:
    stack = "/opt/lib/python3.7/site-packages/torch/nn/functional.py(7): linear;net.py(31): forward;train.py(46): main"
    paths = window_of(tmp_path, event("aten::linear", 0, 10, "Operator", Call_stack=stack)).paths
    assert "train.py:46:main > net.py:31:forward > aten::linear" in times(paths)


@pytest.mark.parametrize(
    ("frame", "site"),
    [
        ("train.py(12): step", "train.py:12:step"),
        ("./src/model.py(3): forward", "src/model.py:3:forward"),
        ("torch/nn/modules/module.py(1915): __getattr__", None),
        ("/usr/lib/python3.11/threading.py(3): wait", None),
        ("/opt/env/lib/python3.9/site-packages/mine/net.py(3): forward", None),
        ("threading.py(655): wait", None),
        ("<string>(1): <module>", None),
        ("<built-in function linear>", None),
    ],
)
def test_frames_of_libraries_are_no_lines_of_the_user_s(frame: str, site: str | None) -> None:
    assert user_frame(frame) == site


def test_a_package_that_is_said_to_be_one_s_own_has_lines() -> None:
    installed = "/opt/env/lib/python3.9/site-packages/transformers/models/x.py(3): forward"
    assert user_frame(installed, frozenset({"transformers"})) == "transformers/models/x.py:3:forward"


def test_steps_come_from_the_profiler_else_from_the_optimizer_else_from_what_repeats(tmp_path: Path) -> None:
    marked = window_of(tmp_path, *step(0, 4), *step(1000, 5))
    assert ([end - start for start, end in marked.steps], marked.numbers) == ([1_000_000, 1_000_000], (4, 5))
    unmarked = [one for one in (*step(0, 4), *step(1000, 5)) if not str(one["name"]).startswith("ProfilerStep")]
    updates = window_of(tmp_path, *unmarked)
    assert [end // 1000 for _, end in updates.steps] == [950, 1950]
    labelled = [event("iteration", at, 90, "user_annotation") for at in (0, 100, 200)]
    assert len(window_of(tmp_path, *labelled).steps) == 3
    whole = window_of(tmp_path, event("aten::mm", 0, 10), launch(1, 20))
    assert (len(whole.steps), whole.has_steps) == (1, False)


def test_an_engine_thread_alone_has_paths_too(tmp_path: Path) -> None:
    alone = event("autograd::engine::evaluate_function: MulBackward0", 0, 10, lane=ENGINE, Sequence_number=1)
    assert times(window_of(tmp_path, alone).paths)["backward > MulBackward0"][0] == 10.0


def test_the_thread_of_the_steps_is_that_of_their_labels_however_busy_others_are(tmp_path: Path) -> None:
    ahead = [event("aten::copy_", at, 4, lane=(1, 9)) for at in range(0, 1000, 5)]
    nodes = [event("aten::mm", at, 1, lane=ENGINE) for at in range(551, 790, 2)]
    paths = window_of(tmp_path, *step(), *ahead, *nodes).paths
    assert sum(path.own_ns for path in paths.root.walk()) == 1_000_000
    assert not any("copy_" in name for name in times(paths) if times(paths)[name][0])


def test_a_kernel_belongs_to_the_step_that_launched_it_whenever_it_runs(tmp_path: Path) -> None:
    late = [launch(7, 980), kernel(7, 1500, 70), kernel(8, 20, 30), launch(8, -50)]
    paths = window_of(tmp_path, *step(), *late).paths
    assert sum(path.device_ns for path in paths.root.walk()) == 420_000
    assert paths.unlaunched_ns == 0


def test_of_labels_within_each_other_the_outermost_are_steps(tmp_path: Path) -> None:
    labels = [event("iteration", at, 90, "user_annotation") for at in (0, 100, 200)]
    inner = [event("iteration", at + 10, 20, "user_annotation") for at in (0, 100, 200)]
    assert window_of(tmp_path, *labels, *inner).steps == ((0, 100_000), (100_000, 200_000), (200_000, 290_000))


@pytest.mark.skipif(not REAL.is_dir(), reason="needs ../shared/data/traces")
@pytest.mark.parametrize("path", sorted(REAL.glob("*.gz")) or [Path()], ids=lambda path: path.name[:40])
def test_in_real_traces_every_kernel_is_counted_once_and_no_thread_twice(path: Path) -> None:
    if path.stat().st_size > 1_300_000:
        pytest.skip("the smaller ones show the same")
    window = foreign_window(read_window(path))
    trace, paths = window.trace, window.paths
    start_ns, end_ns = window.steps[0][0], window.steps[-1][1]
    launched = {int(trace.id[at]): at for at in np.flatnonzero(trace.is_of(*LAUNCHES) & (trace.id >= 0)).tolist()}
    expected = 0
    for one in np.flatnonzero(trace.is_of(*ON_DEVICE)).tolist():
        launch = launched.get(int(trace.id[one]))
        is_of_steps = start_ns <= trace.start_ns[one] < end_ns
        if launch is not None:  # whenever the device came to it
            is_of_steps = trace.start_ns[launch] < end_ns and trace.end_ns[launch] > start_ns
        expected += int(trace.duration_ns[one]) * bool(is_of_steps)
    assert sum(path.device_ns for path in paths.root.walk()) + paths.unlaunched_ns == expected
