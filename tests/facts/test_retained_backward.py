"""What is known of a graph that backward keeps: the call, its nodes, its blocks, and when those would have gone."""

import ast
from pathlib import Path

import pytest
import torch

from efprof.artifacts.trace import read_trace, trace_paths
from efprof.facts.live_memory import LiveMemory
from efprof.facts.operation_lines import plain
from efprof.facts.retained_backward import RetainedBackward
from efprof.facts.retained_backward_call import graph_making_line, retaining_call
from efprof.facts.retained_backward_nodes import WindowPasses, passes_of
from efprof.facts.retained_backward_replay import SAVES_RESULT, replay_without_graphs
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.units import MIB
from tests.facts.retained_backward_runs import BACKWARD, BLOCK, OUTPUT, TRAIN, Recording, needless, own_nodes


def passes(recording: Recording, run: Run) -> WindowPasses:
    records = [step for step in recording.steps() if step.window]
    return passes_of(read_trace(trace_paths(run.rank_folder)[0]), BACKWARD, records)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("loss.backward(retain_graph=True)", ("retain_graph",)),
        ("torch.autograd.backward(loss, retain_graph=True)", ("retain_graph",)),
        ("backward([a, b], create_graph=True, retain_graph=True)", ("retain_graph", "create_graph")),
        ("accelerator.backward(loss, create_graph=True)", ("create_graph",)),
        ("self.manual_backward(loss, retain_graph=True)", ("retain_graph",)),
        ("scaler.scale(loss).backward(None, retain_graph=True)", ("retain_graph",)),
    ],
)
def test_every_way_to_call_backward_is_read(text: str, arguments: tuple[str, ...]) -> None:
    call = retaining_call(Sources(files={"train.py": text.split("\n")}), "train.py:1:<module>")
    assert call is not None
    assert call.arguments == arguments


@pytest.mark.parametrize(
    "text", ["loss.backward(None, True)", "torch.autograd.grad(loss, x, retain_graph=True)", "loss.backward(", "x = 1"]
)
def test_what_is_not_understood_is_no_retaining_call(text: str) -> None:
    assert retaining_call(Sources(files={"train.py": [text]}), "train.py:1:<module>") is None


def test_the_line_that_makes_graphs_of_gradients_is_the_first_with_a_plain_true() -> None:
    text = "grad(a, b)\ngrad(a, b, create_graph=is_on)\ntorch.autograd.grad(a, b, create_graph=True)\n"
    assert graph_making_line(Sources(files={"train.py": text.split("\n")}), "train.py") == 3


def test_the_calls_of_a_window_have_their_nodes_and_their_steps(tmp_path: Path) -> None:
    recording = needless()
    recording.node(6, 11.2, None)
    first, second = passes(recording, recording.run(tmp_path)).passes
    assert (first.record.step, second.record.step) == (5, 6)
    assert sorted(node.sequence for node in second.nodes) == sorted(own_nodes(recording, 6))
    assert second.runs[-1].node is None
    assert first.thread == 1


def test_a_variable_of_the_program_is_told_from_the_graph(tmp_path: Path) -> None:
    replay = needless().run(tmp_path).get(RetainedBackward).replay
    assert replay is not None
    assert [graph.num_bytes for graph in replay.graphs] == [3 * BLOCK, 3 * BLOCK + 4], "the outputs are not in it"
    assert [graph.released_in_step for graph in replay.graphs] == [6, None]
    assert replay.reaches_next_step
    assert not replay.outlives_a_step


def test_without_the_graphs_memory_is_never_more_and_the_rest_is_the_same(tmp_path: Path) -> None:
    replay = needless().run(tmp_path).get(RetainedBackward).replay
    assert replay is not None
    saved = replay.window.live_bytes - replay.live_without
    assert saved.min() == 0
    assert saved.max() == 3 * BLOCK
    assert saved[0] == 0


def test_a_parameters_gradient_is_not_of_the_gradients_graph(tmp_path: Path) -> None:
    recording = Recording()
    recording.forward(5)
    recording.backward(5, own_nodes(recording, 5))
    recording.allocate(5, 10.9, 500, 7 * MIB, is_backward=True)
    recording.node(5, 11.2, None)
    recording.allocate(5, 11.3, 501, 9 * MIB, is_backward=True)
    run = recording.run(tmp_path)
    window = run.get(LiveMemory).windows[0]
    sizes = {}
    for creates in (False, True):
        replay = replay_without_graphs(window, passes(recording, run), creates_graph=creates)
        assert replay is not None
        sizes[creates] = replay.kept_bytes
    assert sizes == {False: 4 * BLOCK, True: 4 * BLOCK + 7 * MIB}


def test_checkpointing_holds_what_it_computes_again_from(tmp_path: Path) -> None:
    saved = []
    for name, is_recomputing in (("plain", False), ("checkpointed", True)):
        recording = Recording()
        for step in (5, 6):
            recording.forward(step)
            recording.backward(step, own_nodes(recording, step))
            if is_recomputing:
                recording.operate(step, 5.3, recording.sequence(step) + 50, "aten::gelu")
            recording.allocate(step, 14.5, 300, 4)
            recording.release(step, 14.8, *(10 * step + place for place in range(3)), OUTPUT + step)
        replay = recording.run(tmp_path / name).get(RetainedBackward).replay
        assert replay is not None
        saved.append(replay.saved_bytes)
    assert saved == [20 * MIB, 10 * MIB]


@pytest.mark.parametrize("name", sorted(SAVES_RESULT))
def test_operations_said_to_save_their_result_do(name: str) -> None:
    values = torch.rand(3, requires_grad=True)
    made = {
        "softmax": lambda: values.softmax(0),
        "logsoftmax": lambda: values.log_softmax(0),
        "cumprod": lambda: values.cumprod(0),
    }.get(name, lambda: getattr(torch, name)(values))()
    assert made.grad_fn is not None
    assert hasattr(made.grad_fn, "_saved_result")


def test_operations_are_named_as_the_trace_names_them() -> None:
    assert plain("aten::_log_softmax") in SAVES_RESULT
    assert plain("aten::gelu") not in SAVES_RESULT


def test_the_replay_is_silent_about_files_without_the_argument(tmp_path: Path) -> None:
    text = TRAIN.replace("retain_graph=True", "")
    ast.parse(text)
    found = needless().run(tmp_path, text=text).get(RetainedBackward)
    assert found.call is None
    assert found.replay is None
